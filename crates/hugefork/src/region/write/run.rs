//! Chooses the neighbours that a fault treats together with its block.
//!
//! Blocks smaller than 2 MiB are taken, zeroed and mapped in runs of neighbours in the same state, one window at most.
//! With a mapping for each block, 256 MiB of 4 KiB blocks would use up `vm.max_map_count`. Copies stay single while
//! mappings are plentiful, because the purpose of small blocks is to copy little.
//!
//! In a stream, a fault also treats the next blocks. It only tries their locks, so no fault waits for another lock
//! while it holds more than its own.

use core::ops::Range;

use super::fault::Fault;
use crate::region::state::history::{self, Direction};
use crate::sys::{Merging, Sys};
use crate::table::transition::{Grain, Held, OnWrite, on_write};
use crate::table::{Entry, WindowsGuard};
use crate::types::options::CopyGrain;
use crate::units::EntryIndex;

/// The most entries that one fault makes writable without a clear or copy.
const MOST_REUSED_ENTRIES: usize = 512;

/// Blocks are given in runs while at least one in this many blocks of the pool is free. Below that, a fault takes only
/// the block that it needs.
const SCARCE_ONE_IN: usize = 8;

/// The bytes that a write by page turns into CoW mappings at once. The kernel can move the page tables of 1 GiB as one
/// entry (sys/linux/parked.rs). With 128 MiB, 100 writes to 1 GiB took 1.2 ms, and with 1 GiB 0.8 (docs/design.md).
const COW_MAPPED_AT_ONCE_BYTES: usize = 1 << 30;

/// The entries that one fault treats, and the locks of their windows on both sides of that of the entry that faulted.
type Run<'a> = ([WindowsGuard<'a>; 2], Range<usize>);

