//! What a write fault does, on any [`Sys`].
//!
//! | entry | holders of the block | resolution |
//! |---|---|---|
//! | `Zero` | | take a block, make it zero around the fault address, map it |
//! | `Shared`, `Borrowed`, `Lazy` | others too | take a block, copy around the fault address, map it, let the old one go (CoW) |
//! | `Shared`, `Borrowed`, `Lazy` | this one only | make it writable (reuse); it is not lazily freed any more |
//! | `Split` | this one only | make the page writable; if it was dropped, give it memory |
//! | `Private` | this one only | nothing: another thread was faster |
//! | `Revoked` | | an error |
//!
//! The window lock is held throughout, so two faults on a block do the work once, and the block that is copied stays the
//! entry's. The region lock is held, shared, only while the result is published: a snapshot waits microseconds for us,
//! not for a clear or copy. What it or `lazy_free` may change meanwhile, `Private` to `Shared` or held once to `Lazy`, is
//! not a state that we work on; what it is just changing is waited for before it is copied.
//!
//! Where the faults of a region are a stream (see `history`), the next blocks of it are prepared in the same fault. Their
//! locks are only tried for, so no fault waits for another while it holds more than its own.
//!
//! Blocks smaller than 2 MiB are taken, zeroed and mapped in runs of the neighbours that are in the same state, at most
//! one window at a time: a mapping a block would use up `vm.max_map_count` within 256 MiB of 4 KiB blocks. Copies stay
//! single while mappings are plentiful, since copying little is what small blocks are for.
//!
//! A fault that finds no block lets go of its lock and makes room (see `reclaim`) before it tries once more.
//!
//! Runs in the signal handler: no allocation, no panic, no lock but ours, a bounded stack.

use core::ops::Range;
use core::sync::atomic::Ordering;

use hugefork_kernels::{Side, Target, Use};

use super::history::{self, Direction, Stream};
use crate::advice::Advice;
use crate::cow::CowLimit;
use crate::error::SystemError;
use crate::options::OnLimit;
use crate::pool::core::Shortage;
use crate::pool::frames::{Content, Taken, Wanted};
use crate::pool::room::Found;
use crate::space::Space;
use crate::stats::count;
use crate::sync::WordGuard;
use crate::sys::{Access, Merging, Sys};
use crate::table::split::SplitPage;
use crate::table::{Booked, Entry, WindowsGuard};
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// How a fault was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    DemandZero,
    Copied,
    Reused,
    Raced,
}

/// Why it was not. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    PoolFull,
    /// Nothing that may be dropped for it has been found yet: it is looked for again once signals have been let in.
    NotYet,
    OutOfMemory(SystemError),
    TooManyMappings,
    Unmappable(SystemError),
    /// The block was taken away.
    Revoked,
    /// The region's forks and snapshots would hold more than it allows.
    CowLimit(OnLimit),
}

impl From<Shortage> for Unresolved {
    fn from(shortage: Shortage) -> Unresolved {
        match shortage {
            Shortage::Blocks => Unresolved::PoolFull,
            Shortage::Memory(error) => Unresolved::OutOfMemory(error),
        }
    }
}

/// What follows a try to make a block writable.
enum Next {
    Again,
    Done,
    /// Once signals have been let in.
    ComeBack,
}

/// What the program is taken to do next.
#[derive(Clone, Copy)]
struct Outlook {
    used: Use,
    side: Side,
    stream: Option<Stream>,
}

/// Entries that are made writable in one fault at most, where that takes no clear or copy.
const MOST_REUSED: usize = 512;

/// Entries that are treated in one fault, and the locks of those beside the one that faulted.
type Run<'a> = (WindowsGuard<'a>, Range<usize>);

/// Small blocks are given in runs while at least this share of the pool stays free: below it every block counts.
const SCARCE: usize = 8;

/// A fault may split a mapping in three.
const MAPPINGS_PER_FAULT: usize = 2;

impl<S: Sys> Space<S> {
    /// Resolves a write to byte `offset` of the region.
    pub(crate) fn resolve(&self, offset: usize) -> Result<Resolution, Unresolved> {
        let index = EntryIndex(self.pool().block_size.count(offset));
        let target = self.pool().block_size.within(offset);
        self.or_come_back(self.make_writable(index, Some(target)))
    }

