//! Resets where snapshots hold pages over blocks. The snapshot's sets (pool/page_set.rs) have the bytes of its pages.
//! The sets that were captured of the region (pool/captured.rs) say which bytes the region's own private pages have.
//!
//! | the region's entry | what the reset puts back |
//! |---|---|
//! | shows the snapshot's block, and a captured set describes it | pages without a mark, and where both sets differ |
//! | … and no captured set describes it | all private pages, and those of the snapshot's set |
//! | shows something else | the snapshot's block, with the pages of its set |
//! | pinned | the bytes of the snapshot's block, and then the pages of its set |
//!
//! So the cost is that of the pages that differ, and of one scan for pages without a mark. Pages that get the bytes of
//! the block stay private. Afterwards the snapshot's set counts as the set that was captured last: a page that was put
//! back has no mark, or had the same bytes before. A reset to another snapshot than the last one marks these pages, so
//! that the next reset does not compare them again.

use std::mem;
use std::ops::Range;

use super::put_back::MANY_ONE_IN;
use super::{Reset, Stop};
use crate::mapping::addresses::Place;
use crate::mem::EngineArc;
use crate::pool::page_set::PageSet;
use crate::ranges::runs;
use crate::region::private::PAGES_AT_ONCE;
use crate::region::state::{DirtyList, RegionCore, Unresolved};
use crate::snapshot::core::SnapshotCore;
use crate::stats::counters::count;
use crate::sys::{Access, PageRun, ScanFor, Sys, SystemError};
use crate::table::{Entry, Locked};
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

impl<S: Sys> RegionCore<S> {
    /// Gives a new region the pages that a snapshot has over its blocks. The region shows these blocks and nothing
    /// else, and no other thread knows the region.
    pub(in crate::region) fn take_pages_of(
        &self,
        frozen: &SnapshotCore<S>,
        locked: Locked<'_>,
        dirty: &mut DirtyList,
    ) -> Result<(), Unresolved> {
        let mut reset = Reset::new((self, frozen), (locked, None), dirty, false);
        let taken = reset.take_sets().and_then(|()| Ok(reset.allow_writes()?)).and_then(|()| reset.put_back_by_sets());
        match taken {
            Ok(_) => reset.note_sets(),
            Err(Stop::At { reason, .. }) => return Err(reason),
            Err(Stop::Incomplete) => unreachable!("it shows the snapshot's blocks"),
        }
        Ok(())
    }

    /// Whether a reset may give the region pages of a snapshot, over blocks that both hold.
    pub(in crate::region) fn may_take_pages(&self) -> bool {
        self.may_share_pages() && self.may_cow_map()
    }

    /// Whether a reset can write to all private pages. A page that it cannot write to is dropped instead; then the
    /// region shows the block's page, which need not be what a set has.
    pub(super) fn puts_back_all(&self) -> bool {
        self.pool().sys.writes_through()
    }
}

