//! Memory that belongs to the kernel: blocks handed over to the kernel, and mappings at addresses
//! that the program has chosen itself.

use std::ops::Range;

use hugefork::seam::{Machine, Zeros};

use crate::memory::{PLAIN, ProgramMemory, SOON_PLAIN};
use crate::units::HUGE_PAGE;

/// Number of attempts to suspend all threads that use a block.
const MAX_TRIES: usize = 100;

/// Most blocks to hand over to the kernel at once: threads that use one of these blocks wait while all of them are
/// copied.
const MAX_HANDED_OVER_AT_ONCE: usize = 32;

impl<S: Machine> ProgramMemory<S> {
    /// Turns all blocks that the range touches into plain memory of the kernel, with the same contents. Skips a group
    /// of blocks that contains the caller's own stack, because the caller would suspend itself.
    pub fn hand_over(&mut self, range: Range<usize>, zeros: Zeros) {
        let touched = self.touched(&range);
        let mut next = touched.start;
        while let Some(start) = (next..touched.end).find(|&index| self.region.has(index)) {
            let most = touched.end.min(start + MAX_HANDED_OVER_AT_ONCE);
            let end = (start..most).find(|&index| !self.region.has(index)).unwrap_or(most);
            next = end;
            let here = (&raw const next).addr();
            let base = self.base();
            if (base + start * HUGE_PAGE..base + end * HUGE_PAGE).contains(&here) {
                continue;
            }
            // An attempt may fail while another thread works on a page of the blocks.
            if (0..MAX_TRIES).any(|_| self.region.hand_over(&(start..end), zeros)) {
                self.counts.handed_over += (end - start) as u64;
                self.unmap_behind(start..end);
                self.used[start..end].fill(PLAIN);
            }
        }
    }

    /// Unmaps the unused end of each block that has become plain memory of the kernel.
    fn unmap_behind(&self, entries: Range<usize>) {
        let base = self.base();
        for index in entries.filter(|&index| (self.used[index] as usize) < HUGE_PAGE) {
            let start = base + index * HUGE_PAGE;
            self.region.unmap_plain(start + self.used[index] as usize..start + HUGE_PAGE);
        }
    }

    /// Gives a range to the kernel, for a mapping at an address of the program's choice. The old contents are lost,
    /// except in blocks that were handed over to the kernel. Returns false if the range cannot be given to the kernel:
    /// then the program must not map anything in the range. After true, call [`ProgramMemory::finish_way`].
    pub fn make_way(&mut self, range: Range<usize>) -> bool {
        self.unmap(range.clone(), |_| {});
        // `unmap` does not touch the unused end of a mapping's last block, but `hand_over` hands over that block.
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

    /// Notes whether the kernel has made the program's mapping in a range given by [`ProgramMemory::make_way`], or has
    /// refused.
    pub fn finish_way(&mut self, range: Range<usize>, is_mapped: bool) {
        for index in self.touched(&range) {
            if self.used[index] != SOON_PLAIN {
                continue;
            }
            if is_mapped {
                self.used[index] = PLAIN;
                // The rest of the block, outside the range, belongs to the kernel too, and must be unmapped.
                let start = self.base() + index * HUGE_PAGE;
                self.region.unmap_plain(start..range.start);
                self.region.unmap_plain(range.end..start + HUGE_PAGE);
            } else {
                self.used[index] = 0;
                self.free.give_back(index..index + 1);
            }
        }
    }

    /// Whether a range is free: the range lies in this memory, contains no mapping, and is not reserved for a mapping.
    pub fn is_free(&self, range: Range<usize>) -> bool {
        let all = self.addresses();
        all.start <= range.start
            && range.end <= all.end
            && self.first_piece(&range).is_none()
            && self.touched(&range).all(|index| self.used[index] != SOON_PLAIN)
    }

    /// The first part of a range that is mapped without gaps. All memory handed over to the kernel counts as mapped,
    /// because this type does not know whether the program has unmapped some of that memory.
    pub fn first_mapped(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let (mut found, _) = self.first_piece(range)?;
        while let Some((next, _)) =
            self.first_piece(&(found.end..range.end)).filter(|(next, _)| next.start == found.end)
        {
            found.end = next.end;
        }
        Some(found)
    }

    /// The first part of a range that is mapped, as far as this type knows; and true if that part belongs to this
    /// memory, false if it belongs to the kernel.
    pub fn first_piece(&self, range: &Range<usize>) -> Option<(Range<usize>, bool)> {
        let (mut at, mut found): (_, Option<(Range<usize>, bool)>) = (range.start, None);
        while at < range.end {
            let (end, is_here) = self.state_at(at);
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

    /// The end of the piece at an address, and the state of that piece: `Some(true)` if the piece belongs to this
    /// memory, `Some(false)` if it belongs to the kernel, `None` if nothing is mapped.
    fn state_at(&self, at: usize) -> (usize, Option<bool>) {
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
