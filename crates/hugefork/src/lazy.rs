//! Lazy free: contents that may be dropped when memory is short, unless they are written again first.
//!
//! ```text
//!   lazy_free ─▶ write-protect, mark ─▶ write: cancelled, nothing lost
//!                                   └─▶ reclaim: dropped, reads as zeros
//! ```
//!
//! | block | `lazy_free` | reclaim |
//! |---|---|---|
//! | wholly inside, held once | `Lazy`; runs are one write-protection and one pass | dropped in runs |
//! | partly inside, held once | `Split`: its covered pages `Lazy` | pages dropped, memory to the system |
//! | partly inside, hugetlb | skipped | |
//! | shared | skipped | if it became so later: kept, stays lazily freed |
//! | pinned | skipped: a pin is a write that goes on | |
//! | never written, lazily freed already | nothing to do | |
//!
//! There is no dirty bit to look at in user space. So marking takes the right to write away, and the write that
//! follows faults and cancels: `fault/resolver.rs`. What is `Lazy` has not been written since.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::error::RegionError;
use crate::fault::resolver::Unresolved;
use crate::space::{Space, joined};
use crate::stats::count;
use crate::sync::SignalsBlocked;
use crate::sys::{Access, Merging, Sys};
use crate::table::Entry;
use crate::table::split::{Split, SplitPage};
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// What [`Region::lazy_free`](crate::Region::lazy_free) came to, in bytes; together they are the range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LazyFreed {
    /// Lazily freed now.
    pub freed: usize,
    /// Nothing to do: never written, dropped, or lazily freed already.
    pub already: usize,
    /// Skipped: a fork or snapshot holds the block too. Once that is gone, a second call takes it.
    pub shared: usize,
    /// Skipped: pinned. Once the pin has gone, a second call takes it.
    pub pinned: usize,
    /// Skipped: part of a block that cannot be split, since it is on hugetlb.
    pub indivisible: usize,
    /// Skipped: taken away by the region that this one was forked from.
    pub revoked: usize,
    /// Skipped: the ends of the range that are no whole base page.
    pub unaligned: usize,
}

impl LazyFreed {
    /// Bytes that were skipped, for whatever reason.
    pub fn skipped(&self) -> usize {
        self.shared + self.pinned + self.indivisible + self.revoked + self.unaligned
    }
}

impl<S: Sys> Space<S> {
    /// Lazily frees the whole base pages of `range`.
    pub(crate) fn lazy_free(&self, range: Range<usize>) -> Result<LazyFreed, RegionError> {
        self.check(&range)?;
        let pages = whole(&range, BASE_PAGE);
        let mut done = LazyFreed { unaligned: range.len() - pages.len(), ..LazyFreed::default() };
        if pages.is_empty() {
            return Ok(done);
        }
        let size = self.pool().block_size;
        let blocks = whole(&pages, size.bytes());
        // Zero is no mark.
        let mark = self.pool().marks.fetch_add(1, Ordering::Relaxed) % (u32::MAX - 1) + 1;
        if blocks.is_empty() {
            // At most two blocks, neither wholly inside.
            for index in self.touched(&pages) {
                let start = size.len_of(index);
                let part = pages.start.max(start) - start..pages.end.min(start + size.bytes()) - start;
                self.free_part(EntryIndex(index), part, mark, &mut done)?;
            }
            return Ok(done);
        }
        if pages.start < blocks.start {
            let before = EntryIndex(size.count(pages.start));
            self.free_part(before, size.within(pages.start)..size.bytes(), mark, &mut done)?;
        }
        self.free_blocks(size.count(blocks.start)..size.count(blocks.end), mark, &mut done)?;
        if blocks.end < pages.end {
            self.free_part(EntryIndex(size.count(blocks.end)), 0..size.within(pages.end), mark, &mut done)?;
        }
        Ok(done)
    }

    /// Whole blocks. Under the region lock alone, exclusively, as a snapshot: what changes, `Private` or held once to
    /// `Lazy`, is not a state that a fault works on without that lock.
    fn free_blocks(&self, entries: Range<usize>, mark: u32, done: &mut LazyFreed) -> Result<(), RegionError> {
        let windows = self.table.window(EntryIndex(entries.start))..self.table.window(EntryIndex(entries.end - 1)) + 1;
        let _signals = SignalsBlocked::new();
        let _alone = self.lock.exclusive();
        let freed = done.freed;
        let result = self.free_all(entries, done);
        if done.freed > freed {
            self.wait_in_line(windows, mark);
        }
        result
    }

