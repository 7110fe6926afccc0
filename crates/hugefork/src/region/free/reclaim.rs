//! Reclaim drops lazily freed contents, oldest first, when the pool is short of blocks or memory.
//!
//! Windows with something to drop wait in line (table/waiting.rs). One system call drops a run of blocks. A window
//! whose blocks have other holders is shelved; its blocks stay lazily freed.

use std::ops::Range;

use crate::pool::holders::{Droppable, Dropped, LazyHolder};
use crate::pool::shortage::LOOKED_AT_ENTRIES;
use crate::region::state::RegionCore;
use crate::stats::counters::count;
use crate::sys::{Shows, Sys};
use crate::table::split::SplitPage;
use crate::table::transition::{Event, OnReclaim, on_reclaim};
use crate::table::{Entry, Locked};
use crate::types::options::Reserve;
use crate::units::{BASE_PAGE, EntryIndex};

impl<S: Sys> LazyHolder for RegionCore<S> {
    fn oldest_lazy(&self, what: Droppable) -> Option<u32> {
        let keeps_its_blocks = what == Droppable::Blocks && self.accounts.reserve == Reserve::Full;
        if keeps_its_blocks || !self.accounts.has_lazy() {
            return None;
        }
        // Another reclaim may have taken windows out of the line and be about to drop their contents.
        let _looking = self.table.waiting.look();
        self.table.waiting.oldest()
    }

    fn drop_lazy(&self, until: u32, bytes: usize, what: Droppable, look: &mut usize) -> Dropped {
        let mut slice = LOOKED_AT_ENTRIES.min(*look);
        let before = slice;
        let _looking = self.table.waiting.look();
        let mut reclaim = Reclaim { region: self, bytes, what, dropped: Dropped::default() };
        while reclaim.dropped.bytes < bytes && slice > 0 {
            let Some(windows) = self.table.waiting.take(until, reclaim.most_windows(slice)) else { break };
            reclaim.windows(windows, &mut slice);
        }
        *look -= before - slice;
        reclaim.dropped
    }

    fn recall_lazy(&self, changes: u64) -> bool {
        self.accounts.has_lazy() && self.table.waiting.recall(&self.table.waiting.look(), changes)
    }
}

/// One search through a region for contents that may be dropped.
struct Reclaim<'a, S: Sys> {
    region: &'a RegionCore<S>,
    /// The number of bytes to drop.
    bytes: usize,
    what: Droppable,
    dropped: Dropped,
}

impl<S: Sys> Reclaim<'_, S> {
    /// The number of windows to take: as many as may be locked at once, but no more than are needed or may be visited.
    fn most_windows(&self, look: usize) -> usize {
        let needed = self.region.pool().block_size.count(self.bytes - self.dropped.bytes).min(look);
        (self.region.table.window(EntryIndex(needed)) + 1).min(self.region.most_held())
    }

    /// Visits windows that were taken out of the line, and drops what is lazily freed in them.
    fn windows(&mut self, windows: Range<usize>, look: &mut usize) {
        let table = &self.region.table;
        let held = table.lock_windows(windows.clone());
        let publishing = self.region.lock.shared();
        let locked = Locked::windows(&held, &publishing);
        let mut rest = table.entries_of(windows.clone());
        while !rest.is_empty() && self.dropped.bytes < self.bytes && *look > 0 {
            let run = self.run_in(rest.clone());
            if run.is_empty() {
                rest.start += 1;
                self.split(locked, EntryIndex(rest.start - 1));
            } else {
                rest.start = run.end;
                self.run(locked, run.start..rest.end.min(run.end + usize::from(seeded!("reclaim-one-block-too-far"))));
            }
            *look = look.saturating_sub(run.len().max(1));
        }
        self.line_up(windows, rest.start);
    }

    /// The blocks at the start of `entries` that one call can drop, no more than are wanted.
    fn run_in(&self, entries: Range<usize>) -> Range<usize> {
        let wanted = (self.bytes - self.dropped.bytes).div_ceil(self.region.pool().block_size.bytes());
        let most = entries.end.min(entries.start.saturating_add(wanted));
        let mut end = entries.start;
        while end < most && self.on(EntryIndex(end)) == OnReclaim::ShowZeros {
            end += 1;
        }
        entries.start..end
    }

    /// Puts windows that were not visited to their end back in line, and shelves those that still have something to
    /// drop.
    fn line_up(&self, windows: Range<usize>, looked_to: usize) {
        let table = &self.region.table;
        for window in windows.rev() {
            let mut entries = table.entries_of(window..window + 1);
            if entries.end > looked_to {
                table.waiting.put_back(window);
            } else if entries.any(|index| self.has_lazy(EntryIndex(index))) {
                table.waiting.shelve(window);
            } else {
                table.waiting.leave(window);
            }
        }
    }

    fn on(&self, index: EntryIndex) -> OnReclaim {
        let entry = self.region.table.get(index);
        let on = on_reclaim(entry.state(), self.region.held(entry)).1;
        debug_assert!(
            !self.region.pins.has(index) || on == OnReclaim::Nothing,
            "a pinned block is writable, and no more"
        );
        on
    }

    fn has_lazy(&self, index: EntryIndex) -> bool {
        let is_lazy = matches!(self.region.table.get(index), Entry::Lazy(_));
        is_lazy || self.region.split(index).is_some_and(|split| split.pages.count(SplitPage::Lazy) > 0)
    }

    /// Drops a run of blocks. If the kernel refuses now, `note_change` lets a later reclaim try again.
    fn run(&mut self, locked: Locked<'_>, entries: Range<usize>) {
        let (region, count_of) = (self.region, entries.len());
        if region.replace(locked, entries, Shows::Zeros, Event::Reclaim, |_, _| Entry::Zero).is_err() {
            return region.pool().frames.note_change();
        }
        self.dropped.bytes += region.pool().block_size.len_of(count_of);
        self.count_blocks(count_of);
    }

    /// Drops the lazily freed pages of a split block, and the block itself when no page is left.
    fn split(&mut self, locked: Locked<'_>, index: EntryIndex) {
        let Some(split) = self.region.split(index).filter(|_| self.on(index) == OnReclaim::DropPages) else { return };
        let pages = split.pages;
        let is_all = pages.count(SplitPage::Lazy) + pages.count(SplitPage::Dropped) == pages.len();
        if self.what == Droppable::Blocks && !is_all {
            return;
        }
        for run in pages.runs_of(0..pages.len(), SplitPage::Lazy) {
            if !split.drop_pages(locked, run.clone()) {
                self.region.pool().frames.note_change();
                break;
            }
            self.dropped.bytes += run.len() * BASE_PAGE;
        }
        if split.end_if_dropped(locked) {
            self.count_blocks(1);
        }
    }

    fn count_blocks(&mut self, blocks: usize) {
        self.dropped.blocks += blocks;
        count(&self.region.counters.blocks_reclaimed, blocks as u64);
    }
}