    /// Where a write is neither done nor failed, it faults again, and signals are delivered in between.
    fn or_come_back(&self, resolved: Result<Resolution, Unresolved>) -> Result<Resolution, Unresolved> {
        match resolved {
            Err(Unresolved::CowLimit(OnLimit::Stall)) => self.cow.wait_a_moment(),
            Err(Unresolved::NotYet) => {}
            resolved => return resolved,
        }
        Ok(Resolution::Raced)
    }

    /// Makes the block at `index` writable; `target` is the byte in it that is touched next, if known.
    pub(crate) fn make_writable(&self, index: EntryIndex, target: Option<usize>) -> Result<Resolution, Unresolved> {
        let mut limit = self.limit;
        loop {
            let resolved = self.make_writable_once(index, target, limit);
            match self.after(index, &resolved, &mut limit) {
                Next::Again => {}
                Next::Done => return resolved,
                Next::ComeBack => return Err(Unresolved::NotYet),
            }
        }
    }

    /// What follows a try: room is made, if that is what was missing, or the result is counted. Under no lock.
    fn after(
        &self,
        index: EntryIndex,
        resolved: &Result<Resolution, Unresolved>,
        limit: &mut Option<CowLimit>,
    ) -> Next {
        let counter = match resolved {
            Ok(Resolution::DemandZero) => &self.counters.demand_zero,
            Ok(Resolution::Copied) => &self.counters.copied,
            Ok(Resolution::Reused) => &self.counters.reused,
            Ok(Resolution::Raced) => &self.counters.raced,
            Err(Unresolved::PoolFull) => match self.make_room(index) {
                Found::Some => return Next::Again,
                Found::None => &self.counters.failed,
                Found::LookAgain => return Next::ComeBack,
            },
            Err(Unresolved::CowLimit(OnLimit::Revoke)) => {
                if !self.revoke_from_others(index) {
                    *limit = None;
                }
                return Next::Again;
            }
            // Not done and not failed: it comes back.
            Err(Unresolved::CowLimit(OnLimit::Stall) | Unresolved::NotYet) => return Next::Done,
            Err(
                Unresolved::CowLimit(OnLimit::Fail)
                | Unresolved::OutOfMemory(_)
                | Unresolved::TooManyMappings
                | Unresolved::Unmappable(_)
                | Unresolved::Revoked,
            ) => &self.counters.failed,
        };
        count(counter, 1);
        Next::Done
    }

    /// As [`Space::make_writable`], with what there is.
    fn make_writable_once(
        &self,
        index: EntryIndex,
        target: Option<usize>,
        limit: Option<CowLimit>,
    ) -> Result<Resolution, Unresolved> {
        let _window = self.table.lock(index);
        let entry = self.table.get(index);
        match entry {
            // Another thread was faster.
            Entry::Private(_) => return Ok(Resolution::Raced),
            Entry::Revoked => return Err(Unresolved::Revoked),
            _ => {}
        }
        let outlook = self.outlook(index, target);
        match entry {
            Entry::Shared(block) | Entry::Borrowed(block) | Entry::Lazy(block) => {
                if self.reuse(index, block, outlook)? {
                    return Ok(Resolution::Reused);
                }
                self.copy(index, target, outlook, limit)
            }
            Entry::Split(block) => match self.write_split(index, block, target)? {
                true => Ok(Resolution::Reused),
                false => self.copy(index, target, outlook, limit),
            },
            _ => self.give_zeroed(index, target, outlook),
        }
    }

    /// First write: zeroed blocks for `index` and its never-written neighbours.
    fn give_zeroed(
        &self,
        index: EntryIndex,
        target: Option<usize>,
        outlook: Outlook,
    ) -> Result<Resolution, Unresolved> {
        let (_ahead, run) = self.zero_run(index, outlook);
        let (taken, start) = self.take(index, run, Wanted::Zeroed)?;
        let touched = target.map(|byte| self.pool().block_size.len_of(index.0 - start.0) + byte);
        let cleared = self.zero(taken, touched, outlook)?;
        self.map(start, taken)?;
        self.follow(outlook, start, taken.count);
        self.count_zeroed(taken.count, cleared);
        Ok(Resolution::DemandZero)
    }