    /// Notes that something was lazily freed in these windows.
    fn wait_in_line(&self, windows: Range<usize>, mark: u32) {
        self.table.waiting.enter(windows, mark);
        self.pool().frames.note_change();
    }

    fn free_all(&self, entries: Range<usize>, done: &mut LazyFreed) -> Result<(), RegionError> {
        let bytes = |entries: usize| self.pool().block_size.len_of(entries);
        let mut freed_to = entries.start;
        self.without_pinned(entries.clone(), |run| {
            done.pinned += bytes(run.start - freed_to);
            freed_to = run.end;
            self.free_unpinned(run, done)
        })?;
        done.pinned += bytes(entries.end - freed_to);
        Ok(())
    }

    fn free_unpinned(&self, entries: Range<usize>, done: &mut LazyFreed) -> Result<(), RegionError> {
        if self.revoked.load(Ordering::Relaxed) == 0 {
            return self.free_run(entries, done);
        }
        // What was revoked must not become readable, so it is left out of every call.
        let is_revoked = |index: &usize| self.table.get(EntryIndex(*index)) == Entry::Revoked;
        let mut next = entries.start;
        while next < entries.end {
            let start = (next..entries.end).find(|index| !is_revoked(index)).unwrap_or(entries.end);
            let end = (start..entries.end).find(is_revoked).unwrap_or(entries.end);
            done.revoked += self.pool().block_size.len_of(start - next);
            self.free_run(start..end, done)?;
            next = end;
        }
        Ok(())
    }

    /// Entries of which none was revoked: one system call, one pass.
    fn free_run(&self, entries: Range<usize>, done: &mut LazyFreed) -> Result<(), RegionError> {
        let pool = self.pool();
        let bytes = pool.block_size.bytes();
        let get = |index: usize| self.table.get(EntryIndex(index));
        // Nobody becomes a holder of a block that this region alone holds while the region lock is held.
        let is_held_once = |entry: Entry| match entry {
            Entry::Private(_) => true,
            Entry::Shared(block) | Entry::Borrowed(block) | Entry::Split(block) => self.is_alone_with(block),
            Entry::Zero | Entry::Lazy(_) | Entry::Revoked => false,
        };
        let Some(first) = entries.clone().find(|&index| is_held_once(get(index))) else {
            entries.for_each(|index| tally(get(index), bytes, done));
            return Ok(());
        };
        let last = entries.clone().rfind(|&index| is_held_once(get(index))).unwrap_or(first);
        self.check_budget().map_err(|reason| self.error(reason))?;
        // All in between loses the right to write in one call: the others have none to lose.
        let len = pool.block_size.len_of(last + 1 - first);
        let protected = pool.sys.protect(self.address_of(first), len, Access::Read);
        if protected.is_ok() && !self.table.has_splits() {
            self.make_lazy(entries, is_held_once, done);
            return Ok(());
        }
        let before = self.edges(first..last + 1);
        for index in entries {
            let entry = get(index);
            match entry.block() {
                Some(block) if is_held_once(entry) => match (entry, self.table.split(EntryIndex(index))) {
                    (Entry::Split(_), Some(split)) => {
                        let pages = 0..split.len();
                        self.free_pages(EntryIndex(index), block, split, pages, protected.is_ok(), done);
                    }
                    _ if protected.is_ok() => {
                        self.replace(EntryIndex(index), Entry::Lazy(block));
                        done.freed += bytes;
                    }
                    // Perhaps writable, perhaps not: the next write finds that it has one holder.
                    _ => self.replace(EntryIndex(index), Entry::Shared(block)),
                },
                _ => tally(entry, bytes, done),
            }
        }
        self.addresses.recount(before, self.edges(first..last + 1));
        Ok(protected?)
    }

    /// Entries that have lost the right to write, none of them split. What [`Space::replace`] and [`Space::edges`] would do,
    /// in one pass: there are 262144 blocks of 4 KiB in a GiB.
    fn make_lazy(&self, entries: Range<usize>, is_held_once: impl Fn(Entry) -> bool, done: &mut LazyFreed) {
        let (merging, bytes) = (self.pool().sys.merging(), self.pool().block_size.bytes());
        let (mut before, mut after, mut freed, mut borrowed) = (0, 0, 0, 0);
        let mut left = entries.start.checked_sub(1).map(|index| self.table.get(EntryIndex(index))).map(|it| (it, it));
        let with_next = entries.end.min(self.table.len() - 1);
        for index in entries.start..=with_next {
            let old = self.table.get(EntryIndex(index));
            let mut new = old;
            match old.block() {
                _ if index == entries.end => {}
                Some(block) if is_held_once(old) => {
                    new = Entry::Lazy(block);
                    self.table.set(EntryIndex(index), new);
                    freed += 1;
                    borrowed += usize::from(matches!(old, Entry::Borrowed(_)));
                }
                _ => tally(old, bytes, done),
            }
            if let Some((left_old, left_new)) = left {
                before += usize::from(!joined(left_old, old, merging));
                after += usize::from(!joined(left_new, new, merging));
            }
            left = Some((old, new));
        }
        self.lazy_blocks.fetch_add(freed, Ordering::Relaxed);
        if let Some(origin) = &self.origin {
            // They are this fork's own from now on.
            origin.freed(borrowed);
        }
        self.addresses.recount(before, after);
        done.freed += freed * bytes;
    }

