//! What a reset does with private pages over the snapshot's blocks: they get the block's bytes and stay, so that the
//! next write to them takes no fault.
//!
//! Which pages are private is known from the last reset (state/dirty_list.rs), unless a fault has come since. A page
//! that was not written to for some resets goes back to the kernel. So what is not written any more soon costs nothing.

use std::ops::Range;

use super::{Reset, Stop};
use crate::region::state::{Page, Unresolved};
use crate::stats::counters::count;
use crate::sys::restore::expect;
use crate::sys::{Access, Shows, Sys, SystemError};
use crate::table::State;
use crate::table::transition::Event;
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// A page goes back to the kernel when it was not written to for so many resets: to look at it costs a tenth of the
/// fault that it saves.
const IDLE_RESETS: u8 = 8;

/// After so many already if most pages are not written to again: then they are others each time.
const IDLE_RESETS_AMONG_MANY: u8 = 2;

/// One is compared and copied in 200 ns.
const FETCHED_AHEAD_PAGES: usize = 2;

/// If more pages than one in so many are private, a block of its own may do the region better.
const MANY_ONE_IN: usize = 4;

impl<S: Sys> Reset<'_, S> {
    /// Looks which pages are private, unless no fault has made any since the last look. Returns how many faults there
    /// were before.
    pub(super) fn look(&mut self) -> Result<u64, Stop> {
        let (region, sys) = (self.region, &self.region.pool().sys);
        let faults = sys.minor_faults();
        if self.dirty.seen_at == Some(faults) {
            return Ok(faults);
        }
        self.dirty.begin();
        let mut last = 0;
        for cow_mappings in region.cow_mappings(0..region.table.len()) {
            let mut at = cow_mappings.start;
            while at < cow_mappings.end {
                let (is_told, start) = (self.dirty.told[at], at);
                at = (start..cow_mappings.end).find(|at| self.dirty.told[*at] != is_told).unwrap_or(cow_mappings.end);
                self.look_at(start..at, is_told, &mut last)?;
            }
        }
        Ok(faults)
    }

    /// Looks which pages over CoW mappings are private, or have no mark.
    fn look_at(&mut self, entries: Range<usize>, is_told: bool, last: &mut usize) -> Result<(), Stop> {
        let (sys, bytes) = (&self.region.pool().sys, self.region.bytes_of(&entries));
        let mut at = bytes.start;
        while at < bytes.end {
            let part = self.region.addresses.part_at(self.place, &(at..bytes.end));
            let scanned = match is_told {
                true => sys.unmarked_pages(part, &mut self.dirty.runs)?,
                false => sys.private_pages(part, &mut self.dirty.runs)?,
            };
            for nth in 0..scanned.runs {
                let run = self.dirty.runs[nth];
                let offset = |address: u64| at + (address as usize - part.at());
                self.dirty.find(offset(run.start) / BASE_PAGE..offset(run.end) / BASE_PAGE, last)?;
            }
            at += scanned.looked_at;
        }
        Ok(())
    }

    /// Whether the entry shows the snapshot's block, with private pages over it.
    pub(super) fn covers_same(&self, index: usize) -> bool {
        let entry = self.region.table.get(EntryIndex(index));
        entry.is_cow_mapping() && entry.block() == self.frozen.entries.get(EntryIndex(index)).block()
    }

    /// The block that page `nth` of those that are known lies in.
    fn block_of(&self, nth: usize) -> usize {
        self.region.pool().block_size.count(self.dirty.pages[nth].number() * BASE_PAGE)
    }

    /// Puts all private pages back that cover a block of the snapshot. Those elsewhere go when the block is exchanged.
    pub(super) fn put_back(&mut self) -> Result<(), Stop> {
        let (mut nth, mut kept, mut dirty) = (0, 0, 0);
        while nth < self.dirty.pages.len() {
            let (first, index) = (nth, self.block_of(nth));
            while nth < self.dirty.pages.len() && self.block_of(nth) == index {
                nth += 1;
            }
            let entry = self.region.table.get(EntryIndex(index));
            let Some(block) = entry.block().filter(|_| self.covers_same(index)) else { continue };
            let written = self.put_back_over(first..nth, kept, index, block);
            if nth - first <= self.region.pool().block_size.bytes() / BASE_PAGE / MANY_ONE_IN {
                self.region.density.keep_by_page(EntryIndex(index));
            }
            match written {
                Ok(written) => (kept, dirty) = (kept + nth - first, dirty + written),
                Err(reason) if self.has_sets => return Err(reason.into()),
                // Where some cannot be put back, all go.
                Err(_) => {
                    self.drop_over(index, block)?;
                    dirty += nth - first;
                }
            }
        }
        self.dirty.pages.truncate(kept);
        count(&self.region.counters.pages_put_back, dirty as u64);
        self.drop_idle(if kept > 2 * dirty { IDLE_RESETS_AMONG_MANY } else { IDLE_RESETS });
        Ok(())
    }

    /// Puts some pages of one block back, and moves them to the place `to` of the list. Returns how many were written.
    fn put_back_over(
        &mut self,
        pages: Range<usize>,
        to: usize,
        index: usize,
        block: BlockId,
    ) -> Result<usize, SystemError> {
        let (region, pool) = (self.region, self.region.pool());
        let (start, set, mut dirty) = (pool.block_size.len_of(index), self.set_over(index), 0);
        let access = self.access_to(index);
        for (by, nth) in pages.enumerate() {
            let page = self.dirty.pages[nth];
            self.expect_page(nth + FETCHED_AHEAD_PAGES);
            let at = page.number() * BASE_PAGE;
            let part = region.addresses.part_at(self.place, &(at..at + BASE_PAGE));
            let within = (at - start) / BASE_PAGE;
            let slot = set.as_deref().and_then(|set| set.slot_of(within));
            let from = self.page_of(block, slot, within);
            // SAFETY: the entry is a CoW mapping of this block, with this access. Nobody writes to the block or the
            // set's slot, since the snapshot holds them, and no other thread writes to the region.
            let differed = unsafe { pool.sys.restore(part, access, from) }?;
            dirty += usize::from(differed);
            // A page of the snapshot's own has to stay.
            let idle = if differed || slot.is_some() { 0 } else { page.idle().saturating_add(1) };
            self.dirty.pages[to + by] = Page::new(page.number(), idle);
        }
        Ok(dirty)
    }

    /// Has the processor fetch page `nth` of those that are known, and what is below it: they lie anywhere.
    fn expect_page(&self, nth: usize) {
        let Some(page) = self.dirty.pages.get(nth) else { return };
        let (size, at) = (self.region.pool().block_size, page.number() * BASE_PAGE);
        expect(self.region.addresses.part_at(self.place, &(at..at + BASE_PAGE)).at());
        if let Some(block) = self.region.table.get(EntryIndex(size.count(at))).block() {
            expect(self.region.pool().direct(block).addr() + size.within(at));
        }
    }

    /// Gives pages back to the kernel that were not written to for so many resets. They show what they have shown.
    fn drop_idle(&mut self, limit: u8) {
        let (mut nth, mut kept) = (0, 0);
        while nth < self.dirty.pages.len() {
            let first = self.dirty.pages[nth];
            if first.idle() < limit {
                (self.dirty.pages[kept], kept, nth) = (first, kept + 1, nth + 1);
                continue;
            }
            let goes_along = |(by, page): (usize, Page)| page == Page::new(first.number() + by, page.idle().max(limit));
            let pages = self.dirty.pages[nth..].iter().copied().enumerate();
            let count = pages.take_while(|&page| goes_along(page)).count();
            let bytes = first.number() * BASE_PAGE..(first.number() + count) * BASE_PAGE;
            if self.region.drop_private(self.place, &bytes).is_err() {
                self.dirty.pages.copy_within(nth..nth + count, kept);
                kept += count;
            }
            nth += count;
        }
        self.dirty.pages.truncate(kept);
    }

    /// Drops the private pages over one block.
    fn drop_over(&mut self, index: usize, block: BlockId) -> Result<(), Unresolved> {
        let (region, only) = (self.region, index..index + 1);
        if region.drop_private(self.place, &region.bytes_of(&only)).is_ok() {
            return Ok(());
        }
        // The kernel does not drop what mlock(2) has locked.
        let shows = Shows::CowMapping { start: block, access: Access::Read };
        let remapped = region.remap(self.locked, self.place, &only, shows)?;
        remapped.published(
            region.store(self.locked, Event::WriteProtect, only, |_, old| old.in_state(State::CowMapped(Access::Read))),
        );
        Ok(())
    }
}
