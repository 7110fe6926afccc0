//! Private pages over the snapshot's blocks, in a reset. It copies the block's bytes into the pages, which stay, so
//! that the next write to them takes no fault; or it drops them all.
//!
//! The private pages are known from the last reset (state/dirty_list.rs), unless the process has taken a fault since.
//! It pays to keep pages if most of them are written again. If the program writes to other pages each time, finding
//! them costs more than their faults. Then the reset drops the page tables of the whole region in one call, without a
//! scan.

use std::ops::Range;

use super::{Reset, Stop};
use crate::mapping::addresses::Place;
use crate::ranges::runs;
use crate::region::state::{Page, Unresolved};
use crate::stats::counters::count;
use crate::sys::{Access, ScanFor, Shows, Sys, SystemError};
use crate::sys::{MOST_RUNS, PageRun, restore::expect};
use crate::table::transition::Event;
use crate::table::{Entry, State};
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// The number of pages that are prefetched. A page is compared and copied in 200 ns.
const FETCHED_AHEAD_PAGES: usize = 2;

/// The number of pages that the kernel scans in the time of one page fault, at 7 ns a page.
const LOOKED_AT_IN_A_FAULT: usize = 256;

/// If more than one in this many pages of a block are private, a block of the region's own may be better.
pub(super) const MANY_ONE_IN: usize = 4;