    /// Pages of one block.
    fn free_part(
        &self,
        index: EntryIndex,
        part: Range<usize>,
        mark: u32,
        done: &mut LazyFreed,
    ) -> Result<(), RegionError> {
        let pool = self.pool();
        // Before any lock: it allocates.
        let split = (pool.sys.merging() == Merging::Merge).then(|| self.table.prepare_split(index, pool.block_size));
        let _signals = SignalsBlocked::new();
        let _window = self.table.lock(index);
        let _publishing = self.lock.shared();
        let entry = self.table.get(index);
        let block = match entry {
            Entry::Zero | Entry::Lazy(_) | Entry::Revoked => {
                tally(entry, part.len(), done);
                return Ok(());
            }
            Entry::Private(block) | Entry::Shared(block) | Entry::Borrowed(block) | Entry::Split(block) => block,
        };
        let skipped = match split {
            _ if !self.is_alone_with(block) => &mut done.shared,
            _ if self.pins.has(index) => &mut done.pinned,
            None => &mut done.indivisible,
            Some(split) => {
                self.check_budget().map_err(|reason| self.error(reason))?;
                let pages = part.start / BASE_PAGE..part.end / BASE_PAGE;
                let before = self.edges(index.0..index.0 + 1);
                let protected = pool.sys.protect(self.address_of(index.0) + part.start, part.len(), Access::Read);
                if !matches!(entry, Entry::Split(_)) {
                    let kept =
                        if matches!(entry, Entry::Private(_)) { SplitPage::Writable } else { SplitPage::Readable };
                    split.set(0..split.len(), kept);
                    self.replace(index, Entry::Split(block));
                }
                self.free_pages(index, block, split, pages, protected.is_ok(), done);
                self.wait_in_line(self.table.window(index)..self.table.window(index) + 1, mark);
                self.addresses.recount(before, self.edges(index.0..index.0 + 1));
                return Ok(protected?);
            }
        };
        *skipped += part.len();
        Ok(())
    }

    /// Pages of a split block, which have lost the right to write if `protected`.
    fn free_pages(
        &self,
        index: EntryIndex,
        block: BlockId,
        split: &Split,
        pages: Range<usize>,
        protected: bool,
        done: &mut LazyFreed,
    ) {
        for page in pages {
            match split.get(page) {
                SplitPage::Lazy | SplitPage::Dropped => done.already += BASE_PAGE,
                SplitPage::Readable | SplitPage::Writable if protected => {
                    split.set(page..page + 1, SplitPage::Lazy);
                    self.lazy_pages.fetch_add(1, Ordering::Relaxed);
                    done.freed += BASE_PAGE;
                }
                SplitPage::Readable | SplitPage::Writable => split.set(page..page + 1, SplitPage::Readable),
            }
        }
        if split.count(SplitPage::Lazy) == split.len() {
            self.make_whole(index, Entry::Lazy(block));
        }
    }

    /// Makes a split block, all of whose pages have memory and are mapped alike, one again.
    fn make_whole(&self, index: EntryIndex, new: Entry) {
        if let Some(split) = self.table.split(index) {
            self.lazy_pages.fetch_sub(split.count(SplitPage::Lazy), Ordering::Relaxed);
            split.set(0..split.len(), SplitPage::Readable);
        }
        self.replace(index, new);
    }

    /// Makes a split block that this region alone holds one again, writable, with memory for all of its pages. Under the
    /// window's lock and the region lock; for the fault handler.
    pub(crate) fn join(&self, index: EntryIndex, block: BlockId, split: &Split) -> Result<(), Unresolved> {
        let pool = self.pool();
        let before = self.edges(index.0..index.0 + 1);
        for run in split.runs_of(0..split.len(), SplitPage::Dropped) {
            self.fill_hole(index, block, split, run, Access::ReadWrite)?;
        }
        let protected = pool.sys.protect(self.address_of(index.0), pool.block_size.bytes(), Access::ReadWrite);
        // If that failed some of it may be writable all the same, and none of it may be dropped.
        self.make_whole(index, if protected.is_ok() { Entry::Private(block) } else { Entry::Shared(block) });
        self.addresses.recount(before, self.edges(index.0..index.0 + 1));
        protected.map_err(Unresolved::Unmappable)
    }

