//! Split blocks, which the region treats page by page because a part of them was lazily freed. This file changes the
//! states of pages that table/split.rs describes.
//!
//! A split block becomes whole again as soon as all of its pages are alike: writable, lazily freed, or dropped.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::core::RegionCore;
use super::unresolved::Unresolved;
use crate::mapping::addresses::Place;
use crate::mapping::change::{Recount, Right};
use crate::pool::frames::Content;
use crate::stats::counters::count;
use crate::sys::{Access, Merging, Sys};
use crate::table::split::{Split, SplitPage};
use crate::table::transition::{Event, OnCancel, on_cancel};
use crate::table::{Entry, Locked, State};
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// A split block of a region.
#[derive(Clone, Copy)]
pub(in crate::region) struct SplitBlock<'a, S: Sys> {
    region: &'a RegionCore<S>,
    index: EntryIndex,
    block: BlockId,
    pub(in crate::region) pages: &'a Split,
}

impl<S: Sys> RegionCore<S> {
    /// The block at `index`, if it is split.
    pub(in crate::region) fn split(&self, index: EntryIndex) -> Option<SplitBlock<'_, S>> {
        let entry = self.table.get(index);
        self.pages_of(index, entry.block().filter(|_| matches!(entry, Entry::Split(_)))?)
    }

    /// The pages of `block`, which is split or is about to be.
    pub(in crate::region) fn pages_of(&self, index: EntryIndex, block: BlockId) -> Option<SplitBlock<'_, S>> {
        Some(SplitBlock { region: self, index, block, pages: self.table.split(index)? })
    }

    /// Makes room for the page states of a block that may be split soon. Allocates, so the caller must hold no lock.
    pub(in crate::region) fn prepare_split(&self, index: EntryIndex) {
        if self.pool().sys.merging() == Merging::Merge {
            self.table.prepare_split(index, self.pool().block_size);
        }
    }

    /// Prepares a split entry for the release of its block. If pages of the block were dropped, this gives back its
    /// other memory too, so that all of it is fresh again. False if that fails: then no other holder may get the block.
    pub(super) fn forget_pages(&self, index: EntryIndex, block: BlockId) -> bool {
        let Some(pages) = self.table.split(index) else { return true };
        self.accounts.lazy_pages.fetch_sub(pages.count(SplitPage::Lazy), Ordering::Relaxed);
        pages.count(SplitPage::Dropped) == 0 || self.pool().give_memory_back(block)
    }

    /// Cancels lazy free of a block as a whole, or of a part of it if it is split. Returns the number of bytes that
    /// were lazily freed.
    pub(in crate::region) fn keep(&self, locked: Locked<'_>, index: EntryIndex, part: Range<usize>) -> usize {
        match (on_cancel(self.table.get(index).state()), self.split(index)) {
            // The block stays read-only. The next write finds out whether it has other holders.
            ((next, OnCancel::Keep), _) => {
                self.store(locked, Event::Cancel, index.0..index.0 + 1, |_, old| old.in_state(next));
                self.pool().block_size.bytes()
            }
            ((_, OnCancel::KeepPages), Some(split)) => {
                split.keep(part.start / BASE_PAGE..part.end.div_ceil(BASE_PAGE)) * BASE_PAGE
            }
            ((_, OnCancel::KeepPages), None) | ((_, OnCancel::Nothing), _) => 0,
        }
    }
}

