//! Lazy free: contents that may be dropped when memory is short, unless they are written again first.
//!
//! ```text
//!   lazy_free ─▶ write-protect, mark ─▶ write: cancelled, nothing lost
//!                                   └─▶ reclaim: dropped, reads as zeros
//! ```
//! User space has no dirty bit. So `lazy_free` takes away the right to write, and the next write faults and cancels the
//! lazy free (`Fault::reuse` in write/fault.rs; for a single page, state/split.rs). A `Lazy` block has not been written
//! to since it was marked.
//!
//! Whole blocks are marked as for a snapshot: under the region lock alone, held exclusively, with one write-protection
//! and one pass. The write-protection may cover entries that cannot be freed, if these are read-only anyway. It leaves
//! out pinned and revoked entries, and CoW mappings. CoW mappings whose blocks the region alone holds were written back
//! before.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::mapping::change::Right;
use crate::ranges::runs;
use crate::region::state::{RegionCore, Unresolved};
use crate::stats::counters::count;
use crate::sync::SignalsBlocked;
use crate::sys::{Access, Sys};
use crate::table::pins::Pinned;
use crate::table::split::SplitPage;
use crate::table::transition::{Event, OnLazyFree, Skipped, on_lazy_free, on_lazy_free_part, on_protect_failed};
use crate::table::{Entry, Locked, State};
use crate::types::error::RegionError;
use crate::units::{BASE_PAGE, EntryIndex};

/// The result of [`Region::lazy_free`](crate::Region::lazy_free), in bytes. The fields add up to the length of the
/// range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LazyFreed {
    /// Freed lazily by this call.
    pub freed: usize,
    /// There was nothing to do: never written, dropped, or lazily freed already.
    pub already: usize,
    /// Skipped: a fork or snapshot holds the block too. Once that is gone, a second call frees it.
    pub shared: usize,
    /// Skipped: pinned. Once the pin is gone, a second call frees it.
    pub pinned: usize,
    /// Skipped: part of a block that cannot be split, because it is on hugetlb.
    pub indivisible: usize,
    /// Skipped: the parent took the block away.
    pub revoked: usize,
    /// Skipped: the ends of the range that do not fill a base page.
    pub unaligned: usize,
}

impl LazyFreed {
    /// Bytes that were skipped, for whatever reason.
    pub fn skipped(&self) -> usize {
        self.shared + self.pinned + self.indivisible + self.revoked + self.unaligned
    }

    fn skip(&mut self, why: Skipped, bytes: usize) {
        *match why {
            Skipped::Already => &mut self.already,
            Skipped::Shared => &mut self.shared,
            Skipped::Pinned => &mut self.pinned,
            Skipped::Indivisible => &mut self.indivisible,
            Skipped::Revoked => &mut self.revoked,
        } += bytes;
    }
}

impl<S: Sys> RegionCore<S> {
    /// Lazily frees the whole base pages of `range`.
    pub(crate) fn lazy_free(&self, range: Range<usize>) -> Result<LazyFreed, RegionError> {
        self.check(&range)?;
        let size = self.pool().block_size;
        let (_, pages, _) = whole(&range, BASE_PAGE);
        let (before, blocks, after) = whole(&pages, size.bytes());
        let is_alone = |index: &usize| self.is_alone_with_cow_mapping(*index);
        self.touched(&pages).filter(is_alone).try_for_each(|index| self.make_own(EntryIndex(index)))?;
        // Not 0, which is the mark of windows that do not wait.
        let mark = self.pool().marks.fetch_add(1, Ordering::Relaxed) % (u32::MAX - 1) + 1;
        let freed = LazyFreed { unaligned: range.len() - pages.len(), ..LazyFreed::default() };
        let mut freeing = Freeing { region: self, mark, freed };
        freeing.parts(before)?;
        if !blocks.is_empty() {
            freeing.blocks(size.count(blocks.start)..size.count(blocks.end)).map_err(|reason| self.error(reason))?;
        }
        freeing.parts(after)?;
        Ok(freeing.freed)
    }

    /// Cancels lazy free for all blocks and pages in `range`, as if each had been written to. Returns how many bytes
    /// that were. A block that is lazily freed as a whole is kept as a whole, even if only a part of it is in the
    /// range.
    pub(crate) fn cancel_lazy_free(&self, range: Range<usize>) -> Result<usize, RegionError> {
        self.check(&range)?;
        let cancelled: usize = self.parts(range).map(|(index, part)| self.keep_at(index, part)).sum();
        count(&self.counters.bytes_cancelled, cancelled as u64);
        Ok(cancelled)
    }