    /// Gives dropped pages memory again. Under the window's lock and the region lock, or the latter exclusively.
    pub(crate) fn fill_hole(
        &self,
        index: EntryIndex,
        block: BlockId,
        split: &Split,
        pages: Range<usize>,
        access: Access,
    ) -> Result<(), Unresolved> {
        let pool = self.pool();
        let (by, len) = (pages.start * BASE_PAGE, pages.len() * BASE_PAGE);
        let offset = pool.offset(block) + by;
        pool.sys.obtain(offset, len, 0).map_err(Unresolved::OutOfMemory)?;
        let _changing = self.changing(index.0..index.0 + 1);
        if let Err(failure) = pool.sys.map(self.address_of(index.0) + by, len, offset, access) {
            self.restore(index.0..index.0 + 1, failure.left);
            return Err(Unresolved::Unmappable(failure.error));
        }
        split.set(pages, if access == Access::Read { SplitPage::Readable } else { SplitPage::Writable });
        Ok(())
    }

    /// Takes the permission to drop back, for all blocks and pages in `range`: as if each had been written to. Returns how
    /// many bytes that were. Blocks that are partly inside and lazily freed as a whole are taken back as a whole.
    pub(crate) fn cancel_lazy_free(&self, range: Range<usize>) -> Result<usize, RegionError> {
        self.check(&range)?;
        let size = self.pool().block_size;
        let mut cancelled = 0;
        for index in self.touched(&range).map(EntryIndex) {
            let start = size.len_of(index.0);
            let part = range.start.max(start) - start..range.end.min(start + size.bytes()) - start;
            cancelled += self.keep(index, part);
        }
        count(&self.counters.bytes_cancelled, cancelled as u64);
        Ok(cancelled)
    }

    /// Takes back all that was lazily freed and not dropped yet, for one who is about to hold the region's bytes exclusively:
    /// until somebody lazily frees again, nothing of them changes. A look at two counters where there is nothing.
    pub(crate) fn keep_all(&self) {
        if self.lazy_blocks.load(Ordering::Relaxed) == 0 && self.lazy_pages.load(Ordering::Relaxed) == 0 {
            return;
        }
        let marked = (0..self.table.windows()).filter(|&window| self.table.waiting.is_waiting(window));
        let entries = marked.flat_map(|window| self.table.entries_of(window..window + 1));
        let kept: usize = entries.map(|index| self.keep(EntryIndex(index), 0..self.pool().block_size.bytes())).sum();
        count(&self.counters.bytes_cancelled, kept as u64);
    }

    /// Takes back what is lazily freed of a block, as a whole, or of a part of one that is split; returns how many bytes that
    /// were.
    fn keep(&self, index: EntryIndex, part: Range<usize>) -> usize {
        let _signals = SignalsBlocked::new();
        let _window = self.table.lock(index);
        let _publishing = self.lock.shared();
        let mut kept = 0;
        match (self.table.get(index), self.table.split(index)) {
            // Readable as before; the next write finds out whether anybody else holds it.
            (Entry::Lazy(block), _) => {
                self.replace(index, Entry::Shared(block));
                kept = self.pool().block_size.bytes();
            }
            (Entry::Split(_), Some(split)) => {
                for page in part.start / BASE_PAGE..part.end.div_ceil(BASE_PAGE) {
                    if split.get(page) == SplitPage::Lazy {
                        split.set(page..page + 1, SplitPage::Readable);
                        self.lazy_pages.fetch_sub(1, Ordering::Relaxed);
                        kept += BASE_PAGE;
                    }
                }
            }
            _ => {}
        }
        kept
    }
}

/// Counts what is not lazily freed now.
fn tally(entry: Entry, bytes: usize, done: &mut LazyFreed) {
    match entry {
        Entry::Zero | Entry::Lazy(_) => done.already += bytes,
        Entry::Revoked => done.revoked += bytes,
        _ => done.shared += bytes,
    }
}

/// What of `range` is whole units; empty, at its start, if nothing is.
fn whole(range: &Range<usize>, unit: usize) -> Range<usize> {
    let (start, end) = (range.start.next_multiple_of(unit), range.end / unit * unit);
    if start < end { start..end } else { range.start..range.start }
}