impl<S: Sys> SplitBlock<'_, S> {
    /// Changes the state of pages. The entry stays as it is.
    fn store_pages(&self, locked: Locked<'_>, pages: Range<usize>, now: SplitPage) -> Recount {
        self.region.store(locked, Event::Write, self.index.0..self.index.0 + 1, |_, entry| {
            self.set(pages.clone(), now);
            entry
        })
    }

    fn bytes(&self, pages: &Range<usize>) -> Range<usize> {
        let start = self.region.pool().block_size.len_of(self.index.0);
        start + pages.start * BASE_PAGE..start + pages.end * BASE_PAGE
    }

    /// Makes `page` writable, or all pages if none is named.
    pub(in crate::region) fn write(&self, locked: Locked<'_>, page: Option<usize>) -> Result<(), Unresolved> {
        let Some(page) = page else { return self.join(locked) };
        let was = self.pages.get(page);
        match was {
            SplitPage::Writable => {}
            SplitPage::Dropped => self.fill(locked, page..page + 1, Access::ReadWrite)?,
            SplitPage::Lazy | SplitPage::Readable => self.allow(locked, page..page + 1)?,
        }
        if was == SplitPage::Lazy {
            count(&self.region.counters.bytes_cancelled, BASE_PAGE as u64);
        }
        if self.pages.count(SplitPage::Lazy) + self.pages.count(SplitPage::Dropped) == 0 {
            return self.join(locked);
        }
        Ok(())
    }

    /// Makes pages that have memory writable.
    fn allow(&self, locked: Locked<'_>, pages: Range<usize>) -> Result<(), Unresolved> {
        let allowed = self.region.site().reprotect(locked, self.bytes(&pages), Access::ReadWrite)?;
        // After a failure some pages may be writable all the same, so they must not count as droppable.
        let now = if allowed.right() == Right::Granted { SplitPage::Writable } else { SplitPage::Readable };
        Ok(allowed.published(self.store_pages(locked, pages, now))?)
    }

    /// Makes the block whole again: writable, with memory for all of its pages.
    fn join(&self, locked: Locked<'_>) -> Result<(), Unresolved> {
        self.fill_all(locked, Access::ReadWrite)?;
        let (only, whole) = (self.index.0..self.index.0 + 1, |_| State::Private);
        let joined = self.region.reprotect(locked, Place::Own, only, Access::ReadWrite, Event::PagesWritable, whole);
        if !matches!(self.region.table.get(self.index), Entry::Split(_)) {
            self.forget();
        }
        Ok(joined?)
    }

    /// Resets the page states, when the entry is no longer split.
    pub(in crate::region) fn forget(&self) {
        self.set(0..self.pages.len(), SplitPage::Readable);
    }

    /// Gives memory to all dropped pages.
    pub(in crate::region) fn fill_all(&self, locked: Locked<'_>, access: Access) -> Result<(), Unresolved> {
        for run in self.pages.runs_of(0..self.pages.len(), SplitPage::Dropped) {
            self.fill(locked, run, access)?;
        }
        Ok(())
    }

    /// Gives memory to these dropped pages.
    fn fill(&self, locked: Locked<'_>, pages: Range<usize>, access: Access) -> Result<(), Unresolved> {
        let start = self.region.pool().offset(self.block) + pages.start * BASE_PAGE;
        let obtained = self.region.pool().sys.obtain(start, pages.len() * BASE_PAGE, 0);
        obtained.map_err(Unresolved::OutOfMemory)?;
        let now = if access == Access::Read { SplitPage::Readable } else { SplitPage::Writable };
        let shown = self.region.site().remap_pages(locked, self.index, &pages, now.shows(start))?;
        shown.published(self.store_pages(locked, pages, now));
        Ok(())
    }

    /// Marks pages as lazily freed, after a call that took away the right to write to them. Returns how many of them
    /// were not lazily freed before. If that call failed, this marks none, because no page may be dropped.
    pub(in crate::region) fn free(&self, pages: Range<usize>, right: Right) -> usize {
        let mut freed = 0;
        for page in pages {
            match (self.pages.get(page), right) {
                (SplitPage::Lazy | SplitPage::Dropped, _) => {}
                (SplitPage::Readable | SplitPage::Writable, Right::Granted) => {
                    self.set(page..page + 1, SplitPage::Lazy);
                    freed += 1;
                }
                (SplitPage::Readable | SplitPage::Writable, Right::Unknown) => {
                    self.set(page..page + 1, SplitPage::Readable);
                }
            }
        }
        freed
    }

    /// Cancels lazy free of these pages. Returns how many were lazily freed.
    pub(in crate::region) fn keep(&self, pages: Range<usize>) -> usize {
        let before = self.pages.count(SplitPage::Lazy);
        self.pages.runs_of(pages, SplitPage::Lazy).for_each(|run| self.set(run, SplitPage::Readable));
        before - self.pages.count(SplitPage::Lazy)
    }

    /// Shows zeros in place of lazily freed pages and gives their memory back. False if the kernel refuses to show
    /// zeros.
    pub(in crate::region) fn drop_pages(&self, locked: Locked<'_>, run: Range<usize>) -> bool {
        let pool = self.region.pool();
        let (start, len) = (pool.offset(self.block) + run.start * BASE_PAGE, run.len() * BASE_PAGE);
        let zeros = SplitPage::Dropped.shows(start);
        let Ok(shown) = self.region.site().remap_pages(locked, self.index, &run, zeros) else { return false };
        // SAFETY: these pages of the block are this region's alone, and are shown nowhere any more.
        if unsafe { pool.sys.punch(start, len) }.is_err() {
            // The memory stays, but its contents must not come back.
            let len = if seeded!("dropped-pages-keep-their-bytes") { 0 } else { len };
            // SAFETY: as above.
            unsafe { pool.direct(self.block).add(run.start * BASE_PAGE).write_bytes(0, len) };
        }
        shown.published(self.store_pages(locked, run, SplitPage::Dropped));
        true
    }

    /// If every page is dropped, gives the block back and makes the entry zero, which its addresses show already.
    pub(in crate::region) fn end_if_dropped(&self, locked: Locked<'_>) -> bool {
        let is_over = self.pages.count(SplitPage::Dropped) == self.pages.len();
        if is_over {
            self.region.pool().frames.set_content(self.block, Content::Fresh);
            let Recount { before, after } =
                self.region.store(locked, Event::PagesDropped, self.index.0..self.index.0 + 1, |_, _| Entry::Zero);
            self.forget();
            self.region.addresses.recount(before, after);
        }
        is_over
    }

    /// Changes the state of pages, and counts those that are lazily freed.
    fn set(&self, pages: Range<usize>, to: SplitPage) {
        let before = self.pages.count(SplitPage::Lazy);
        self.pages.set(pages, to);
        let more = self.pages.count(SplitPage::Lazy).wrapping_sub(before);
        self.region.accounts.lazy_pages.fetch_add(more, Ordering::Relaxed);
    }
}