    /// Makes the block writable if this region is its only holder, and with it the neighbours of which that is true too.
    fn reuse(&self, index: EntryIndex, block: BlockId, outlook: Outlook) -> Result<bool, Unresolved> {
        let pool = self.pool();
        let publishing = self.lock.shared();
        // Only a holder can add one, and the only way from this region, a snapshot, is kept out by the lock.
        if !self.is_alone_with(block) {
            return Ok(false);
        }
        // Looked at under the lock: `lazy_free` may have come in between.
        let is_lazy = matches!(self.table.get(index), Entry::Lazy(_));
        let (_ahead, run) = self.reuse_run(index, is_lazy, block, outlook);
        self.check_budget()?;
        let len = pool.block_size.len_of(run.len());
        let first = BlockId(block.0 - (index.0 - run.start) as u32);
        let protected = pool.sys.protect(self.address_of(run.start), len, Access::ReadWrite);
        if let Err(error) = protected {
            if is_lazy {
                // Some of it may be writable now, and no fault would tell of a write: it must not be dropped.
                self.publish(EntryIndex(run.start), run.len(), |by| Entry::Shared(first.offset(by)));
            }
            return Err(Unresolved::Unmappable(error));
        }
        self.publish(EntryIndex(run.start), run.len(), |by| Entry::Private(first.offset(by)));
        self.follow(outlook, EntryIndex(run.start), run.len());
        drop(publishing);
        if is_lazy {
            count(&self.counters.bytes_cancelled, len as u64);
        }
        Ok(true)
    }

    /// Write to a block of which pages were lazily freed; false if others hold it too.
    fn write_split(&self, index: EntryIndex, block: BlockId, target: Option<usize>) -> Result<bool, Unresolved> {
        let publishing = self.lock.shared();
        let Some(split) = self.table.split(index).filter(|_| self.is_alone_with(block)) else { return Ok(false) };
        self.check_budget()?;
        let Some(page) = target.map(|byte| byte / BASE_PAGE) else {
            return self.join(index, block, split).map(|()| true);
        };
        let before = self.edges(index.0..index.0 + 1);
        let (at, is_lazy) = (self.address_of(index.0), split.get(page) == SplitPage::Lazy);
        let resolved = match split.get(page) {
            SplitPage::Writable => Ok(()),
            SplitPage::Dropped => self.fill_hole(index, block, split, page..page + 1, Access::ReadWrite),
            SplitPage::Lazy | SplitPage::Readable => {
                let protected = self.pool().sys.protect(at + page * BASE_PAGE, BASE_PAGE, Access::ReadWrite);
                // If that failed it may be writable all the same, and must not be dropped.
                let now = if protected.is_ok() { SplitPage::Writable } else { SplitPage::Readable };
                split.set(page..page + 1, now);
                protected.map_err(Unresolved::Unmappable)
            }
        };
        if is_lazy {
            self.lazy_pages.fetch_sub(1, Ordering::Relaxed);
            count(&self.counters.bytes_cancelled, BASE_PAGE as u64);
        }
        self.addresses.recount(before, self.edges(index.0..index.0 + 1));
        resolved?;
        if split.count(SplitPage::Lazy) + split.count(SplitPage::Dropped) == 0 {
            self.join(index, block, split)?;
        }
        drop(publishing);
        Ok(true)
    }

    /// Write to a block that others hold: a copy for this region alone.
    fn copy(
        &self,
        index: EntryIndex,
        target: Option<usize>,
        outlook: Outlook,
        limit: Option<CowLimit>,
    ) -> Result<Resolution, Unresolved> {
        self.check_limit(index, limit)?;
        // A snapshot marks an entry as shared before it takes the right to write away, and until that is done, and every
        // processor knows, other threads still write to the block. Under the lock no snapshot is half done: what others
        // hold then is write-protected, and stays so under our window locks. Locks ahead are only tried for, so it does not
        // matter that this one is held already.
        let choosing = self.lock.shared();
        let (_ahead, run) = self.copy_run(index, outlook);
        drop(choosing);
        let (taken, start) = self.take(index, run, Wanted::Any)?;
        self.obtain_fresh(taken)?;
        self.copy_blocks(start, taken, index, target, outlook);
        self.map(start, taken)?;
        self.follow(outlook, start, taken.count);
        self.count_copied(taken);
        Ok(Resolution::Copied)
    }

