//! Behind its pause, a snapshot captures the pages that were written after its scans ahead, while other threads go on.
//!
//! ```text
//!   pause    write-protect the CoW mappings that were written to ─▶ release all windows except theirs
//!   behind   capture the pages of one block after the other ─▶ release its window
//! ```
//! A thread that writes to such a block waits for its window. So the length of the pause depends neither on the number
//! of pages to copy nor on memory for them. If system calls wait, the pages are parked, and nothing is left for later.

use super::capture::Looks;
use super::part::{Keeps, Part};
use crate::mapping::addresses::Place;
use crate::mem::{EngineVec, Own};
use crate::pool::free_slots::FreeSlots;
use crate::region::private::{Patched, Quiesced};
use crate::region::state::{RegionCore, Unresolved};
use crate::sys::Sys;
use crate::table::{Locked, WindowsGuard};
use crate::units::EntryIndex;

/// The windows of the blocks that are captured behind a pause, in order: one guard each.
pub(super) type Behind<'a> = EngineVec<WindowsGuard<'a>>;

impl<'a, S: Sys> Part<'a, S> {
    /// Ends the pause: releases all locks except the windows of the blocks that are left.
    pub(super) fn release(&self, alone: Quiesced<'a, S>) -> Behind<'a> {
        let mut left = self.behind.borrow_mut();
        left.sort_unstable();
        left.dedup();
        let window = |index: usize| self.region.table.window(EntryIndex(index));
        alone.done_but_for(|one| left.binary_search_by_key(&one, |index| window(*index)).is_ok())
    }
}

impl<S: Sys> RegionCore<S> {
    /// Gives the snapshot the pages of the blocks that were left, and releases their windows. After a failure, the
    /// snapshot is not as the region was.
    pub(super) fn capture_behind(&self, part: &Part<'_, S>, windows: Behind<'_>) -> Result<(), Unresolved> {
        let left = part.behind.replace(EngineVec::new_in(Own));
        let captured = self.capture_each(part, &left, windows);
        if captured.is_err() {
            // Pages may have marks by now that are not in their sets.
            left.iter().for_each(|index| self.captured.forget(EntryIndex(*index)));
        }
        captured
    }

    fn capture_each(&self, part: &Part<'_, S>, left: &[usize], windows: Behind<'_>) -> Result<(), Unresolved> {
        let (mut found, mut pages) = (EngineVec::new_in(Own), EngineVec::new_in(Own));
        for run in left.chunk_by(|one, next| one + 1 == *next) {
            let run = run[0]..run[run.len() - 1] + 1;
            match part.keeps {
                Keeps::Writable => self.mark_written(run, &mut found, &mut pages)?,
                Keeps::Protected => found.extend(self.patched(run)?.iter().copied()),
            }
        }
        let looks = if part.keeps == Keeps::Writable { Looks::Marked(&pages) } else { Looks::Protected };
        let mut free = FreeSlots::new(self.pool(), found.iter().map(|patched| patched.pages).sum());
        let window = |index: &usize| self.table.window(EntryIndex(*index));
        for (of_window, guard) in left.chunk_by(|one, next| window(one) == window(next)).zip(windows) {
            for index in of_window.iter().map(|index| EntryIndex(*index)) {
                let of = found.binary_search_by_key(&index.0, |patched: &Patched| patched.index.0);
                let patched = of.map_or(Patched { index, pages: 0 }, |at| found[at]);
                let may_have_pages = patched.pages > 0 || part.keeps == Keeps::Writable;
                if may_have_pages
                    && part.frozen.has_room_for_pages()
                    && self.capture(patched, looks, &mut free, Some(&guard))?
                {
                    part.frozen.set_pages(index, self.captured.last(index));
                } else if may_have_pages {
                    let publishing = self.lock.shared();
                    let locked = Locked::windows(&guard, &publishing);
                    self.write_back_for(locked, index, &part.frozen, Place::Own)?;
                }
                if self.shows_by_page() {
                    let publishing = self.lock.shared();
                    self.cow_map_each(Locked::windows(&guard, &publishing), index.0..index.0 + 1, Place::Own)?;
                }
            }
        }
        Ok(())
    }
}