impl<S: Sys> Reset<'_, S> {
    /// Whether pages are put back by sets. Then the list of private pages does not have all of them.
    pub(super) fn goes_by_sets(&self) -> bool {
        self.has_sets || self.dirty.are_told
    }

    /// Finds the blocks whose private pages the last captured set describes. If a set described a block at the last
    /// reset and does not now, page tables are scanned again, because the list of that reset lacks the pages of that
    /// set.
    pub(super) fn tell(&mut self) {
        let region = self.region;
        if !self.has_sets && !region.captured.are_any() {
            return self.dirty.tell_nothing();
        }
        let is_known = self.dirty.seen_at == Some(region.pool().sys.minor_faults());
        let are_needed = self.has_sets || self.dirty.are_told || !is_known;
        let are_asked = self.place == Place::Own && region.puts_back_all() && are_needed;
        self.dirty.are_told = false;
        for index in 0..region.table.len() {
            let is_told = are_asked
                && region.captured.has_all_marked(EntryIndex(index))
                && self.covers_same(index)
                && self.last(index).is_some();
            if mem::replace(&mut self.dirty.blocks[index].is_told, is_told)
                && !is_told
                && !seeded!("list-outlives-its-set")
            {
                self.dirty.seen_at = None;
            }
            self.dirty.are_told |= is_told;
        }
    }

    /// The last set that was captured of the region's pages over the block that its entry shows.
    fn last(&self, index: usize) -> Option<EngineArc<PageSet<S>>> {
        let block = self.region.table.get(EntryIndex(index)).block();
        self.region.captured.last(EntryIndex(index)).filter(|last| Some(last.base) == block)
    }

    /// The pages that the snapshot has over a block.
    pub(super) fn set_over(&self, index: usize) -> Option<EngineArc<PageSet<S>>> {
        if self.has_sets { self.frozen.set_over(EntryIndex(index)) } else { None }
    }

    /// The address of a page of the snapshot: in the slot of the set, if that has the page, or else in the block.
    fn page_of(&self, block: BlockId, set: Option<&PageSet<S>>, page: usize) -> *const u8 {
        let pool = self.region.pool();
        let below = || pool.direct(block).wrapping_add(page * BASE_PAGE).cast_const();
        set.and_then(|set| set.slot_of(page)).map_or_else(below, |slot| pool.slot(slot).cast_const())
    }

    /// Gives a page of a CoW mapping, over the `block` of the snapshot, the snapshot's bytes. True if it had others.
    pub(super) fn restore(
        &self,
        index: usize,
        block: BlockId,
        set: Option<&PageSet<S>>,
        page: usize,
    ) -> Result<bool, SystemError> {
        let (region, pool) = (self.region, self.region.pool());
        let at = pool.block_size.len_of(index) + page * BASE_PAGE;
        let part = region.addresses.part_at(self.place, &(at..at + BASE_PAGE));
        let is_open = region.table.get(EntryIndex(index)).is_writable_cow_mapping();
        let access = if is_open { Access::ReadWrite } else { Access::Read };
        // SAFETY: the entry is a CoW mapping of this block, with this access. Nobody writes to the block or the set's
        // slot, since the snapshot holds them, and no other thread writes to the region.
        unsafe { pool.sys.restore(part, access, self.page_of(block, set, page)) }
    }

    /// Makes CoW mappings of the snapshot's blocks that the region shows and over which the snapshot has pages. This
    /// changes no bytes.
    pub(super) fn take_sets(&mut self) -> Result<(), Stop> {
        let region = self.region;
        let can_fill = !self.is_held || region.addresses.has_staging();
        if self.has_sets && !(region.may_take_pages() && can_fill) {
            return Err(Stop::Incomplete);
        }
        for index in (0..region.table.len()).map(EntryIndex).filter(|_| self.has_sets) {
            let (entry, block) = (region.table.get(index), self.frozen.entries.get(index).block());
            let is_shared = matches!(entry, Entry::Shared(..)) && entry.block() == block;
            if is_shared && self.set_over(index.0).is_some() && !region.pins.has(index) {
                region.cow_map(self.locked, index.0..index.0 + 1, Place::Own)?;
            }
        }
        Ok(())
    }

    /// Puts back the pages that are not in the list of private pages. Returns how many of them it wrote: these have no
    /// mark any more, and are not in the list either.
    pub(super) fn put_back_by_sets(&mut self) -> Result<u64, Stop> {
        if !self.goes_by_sets() {
            return Ok(0);
        }
        let mut written = 0;
        for index in 0..self.region.table.len() {
            let set = self.set_over(index);
            let last = if self.dirty.blocks[index].is_told { self.last(index) } else { None };
            if set.is_none() && last.is_none() {
                continue;
            }
            if !self.covers_same(index) {
                continue;
            }
            // A page that is in neither set has the bytes of the block, or was put back by the list.
            written += self.put_back_differences(index, last.as_deref(), set.as_deref())?;
        }
        count(&self.region.counters.pages_put_back, written);
        Ok(written)
    }

    /// Gives the region the snapshot's bytes in the pages where two sets over one block differ.
    fn put_back_differences(
        &self,
        index: usize,
        last: Option<&PageSet<S>>,
        set: Option<&PageSet<S>>,
    ) -> Result<u64, Unresolved> {
        let Some(block) = self.region.table.get(EntryIndex(index)).block() else { return Ok(0) };
        let (mut written, mut came) = (0, Ok(()));
        PageSet::each_difference(last, set, |page| {
            if came.is_ok() && !seeded!("reset-forgets-where-sets-differ") {
                let restored = self.restore(index, block, set, page);
                written += u64::from(restored.is_ok_and(|differed| differed));
                came = restored.map(drop);
            }
        });
        came?;
        Ok(written)
    }

    /// Stores the sets that describe the region's private pages now.
    pub(super) fn note_sets(&self) {
        if !self.goes_by_sets() {
            return;
        }
        for index in 0..self.region.table.len() {
            let (set, region) = (self.set_over(index).filter(|_| self.covers_same(index)), self.region);
            let had_one = region.captured.last(EntryIndex(index)).is_some();
            if set.is_some() || self.dirty.blocks[index].is_told || had_one && self.has_sets {
                let base = region.table.get(EntryIndex(index)).block().filter(|_| self.dirty.blocks[index].is_told);
                // All private pages that have a mark have the bytes of the block.
                let empty = || base.map(|base| EngineArc::new(PageSet::empty(region.pool(), base)));
                region.captured.replace(EntryIndex(index), set.or_else(empty));
            }
        }
    }

    /// Whether this reset marks the pages that it puts back. A program that goes back to one snapshot again and again
    /// writes to the same pages, which takes no fault as long as they have no marks. So a reset marks pages only if the
    /// last one was to another snapshot, or if a first scan has found pages that were not written: the program may have
    /// only read them.
    pub(super) fn marks_pages(&self) -> bool {
        let region = self.region;
        let is_elsewhere = region.accounts.origin.get() != self.frozen.id;
        let is_possible = self.goes_by_sets() && region.captured.are_tracked() && self.place == Place::Own;
        is_possible && (is_elsewhere || self.dirty.has_new_unwanted())
    }

    /// Marks the pages that sets describe, as a cut does. Then the next reset finds only pages that are written from
    /// now on.
    pub(super) fn mark_told(&mut self) {
        let (region, size, all) = (self.region, self.region.pool().block_size, 0..self.region.table.len());
        let mut next = all.start;
        while let Some(run) = self.first_by_set(next..all.end) {
            next = run.end;
            let are_known = run.clone().all(|index| region.captured.has_all_marked(EntryIndex(index)));
            if are_known && self.mark_run(&run).is_some() {
                // The list of private pages lacks those of the set.
                self.dirty.blocks[run].iter_mut().for_each(|block| block.is_told = true);
                self.dirty.are_told = true;
            } else {
                region.captured.outdate(run);
            }
        }
        if self.dirty.forget_marked(|page| size.count(page * BASE_PAGE), region.len() / BASE_PAGE / MANY_ONE_IN) {
            // So the next reset finds all private pages, and drops those that are not written to any more.
            region.captured.outdate(all);
        }
    }

    /// The first run of blocks whose pages are put back by sets.
    fn first_by_set(&self, entries: Range<usize>) -> Option<Range<usize>> {
        let is_by_set = |index: usize| self.dirty.blocks[index].is_told || self.set_over(index).is_some();
        runs(entries, |index| is_by_set(index) && self.covers_same(index)).next()
    }

    /// Marks the pages of some blocks. None if that fails, or if the kernel has written to such a page for this thread
    /// since it was put back.
    fn mark_run(&self, run: &Range<usize>) -> Option<()> {
        let (region, pool, bytes) = (self.region, self.region.pool(), self.region.bytes_of(run));
        if !pool.sys.track_writes(region.addresses.part(&bytes)) {
            return None;
        }
        let mut are_marked = true;
        let mut runs = [PageRun::default(); PAGES_AT_ONCE];
        let scanned = self.region.scan(ScanFor::UnmarkedAndMark, (&bytes, Place::Own), &mut runs, |run, _| {
            for (index, pages) in region.by_block(&run) {
                let (block, set) = (region.table.get(index).block(), self.set_over(index.0));
                let Some(block) = block else { continue };
                for offset in pages.step_by(BASE_PAGE) {
                    let within = pool.block_size.within(offset) / BASE_PAGE;
                    let from = self.page_of(block, set.as_deref(), within);
                    let one = region.addresses.part(&(offset..offset + BASE_PAGE));
                    // SAFETY: the page can be read, and nobody writes to the block or the slot, since the snapshot
                    // holds both.
                    are_marked &= !unsafe { pool.sys.shown_differs(one, &*from.cast()) };
                }
            }
            Ok::<(), SystemError>(())
        });
        (scanned.is_ok() && are_marked && region.captured.are_tracked()).then_some(())
    }
}