    /// Cancels all lazy free whose contents are not dropped yet, for a caller that is about to hold the region's bytes
    /// exclusively. The bytes cannot change then until `lazy_free` is called again. If there is nothing to cancel, this
    /// only reads two counters.
    pub(crate) fn keep_all(&self) {
        if !self.accounts.has_lazy() {
            return;
        }
        let marked = (0..self.table.windows()).filter(|&window| self.table.waiting.is_waiting(window));
        let entries = marked.flat_map(|window| self.table.entries_of(window..window + 1));
        let kept: usize = entries.map(|index| self.keep_at(EntryIndex(index), 0..self.pool().block_size.bytes())).sum();
        count(&self.counters.bytes_cancelled, kept as u64);
    }

    /// As [`RegionCore::keep`], under the locks that it needs.
    fn keep_at(&self, index: EntryIndex, part: Range<usize>) -> usize {
        self.keep(self.lock_entry(index).locked(), index, part)
    }
}

/// One call of `lazy_free`.
struct Freeing<'a, S: Sys> {
    region: &'a RegionCore<S>,
    /// The number of this call among all calls.
    mark: u32,
    freed: LazyFreed,
}

impl<S: Sys> Freeing<'_, S> {
    /// Puts these windows in line for reclaim, because something in them was lazily freed.
    fn wait_in_line(&self, windows: Range<usize>) {
        self.region.table.waiting.enter(windows, self.mark);
        self.region.pool().frames.note_change();
    }

    /// Frees whole blocks.
    fn blocks(&mut self, entries: Range<usize>) -> Result<(), Unresolved> {
        let region = self.region;
        let windows = region.windows_of(&entries);
        let _signals = SignalsBlocked::new();
        let alone = region.lock.exclusive();
        let before = self.freed.freed;
        let result = self.runs(Locked::alone(&alone), entries);
        if self.freed.freed > before {
            self.wait_in_line(windows);
        }
        result
    }

    /// Splits `entries` into runs that one write-protection may cover.
    fn runs(&mut self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
        let region = self.region;
        if region.accounts.revoked.load(Ordering::Relaxed) == 0
            && !region.pins.are_used()
            && !region.accounts.has_cow_mappings()
        {
            return self.run(locked, entries);
        }
        let is_left_out = |index: &usize| {
            let index = EntryIndex(*index);
            let entry = region.table.get(index);
            region.pins.has(index) || entry == Entry::Revoked || entry.is_cow_mapping()
        };
        entries.clone().filter(is_left_out).for_each(|index| self.skip(EntryIndex(index)));
        runs(entries, |index| !is_left_out(&index)).try_for_each(|run| self.run(locked, run))
    }

    /// The next state of an entry, and what to do for it. The caller has left out pinned blocks.
    fn on(&self, entry: Entry) -> (State, OnLazyFree) {
        on_lazy_free(entry.state(), self.region.held(entry), Pinned::No)
    }

    /// Counts a block of which nothing is freed.
    fn skip(&mut self, index: EntryIndex) {
        let (entry, pinned) = (self.region.table.get(index), self.region.pins.of(index));
        let why = match on_lazy_free(entry.state(), self.region.held(entry), pinned).1 {
            OnLazyFree::Skip(why) => why,
            // The block was skipped because of another holder, which has released it since.
            OnLazyFree::ForbidWrites | OnLazyFree::ForbidPages => Skipped::Shared,
        };
        self.freed.skip(why, self.region.pool().block_size.bytes());
    }

    /// Frees entries that one write-protection covers: one system call and one pass. Other holders may let go of blocks
    /// at any time. So an entry at either end that could not be freed before the call is not freed after it either.
    fn run(&mut self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
        let region = self.region;
        let is_freed = |index: &usize| !matches!(self.on(region.table.get(EntryIndex(*index))).1, OnLazyFree::Skip(_));
        let first = entries.clone().find(is_freed).unwrap_or(entries.end);
        let behind = |last| last + 1 + usize::from(seeded!("lazy-free-one-block-too-far"));
        let end = (first..entries.end).rfind(is_freed).map_or(first, behind);
        (entries.start..first).chain(end..entries.end).for_each(|index| self.skip(EntryIndex(index)));
        if first == end {
            return Ok(());
        }
        let protected = region.site().reprotect(locked, region.bytes_of(&(first..end)), Access::Read)?;
        let right = if seeded!("lazy-where-the-protection-failed") { Right::Granted } else { protected.right() };
        let event = if right == Right::Granted { Event::LazyFree } else { Event::ProtectFailed };
        Ok(protected.published(region.store(locked, event, first..end, |alike, old| self.free(alike, old, right)))?)
    }

    /// The first of the entries that replace `alike`, which begin with `entry`, after a write-protection with the
    /// result `right`.
    fn free(&mut self, alike: Range<usize>, entry: Entry, right: Right) -> Entry {
        let size = self.region.pool().block_size;
        let bytes = size.len_of(alike.len());
        match (self.on(entry), right) {
            ((next, OnLazyFree::ForbidWrites), Right::Granted) => {
                self.freed.freed += bytes;
                entry.in_state(next)
            }
            ((_, OnLazyFree::ForbidWrites), Right::Unknown) => entry.in_state(on_protect_failed(entry.state())),
            ((_, OnLazyFree::ForbidPages), _) => {
                self.free_pages(EntryIndex(alike.start), entry, 0..bytes / BASE_PAGE, right)
            }
            ((_, OnLazyFree::Skip(why)), _) => {
                self.freed.skip(why, bytes);
                entry
            }
        }
    }

    /// The entry that replaces a split entry, after the write-protection of these pages.
    fn free_pages(&mut self, index: EntryIndex, entry: Entry, pages: Range<usize>, right: Right) -> Entry {
        let Some(split) = entry.block().and_then(|block| self.region.pages_of(index, block)) else { return entry };
        let freed = split.free(pages.clone(), right);
        self.freed.freed += freed * BASE_PAGE;
        if right == Right::Granted {
            self.freed.already += (pages.len() - freed) * BASE_PAGE;
        }
        if split.pages.count(SplitPage::Lazy) == split.pages.len() {
            split.forget();
            return entry.in_state(State::Lazy);
        }
        entry
    }

    /// Frees parts of one block, or of two neighbours.
    fn parts(&mut self, bytes: Range<usize>) -> Result<(), RegionError> {
        let region = self.region;
        let mut parts = region.parts(bytes);
        parts.try_for_each(|(index, part)| self.part(index, part).map_err(|reason| region.error(reason)))
    }

    /// Frees pages of one block.
    fn part(&mut self, index: EntryIndex, part: Range<usize>) -> Result<(), Unresolved> {
        let region = self.region;
        // This allocates, so it comes before any lock.
        region.prepare_split(index);
        let guard = region.lock_entry(index);
        let entry = region.table.get(index);
        let (held, pinned) = (region.held(entry), region.pins.of(index));
        let next = match on_lazy_free_part(entry.state(), held, pinned, region.pool().sys.merging()) {
            (_, OnLazyFree::Skip(why)) => {
                self.freed.skip(why, part.len());
                return Ok(());
            }
            (next, OnLazyFree::ForbidWrites | OnLazyFree::ForbidPages) => next,
        };
        let locked = guard.locked();
        let (start, pages) = (region.pool().block_size.len_of(index.0), part.start / BASE_PAGE..part.end / BASE_PAGE);
        let protected = region.site().reprotect(locked, start + part.start..start + part.end, Access::Read)?;
        let right = protected.right();
        let stored = region.store(locked, Event::LazyFreePart, index.0..index.0 + 1, |_, old| {
            if let (Some(split), false) = (region.table.split(index), matches!(old, Entry::Split(_))) {
                let is_writable = matches!(old, Entry::Private(_));
                let kept = if is_writable { SplitPage::Writable } else { SplitPage::Readable };
                split.set(0..split.len(), kept);
            }
            self.free_pages(index, old.in_state(next), pages.clone(), right)
        });
        self.wait_in_line(region.windows_of(&(index.0..index.0 + 1)));
        Ok(protected.published(stored)?)
    }
}

/// The whole units in `range`, between the parts of it before and behind them. If it has none, all of it comes before.
pub(super) fn whole(range: &Range<usize>, unit: usize) -> (Range<usize>, Range<usize>, Range<usize>) {
    let (start, end) = (range.start.next_multiple_of(unit), range.end / unit * unit);
    match start < end {
        true => (range.start..start, start..end, end..range.end),
        false => (range.clone(), range.end..range.end, range.end..range.end),
    }
}