impl<'a, S: Sys> Fault<'a, S> {
    /// The entries that a first write gives blocks to.
    pub(super) fn unwritten(&self) -> Run<'a> {
        let is_unwritten = |entry: Entry, _| entry == Entry::Zero;
        if !self.leaves_enough() {
            self.only()
        } else if self.region.table.is_one_a_window() {
            self.onward(history::MOST_BLOCKS_A_FAULT, |entry, by| is_unwritten(entry, by) && self.has_memory(by))
        } else {
            self.around(is_unwritten)
        }
    }

    /// The entries that a write to a shared block copies. The caller holds the region lock.
    pub(super) fn held_by_others(&self) -> Run<'a> {
        let region = self.region;
        if region.accounts.limit.is_some() {
            // Each copy is checked against the limit before it is made.
            return self.only();
        }
        let budget = region.pool().sys.budget();
        // A lazily freed block is not worth a copy that no write has asked for.
        let is_held_by_others =
            |entry: Entry, _| matches!(entry, Entry::Shared(block, _) if !region.is_alone_with(block));
        if region.table.is_one_a_window() && self.leaves_enough() {
            let belongs = |entry, by| is_held_by_others(entry, by) && self.has_memory(by);
            self.onward(history::MOST_BLOCKS_A_FAULT, belongs)
        } else if budget.fits(budget.limit() / 2) {
            self.only()
        } else {
            self.around(is_held_by_others)
        }
    }

    /// The entries that a write makes writable together with the one that faulted, which is `entry`: their blocks are
    /// neighbours in the pool, and nobody else holds them. The caller holds the region lock.
    pub(super) fn alike(&self, entry: Entry) -> Run<'a> {
        let (region, budget) = (self.region, self.region.pool().sys.budget());
        let is_lazy = |entry: Entry| matches!(entry, Entry::Lazy(_));
        let is_alike = |other: Entry, by: isize| {
            let follows = |block| entry.block().is_some_and(|own| own.is_by(by, block));
            on_write(other.state(), region.held(other), Grain::Block).1 == OnWrite::AllowWrites
                && is_lazy(other) == is_lazy(entry)
                && other.block().is_some_and(follows)
        };
        if region.pool().sys.merging() == Merging::Separate {
            self.only()
        } else if region.table.is_one_a_window() || (is_lazy(entry) && budget.fits(budget.limit() / 2)) {
            // A write cancels lazy free for its own block only, unless it is part of a stream or each such write would
            // take one of the last mappings.
            self.onward(MOST_REUSED_ENTRIES, is_alike)
        } else {
            self.around(is_alike)
        }
    }

    /// The entries that a write by page treats together with the one that faulted, which is `entry`: they are in the
    /// same state, their blocks are neighbours in the pool, and others hold them too. There are at most `most`. The run
    /// lies within [`COW_MAPPED_AT_ONCE_BYTES`], and ends where a lock is not free.
    pub(super) fn alike_by_page(&self, entry: Entry, most: usize) -> Run<'a> {
        let (region, index) = (self.region, self.index.0);
        let (table, size) = (&region.table, region.pool().block_size);
        let belongs = |at: usize| {
            let (other, by) = (table.get(EntryIndex(at)), at as isize - index as isize);
            let follows = |block| entry.block().is_some_and(|own| own.is_by(by, block));
            other.state() == entry.state()
                && !(region.accounts.grain == CopyGrain::Auto && region.captured.is_dense(EntryIndex(at)))
                && other.block().is_some_and(follows)
                // A captured block that stays write-protected costs the next snapshot nothing, so it is left out.
                && region.captured.pages_of(EntryIndex(at)) == 0
                && region.held(other) == Held::ByOthersToo
        };
        let group = size.count(COW_MAPPED_AT_ONCE_BYTES).max(1);
        let start = index / group * group;
        self.extend(start..table.len().min(start + group), most, belongs)
    }

    /// Whether the block that the entry at distance `by` prefers has memory already. A fault waits for the kernel to
    /// provide memory for its own block only.
    fn has_memory(&self, by: isize) -> bool {
        let (region, frames) = (self.region, &self.region.pool().frames);
        let wish = region.placement.hint(EntryIndex(self.index.0.wrapping_add_signed(by)), frames.len());
        !frames.is_free_and_fresh(wish.index())
    }

    /// The run of this entry alone.
    fn only(&self) -> Run<'a> {
        (<[WindowsGuard<'a>; 2]>::default(), self.index.0..self.index.0 + 1)
    }

    /// This entry and the next ones of its stream, `most` in all, up to the first that `belongs` rejects. `belongs`
    /// also gets the distance of each from this entry. If several entries share a lock, the run ends with the window.
    fn onward(&self, most: usize, belongs: impl Fn(Entry, isize) -> bool) -> Run<'a> {
        let (table, index) = (&self.region.table, self.index.0);
        let Some(stream) = self.outlook.stream else { return self.only() };
        let (ahead, window) = (stream.ahead(most), table.window_of(self.index));
        let bounds = if table.is_one_a_window() { 0..table.len() } else { window };
        let within = match stream.direction {
            Direction::Up => index..bounds.end.min(index + ahead + 1),
            Direction::Down => bounds.start.max(index.saturating_sub(ahead))..index + 1,
        };
        self.along(within, belongs)
    }

    /// The entries around this one, in its window and without a gap, that `belongs` accepts. `belongs` also gets the
    /// distance of each from this entry.
    fn around(&self, belongs: impl Fn(Entry, isize) -> bool) -> Run<'a> {
        self.along(self.region.table.window_of(self.index), belongs)
    }

    /// The entries of `within` around this one that may get a block together with it and that `belongs` accepts: both
    /// have a block reserved, or neither has.
    fn along(&self, within: Range<usize>, belongs: impl Fn(Entry, isize) -> bool) -> Run<'a> {
        let (table, index) = (&self.region.table, self.index);
        self.extend(within, usize::MAX, |at| {
            table.is_reserved(index) == table.is_reserved(EntryIndex(at))
                && belongs(table.get(EntryIndex(at)), at as isize - index.0 as isize)
        })
    }

    /// The entries of `within` around this one, without a gap and `most` in all, that `belongs` accepts. Takes the
    /// locks of their windows. The run ends where a lock is not free.
    fn extend(&self, within: Range<usize>, most: usize, belongs: impl Fn(usize) -> bool) -> Run<'a> {
        let (region, table, index) = (self.region, &self.region.table, self.index.0);
        let (mut run, mut locked) = (index..index + 1, table.window_of(self.index));
        let mut comes_along = |at: usize| {
            if locked.contains(&at) {
                return belongs(at);
            }
            let Some(lock) = table.try_lock(EntryIndex(at)).filter(|_| belongs(at)) else { return false };
            lock.keep();
            let window = table.window_of(EntryIndex(at));
            locked = locked.start.min(window.start)..locked.end.max(window.end);
            true
        };
        while run.end < within.end && run.len() < most && comes_along(run.end) {
            run.end += 1;
        }
        while run.start > within.start && run.len() < most && comes_along(run.start - 1) {
            run.start -= 1;
        }
        let (own, windows) = (table.window(self.index), region.windows_of(&locked));
        ([table.kept(windows.start..own), table.kept(own + 1..windows.end)], run)
    }

    /// Whether the fault may take blocks that no write has asked for: an eighth of the pool is left for writes that do.
    fn leaves_enough(&self) -> bool {
        let region = self.region;
        if region.table.is_reserved(self.index) {
            // The blocks are reserved for these entries, whether a write has asked for them or not.
            return true;
        }
        if region.accounts.limit.is_some() {
            return false;
        }
        let frames = &region.pool().frames;
        let ahead = self.outlook.stream.map_or(0, |stream| stream.ahead(history::MOST_BLOCKS_A_FAULT));
        let more = region.table.window_of(self.index).len() + ahead;
        frames.available().saturating_sub(more) >= frames.len() / SCARCE_ONE_IN
    }
}