impl<S: Sys> Reset<'_, S> {
    /// Makes the list of private pages complete by a scan, or drops all private pages. If no fault has come since the
    /// list was complete, it is still. Returns the fault count from before the scan.
    pub(super) fn look(&mut self) -> Result<u64, Stop> {
        let (region, sys) = (self.region, &self.region.pool().sys);
        let faults = sys.minor_faults();
        if self.dirty.seen_at == Some(faults) || self.dirty.seen_at.is_some() && seeded!("reset-trusts-an-old-look") {
            return Ok(faults);
        }
        self.dirty.begin();
        if self.dirty.until_try > 0 && self.may_drop_all() && self.dirty.skips_look() {
            self.drop_all()?;
            return Ok(faults);
        }
        for cow_mappings in region.cow_mappings(0..region.table.len()) {
            let mut at = cow_mappings.start;
            while at < cow_mappings.end {
                let (is_told, start) = (self.dirty.blocks[at].is_told, at);
                at = (start..cow_mappings.end)
                    .find(|at| self.dirty.blocks[*at].is_told != is_told)
                    .unwrap_or(cow_mappings.end);
                let wanted = if is_told { ScanFor::Unmarked } else { ScanFor::Private };
                let (where_they_are, dirty) = ((&region.bytes_of(&(start..at)), self.place), &mut *self.dirty);
                region.scan(wanted, where_they_are, &mut [PageRun::default(); MOST_RUNS], |run, _| {
                    dirty.find(run.start / BASE_PAGE..run.end / BASE_PAGE);
                    Ok::<(), Stop>(())
                })?;
            }
        }
        if self.dirty.lacks_room() {
            self.drop_all()?;
        }
        Ok(faults)
    }

    /// Whether the entry is a CoW mapping of the snapshot's block.
    pub(super) fn covers_same(&self, index: usize) -> bool {
        let entry = self.region.table.get(EntryIndex(index));
        entry.is_cow_mapping() && entry.block() == self.frozen.entries.get(EntryIndex(index)).block()
    }

    /// The block that page `nth` of the list lies in.
    fn block_of(&self, nth: usize) -> usize {
        self.region.pool().block_size.count(self.dirty.pages[nth].number * BASE_PAGE)
    }

    /// Puts back all private pages that cover a block of the snapshot. The others go when their block is exchanged.
    pub(super) fn put_back(&mut self) -> Result<(), Stop> {
        let (mut nth, mut kept, mut dirty) = (0, 0, 0);
        while nth < self.dirty.pages.len() {
            let (first, index) = (nth, self.block_of(nth));
            while nth < self.dirty.pages.len() && self.block_of(nth) == index {
                nth += 1;
            }
            let entry = self.region.table.get(EntryIndex(index));
            let Some(block) = entry.block().filter(|_| self.covers_same(index)) else { continue };
            let end = nth - usize::from(seeded!("reset-puts-back-a-page-too-few"));
            let written = self.put_back_over(first..end, kept, index, block);
            if nth - first <= self.region.pool().block_size.bytes() / BASE_PAGE / MANY_ONE_IN {
                self.region.captured.keep_by_page(EntryIndex(index));
            }
            match written {
                Ok(written) => (kept, dirty) = (kept + nth - first, dirty + written),
                Err(reason) if self.has_sets => return Err(reason.into()),
                // If one page of a block cannot be put back, all pages of the block are dropped.
                Err(_) => {
                    self.drop_over(&(index..index + 1))?;
                    dirty += nth - first;
                }
            }
        }
        self.dirty.pages.truncate(kept);
        count(&self.region.counters.pages_put_back, dirty as u64);
        self.marks = self.marks_pages();
        if !self.marks && !self.dirty.are_kept() {
            self.drop_kept()?;
        }
        Ok(())
    }

    /// Puts back some pages of one block, and moves them to place `to` of the list. Returns how many of them were
    /// written.
    fn put_back_over(
        &mut self,
        pages: Range<usize>,
        to: usize,
        index: usize,
        block: BlockId,
    ) -> Result<usize, SystemError> {
        let (first, set, mut dirty) =
            (self.region.pool().block_size.len_of(index) / BASE_PAGE, self.set_over(index), 0);
        for (by, nth) in pages.enumerate() {
            let number = self.dirty.pages[nth].number;
            self.expect_page(nth + FETCHED_AHEAD_PAGES);
            let differed = self.restore(index, block, set.as_deref(), number - first)?;
            dirty += usize::from(differed);
            let is_of_snapshot = || set.as_deref().is_some_and(|set| set.slot_of(number - first).is_some());
            let is_wanted = differed || is_of_snapshot() && !seeded!("own-pages-of-the-snapshot-dropped");
            self.dirty.pages[to + by] = Page { number, is_wanted };
        }
        Ok(dirty)
    }

    /// Prefetches page `nth` of the list and the page below it, because the pages lie anywhere.
    fn expect_page(&self, nth: usize) {
        let Some(page) = self.dirty.pages.get(nth) else { return };
        let (size, at) = (self.region.pool().block_size, page.number * BASE_PAGE);
        expect(self.region.addresses.part_at(self.place, &(at..at + BASE_PAGE)).at());
        if let Some(block) = self.region.table.get(EntryIndex(size.count(at))).block() {
            expect(self.region.pool().direct(block).addr() + size.within(at));
        }
    }

    /// Whether it takes less time to drop all private pages and put back all pages of the snapshot's sets than to scan
    /// for private pages.
    fn may_drop_all(&self) -> bool {
        let (all, of) = (0..self.region.table.len(), |index| self.set_over(index).map_or(0, |set| set.len()));
        !self.has_sets || all.map(of).sum::<usize>() * LOOKED_AT_IN_A_FAULT <= self.region.len() / BASE_PAGE
    }

    /// Drops all private pages; or, where it is faster to keep the wanted ones, only the other pages of the list.
    fn drop_kept(&mut self) -> Result<(), Unresolved> {
        if self.may_drop_all() {
            return self.drop_all();
        }
        let (region, place) = (self.region, self.place);
        self.dirty.pages.retain(|page| {
            let bytes = page.number * BASE_PAGE..(page.number + 1) * BASE_PAGE;
            page.is_wanted || region.drop_private(place, &bytes).is_err()
        });
        self.dirty.note_drop();
        Ok(())
    }

    /// Drops all private pages over the snapshot's blocks. Then no set describes private pages, so the reset puts back
    /// all pages of the snapshot's sets.
    fn drop_all(&mut self) -> Result<(), Unresolved> {
        self.dirty.tell_nothing();
        self.dirty.pages.clear();
        self.dirty.note_drop();
        runs(0..self.region.table.len(), |index| self.covers_same(index)).try_for_each(|run| self.drop_over(&run))
    }

    /// Drops the private pages over some of the snapshot's blocks.
    pub(super) fn drop_over(&self, entries: &Range<usize>) -> Result<(), Unresolved> {
        let region = self.region;
        match region.drop_private(self.place, &region.bytes_of(entries)) {
            Ok(()) => return Ok(()),
            // The entries do not say what the staging shows, so the way below is not open.
            Err(refused) if self.place == Place::Staging => return Err(Unresolved::Unmappable(refused)),
            // The kernel does not drop what mlock(2) has locked.
            Err(_) => {}
        }
        for index in entries.clone() {
            let Some(start) = region.table.get(EntryIndex(index)).block() else { continue };
            let (only, shows) = (index..index + 1, Shows::CowMapping { start, access: Access::Read });
            if self.place == Place::Parked {
                // Parked contents may be writable, because threads that write there wait.
                region.cow_map(self.locked, only, self.place)?;
                continue;
            }
            let read_only = |_: Range<usize>, old: Entry| old.in_state(State::CowMapped(Access::Read));
            region.replace(self.locked, only, shows, Event::WriteProtect, read_only)?;
        }
        Ok(())
    }
}
