//! What is the kernel's: blocks that were handed over to it, and addresses that the program has chosen for itself.

use std::ops::Range;

use hugefork::seam::{Machine, Zeros};

use crate::memory::{PLAIN, ProgramMemory, SOON_PLAIN};
use crate::units::HUGE_PAGE;

/// So often is tried to have everybody wait.
const TRIES: usize = 100;

/// So many blocks at once are handed over: while they are copied, who uses one of them waits.
const HANDED_AT_ONCE: usize = 32;

impl<S: Machine> ProgramMemory<S> {
    /// Makes plain memory of all blocks that the range touches: the kernel's from now on, with the same contents. Those
    /// stay here that the caller's own stack lies among, since he would wait for himself.
    pub fn hand_over(&mut self, range: Range<usize>, zeros: Zeros) {
        let touched = self.touched(&range);
        let mut next = touched.start;
        while let Some(start) = (next..touched.end).find(|&index| self.region.has(index)) {
            let most = touched.end.min(start + HANDED_AT_ONCE);
            let end = (start..most).find(|&index| !self.region.has(index)).unwrap_or(most);
            next = end;
            let here = (&raw const next).addr();
            let base = self.base();
            if (base + start * HUGE_PAGE..base + end * HUGE_PAGE).contains(&here) {
                continue;
            }
            // Whoever works on a page just then may be in the way.
            if (0..TRIES).any(|_| self.region.hand_over(&(start..end), zeros)) {
                self.counts.handed_over += (end - start) as u64;
                self.unmap_behind(start..end);
                self.used[start..end].fill(PLAIN);
            }
        }
    }

    /// Takes away what is behind the program's part of blocks that are plain memory now.
    fn unmap_behind(&self, entries: Range<usize>) {
        let base = self.base();
        for index in entries.filter(|&index| (self.used[index] as usize) < HUGE_PAGE) {
            let start = base + index * HUGE_PAGE;
            self.region.unmap_plain(start + self.used[index] as usize..start + HUGE_PAGE);
        }
    }

    /// Leaves a range to the kernel, for a mapping at an address of the program's choice. What was there is gone, but
    /// for what was handed over. False if that cannot be: then nothing may be mapped there. Otherwise
    /// [`ProgramMemory::settle`] comes next.
    pub fn make_way(&mut self, range: Range<usize>) -> bool {
        self.unmap(range.clone(), |_| {});
        // Behind the end of a mapping there is nothing to unmap, but the rest of its last block.
        self.hand_over(range.clone(), Zeros::Copied);
        let touched = self.touched(&range);
        if touched.clone().any(|index| self.region.has(index)) {
            return false;
        }
        for index in touched {
            if self.used[index] != PLAIN && self.free.take_at(index) {
                self.used[index] = SOON_PLAIN;
            }
        }
        true
    }

    /// The kernel has mapped something where way was made, or has refused.
    pub fn settle(&mut self, range: Range<usize>, is_mapped: bool) {
        for index in self.touched(&range) {
            if self.used[index] != SOON_PLAIN {
                continue;
            }
            if is_mapped {
                self.used[index] = PLAIN;
                // The rest of the block is the kernel's, too, and nothing is there.
                let start = self.base() + index * HUGE_PAGE;
                self.region.unmap_plain(start..range.start);
                self.region.unmap_plain(range.end..start + HUGE_PAGE);
            } else {
                self.used[index] = 0;
                self.free.give_back(index..index + 1);
            }
        }
    }

    /// Whether a range is as good as unmapped: all of it lies here, and nothing is there, or will be soon.
    pub fn is_free(&self, range: Range<usize>) -> bool {
        let all = self.addresses();
        all.start <= range.start
            && range.end <= all.end
            && self.first_piece(&range).is_none()
            && self.touched(&range).all(|index| self.used[index] != SOON_PLAIN)
    }

    /// The first part of a range at which something is mapped everywhere, for all that is known here: what the kernel
    /// has got counts, whatever it has done with it.
    pub fn first_mapped(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let (mut found, _) = self.first_piece(range)?;
        while let Some((next, _)) =
            self.first_piece(&(found.end..range.end)).filter(|(next, _)| next.start == found.end)
        {
            found.end = next.end;
        }
        Some(found)
    }

    /// The first piece of a range at which something is mapped, for all that is known here, and whether it was mapped
    /// here and not handed over.
    pub fn first_piece(&self, range: &Range<usize>) -> Option<(Range<usize>, bool)> {
        let (mut at, mut found): (_, Option<(Range<usize>, bool)>) = (range.start, None);
        while at < range.end {
            let (end, is_here) = self.what_is_at(at);
            let piece = at..end.min(range.end);
            at = piece.end;
            match (&mut found, is_here) {
                (None, None) => {}
                (None, Some(is_here)) => found = Some((piece, is_here)),
                (Some((so_far, before)), Some(is_here)) if *before == is_here => so_far.end = piece.end,
                (Some(_), _) => break,
            }
        }
        found
    }

    /// Up to where something lies at an address, and whether it was mapped here; None if nothing is there.
    fn what_is_at(&self, at: usize) -> (usize, Option<bool>) {
        let all = self.addresses();
        if !all.contains(&at) {
            return (if at < all.start { all.start } else { usize::MAX }, Some(false));
        }
        let index = (at - all.start) / HUGE_PAGE;
        let start = all.start + index * HUGE_PAGE;
        let used = start + self.used[index] as usize;
        match self.used[index] {
            PLAIN => (start + HUGE_PAGE, Some(false)),
            _ if at < used && self.region.has(index) => (used, Some(true)),
            _ => (start + HUGE_PAGE, None),
        }
    }
}