    /// Copies the block at `index`, which others hold, into the one that is booked for it. Under the window's lock.
    pub(crate) fn copy_booked(&self, index: EntryIndex) -> bool {
        // As above: not while a snapshot is half done.
        drop(self.lock.shared());
        let Ok((taken, start)) = self.take(index, index.0..index.0 + 1, Wanted::Any) else { return false };
        if self.obtain_fresh(taken).is_err() {
            return false;
        }
        self.copy_blocks(start, taken, index, None, self.outlook(index, None));
        let is_mapped = self.map(start, taken).is_ok();
        if is_mapped {
            self.count_copied(taken);
        }
        is_mapped
    }

    // Choosing, copying and counting are functions of their own so that what they need is off the stack when the deepest
    // call is made: without optimisation every local of a function stays there (see handler_stack).

    /// Whether this region lets its forks and snapshots cost it one more copy.
    fn check_limit(&self, index: EntryIndex, limit: Option<CowLimit>) -> Result<(), Unresolved> {
        match limit {
            Some(limit) if self.table.get(index).is_owner() && self.cow.blocks() >= limit.blocks => {
                Err(Unresolved::CowLimit(limit.on_limit))
            }
            _ => Ok(()),
        }
    }

    /// Gets memory for those of `taken` that have none.
    fn obtain_fresh(&self, taken: Taken) -> Result<(), Unresolved> {
        let pool = self.pool();
        for (fresh, content) in pool.runs_by_content(taken) {
            if content == Content::Fresh {
                pool.obtain(fresh, 0).map_err(|error| self.returned(taken, Unresolved::OutOfMemory(error)))?;
            }
        }
        Ok(())
    }

    /// Makes `taken` read as zeros; returns how many bytes had to be cleared for that.
    fn zero(&self, taken: Taken, touched: Option<usize>, outlook: Outlook) -> Result<usize, Unresolved> {
        let zeroed = self.pool().zero(taken, touched, outlook.used, outlook.side);
        zeroed.map_err(|error| self.returned(taken, Unresolved::OutOfMemory(error)))
    }

    fn count_copied(&self, taken: Taken) {
        count(&self.counters.blocks_copied, taken.count as u64);
        count(&self.counters.bytes_copied, self.pool().block_size.len_of(taken.count) as u64);
    }

    /// The entries that a first write to `index` gives blocks to.
    fn zero_run(&self, index: EntryIndex, outlook: Outlook) -> Run<'_> {
        let is_unwritten = |entry: Entry, _| entry == Entry::Zero;
        if !self.leaves_enough(index, outlook) {
            self.only(index)
        } else if self.table.is_one_a_window() {
            self.onward(index, outlook, history::MOST, is_unwritten)
        } else {
            self.around(index, is_unwritten)
        }
    }

    /// The entries that a write to the shared block at `index` copies. Under the region lock.
    fn copy_run(&self, index: EntryIndex, outlook: Outlook) -> Run<'_> {
        if self.limit.is_some() {
            // Each copy is charged to its limit before it is made.
            return self.only(index);
        }
        let (frames, budget) = (&self.pool().frames, self.pool().sys.budget());
        let is_held_by_others = |entry: Entry, _| match entry {
            Entry::Shared(block) | Entry::Borrowed(block) => frames.references(block) > 1,
            _ => false,
        };
        if self.table.is_one_a_window() && self.leaves_enough(index, outlook) {
            self.onward(index, outlook, history::MOST, is_held_by_others)
        } else if budget.fits(budget.limit() / 2) {
            self.only(index)
        } else {
            self.around(index, is_held_by_others)
        }
    }

    /// The entries that a write to `block` at `index`, which nobody else holds, makes writable. Under the region lock.
    fn reuse_run(&self, index: EntryIndex, is_lazy: bool, block: BlockId, outlook: Outlook) -> Run<'_> {
        let budget = self.pool().sys.budget();
        let is_alike = |other: Entry, by: isize| match other.readable() {
            Some(next) => {
                next.0 as isize == block.0 as isize + by
                    && matches!(other, Entry::Lazy(_)) == is_lazy
                    && self.is_alone_with(next)
            }
            None => false,
        };
        if self.pool().sys.merging() == Merging::Separate {
            self.only(index)
        } else if self.table.is_one_a_window() || (is_lazy && budget.fits(budget.limit() / 2)) {
            // A write takes back what was lazily freed there and no more, but for streams, and until each such write takes
            // one of the last mappings.
            self.onward(index, outlook, MOST_REUSED, is_alike)
        } else {
            self.around(index, is_alike)
        }
    }

    /// Copies what the entries from `start` on show into `taken`.
    fn copy_blocks(&self, start: EntryIndex, taken: Taken, index: EntryIndex, target: Option<usize>, outlook: Outlook) {
        let pool = self.pool();
        let kernel = pool.kernels.copy(pool.block_size.bytes(), outlook.used).with_side(outlook.side);
        for (by, new) in taken.blocks().enumerate() {
            pool.frames.set_content(new, Content::Used);
            let Some(old) = self.table.get(EntryIndex(start.0 + by)).block() else { continue };
            let target = if start.0 + by == index.0 { target } else { None };
            // SAFETY: both blocks lie in the direct map and are page-aligned. `new` is ours alone and mapped nowhere
            // else. `old` is held by this entry, under its window lock, and was held by others too when the run was chosen,
            // so it is write-protected wherever it is mapped, and nobody writes to it.
            unsafe {
                kernel.copy(
                    pool.direct(new),
                    pool.direct(old),
                    pool.block_size.bytes(),
                    target.map_or(Target::Unknown, Target::At),
                );
            }
        }
    }

    fn count_zeroed(&self, blocks: usize, bytes_cleared: usize) {
        let cleared = self.pool().block_size.count(bytes_cleared);
        count(&self.counters.blocks_cleared, cleared as u64);
        count(&self.counters.bytes_cleared, bytes_cleared as u64);
        count(&self.counters.blocks_zeroed_before, (blocks - cleared) as u64);
    }

    /// What the program is taken to do next, by its advice or by the region's recent faults.
    fn outlook(&self, index: EntryIndex, target: Option<usize>) -> Outlook {
        let advice = Advice::from_u8(self.advice.load(Ordering::Relaxed));
        let size = self.pool().block_size;
        let stream = match advice {
            Advice::Near => None,
            Advice::Unknown | Advice::Whole => target.and_then(|byte| self.history.stream(index, byte, size)),
        };
        let is_whole = advice == Advice::Whole || stream.is_some_and(Stream::is_believed);
        Outlook { used: if is_whole { Use::Whole } else { Use::Near }, side: self.history.side(index), stream }
    }

    /// Whether blocks may be given that nobody has asked for: an eighth of the pool is left for those who do.
    fn leaves_enough(&self, index: EntryIndex, outlook: Outlook) -> bool {
        if self.table.is_booked(index) {
            // Their own blocks, asked for or not.
            return true;
        }
        if self.limit.is_some() {
            return false;
        }
        let frames = &self.pool().frames;
        let more = self.table.window_of(index).len() + outlook.stream.map_or(0, |stream| stream.ahead(history::MOST));
        frames.available().saturating_sub(more) >= frames.len() / SCARCE
    }

    /// The entry at `index` and no other.
    fn only(&self, index: EntryIndex) -> Run<'_> {
        (WindowsGuard::default(), index.0..index.0 + 1)
    }

    /// The entry at `index`, and the next ones of its stream, `most` in all, that `belongs` says are in the same state; it
    /// is told how far from `index` they are. Up to the end of the window, or, where each entry has a lock of its own, as
    /// far as locks are to be had at once.
    fn onward(
        &self,
        index: EntryIndex,
        outlook: Outlook,
        most: usize,
        belongs: impl Fn(Entry, isize) -> bool,
    ) -> Run<'_> {
        let mut run = index.0..index.0 + 1;
        let Some(stream) = outlook.stream else { return self.only(index) };
        let own = self.table.window_of(index);
        for _ in 0..stream.ahead(most) {
            let next = match stream.direction {
                Direction::Up if run.end < self.table.len() => EntryIndex(run.end),
                Direction::Down if run.start > 0 => EntryIndex(run.start - 1),
                _ => break,
            };
            let lock = if own.contains(&next.0) { None } else { self.table.try_lock(next) };
            let is_locked = own.contains(&next.0) || lock.is_some() && self.table.is_one_a_window();
            let by = next.0 as isize - index.0 as isize;
            if !is_locked || !self.goes_along(index, next) || !belongs(self.table.get(next), by) {
                break;
            }
            lock.into_iter().for_each(WordGuard::keep);
            run = run.start.min(next.0)..run.end.max(next.0 + 1);
        }
        let others = match (self.table.is_one_a_window(), stream.direction) {
            (false, _) => 0..0,
            (true, Direction::Up) => index.0 + 1..run.end,
            (true, Direction::Down) => run.start..index.0,
        };
        (self.table.kept(others), run)
    }

    /// Notes how far a stream has been prepared.
    fn follow(&self, outlook: Outlook, start: EntryIndex, count: usize) {
        if let Some(stream) = outlook.stream {
            self.history.advance(stream, start, count);
        }
    }

    /// The entries around `index`, in its window and without a gap, that `belongs` says belong to it; it is told how far
    /// from `index` they are.
    fn around(&self, index: EntryIndex, belongs: impl Fn(Entry, isize) -> bool) -> Run<'_> {
        let window = self.table.window_of(index);
        let belongs = |at: usize| {
            self.goes_along(index, EntryIndex(at))
                && belongs(self.table.get(EntryIndex(at)), at as isize - index.0 as isize)
        };
        let mut run = index.0..index.0 + 1;
        while run.end < window.end && belongs(run.end) {
            run.end += 1;
        }
        while run.start > window.start && belongs(run.start - 1) {
            run.start -= 1;
        }
        (WindowsGuard::default(), run)
    }

    /// Whether `other` may be given a block together with `index`: both have one booked, or neither.
    fn goes_along(&self, index: EntryIndex, other: EntryIndex) -> bool {
        self.table.is_booked(index) == self.table.is_booked(other)
    }

    /// Takes blocks for `index` and as much of `run` around it as there are neighbours free. Returns them and the entry
    /// that the first of them is for.
    fn take(&self, index: EntryIndex, run: Range<usize>, wanted: Wanted) -> Result<(Taken, EntryIndex), Unresolved> {
        self.check_budget()?;
        let (before, after) = (index.0 - run.start, run.end - 1 - index.0);
        let booked = if self.table.is_booked(index) { Booked::Yes } else { Booked::No };
        let frames = &self.pool().frames;
        let taken = frames.take(self.wish(index), before, after, wanted, booked).ok_or(Unresolved::PoolFull)?;
        self.pool().note_taken(taken);
        Ok((taken, EntryIndex(index.0 - (taken.wanted.0 - taken.first.0) as usize)))
    }

    /// Maps `taken` at `start`, writable, and lets go of what was there.
    fn map(&self, start: EntryIndex, taken: Taken) -> Result<(), Unresolved> {
        let pool = self.pool();
        let len = pool.block_size.len_of(taken.count);
        let publishing = self.lock.shared();
        let changing = self.changing(start.0..start.0 + taken.count);
        let mapped = pool.sys.map(self.address_of(start.0), len, pool.offset(taken.first), Access::ReadWrite);
        if let Err(failure) = mapped {
            self.restore(start.0..start.0 + taken.count, failure.left);
            return Err(self.returned(taken, Unresolved::Unmappable(failure.error)));
        }
        taken.blocks().for_each(|block| pool.frames.set_content(block, Content::Used));
        self.publish(start, taken.count, |by| Entry::Private(taken.first.offset(by)));
        drop(changing);
        drop(publishing);
        Ok(())
    }

    /// Whether a fault's or a call's changes still fit the process's mappings.
    pub(crate) fn check_budget(&self) -> Result<(), Unresolved> {
        let fits = self.pool().sys.budget().fits(MAPPINGS_PER_FAULT);
        if fits { Ok(()) } else { Err(Unresolved::TooManyMappings) }
    }

    /// Whether `entries` may become one mapping, of zeros or of nothing: that frees mappings more often than it takes any, and
    /// must work when there is none left.
    pub(crate) fn check_budget_for(&self, entries: Range<usize>, new: Entry) -> Result<(), Unresolved> {
        let more = self.edges_as(&entries, new).saturating_sub(self.edges(entries));
        if more == 0 || self.pool().sys.budget().fits(more) { Ok(()) } else { Err(Unresolved::TooManyMappings) }
    }

    /// Gives blocks back that could not be used, and passes the reason on.
    fn returned(&self, taken: Taken, reason: Unresolved) -> Unresolved {
        self.pool().give_back(taken);
        reason
    }
}
