//! What a write fault does, on any [`Sys`].
//!
//! | entry | holders of the block | resolution |
//! |---|---|---|
//! | `Zero` | | take a block, make it zero around the fault address, map it |
//! | `Shared` | others too | take a block, copy around the fault address, map it, let the old one go (CoW) |
//! | `Shared` | this one only | make it writable (reuse) |
//! | `Private` | this one only | nothing: another thread was faster |
//!
//! The window lock is held throughout, so two faults on a block do the work once, and the block that is copied stays the
//! entry's. The region lock is held, shared, only while the result is published: a snapshot waits microseconds for us,
//! not for a clear or copy. What it may change meanwhile, `Private` to `Shared`, is not a state that we work on; what it
//! is just changing is waited for before it is copied.
//!
//! Where the faults of a region are a stream (see `history`), the next blocks of it are prepared in the same fault. Their
//! locks are only tried for, so no fault waits for another while it holds more than its own.
//!
//! Blocks smaller than 2 MiB are taken, zeroed and mapped in runs of the neighbours that are in the same state, at most
//! one window at a time: a mapping a block would use up `vm.max_map_count` within 256 MiB of 4 KiB blocks. Copies stay
//! single while mappings are plentiful, since copying little is what small blocks are for.
//!
//! Runs in the signal handler: no allocation, no panic, no lock but ours, a bounded stack.

use core::ops::Range;
use core::sync::atomic::Ordering;

use hugefork_kernels::{Side, Target, Use};

use super::history::{self, Direction, Stream};
use crate::advice::Advice;
use crate::error::SystemError;
use crate::pool::frames::{Content, Taken, Wanted};
use crate::space::Space;
use crate::stats::count;
use crate::sync::WordGuard;
use crate::sys::{Access, Merging, Sys};
use crate::table::Entry;
use crate::units::{BlockId, EntryIndex};

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
    OutOfMemory(SystemError),
    TooManyMappings,
    Unmappable(SystemError),
}

/// What the program is taken to do next.
#[derive(Clone, Copy)]
struct Outlook {
    used: Use,
    side: Side,
    stream: Option<Stream>,
}

/// Locks of the entries that are prepared ahead.
type Ahead<'a> = [Option<WordGuard<'a>>; history::MOST - 1];

/// Small blocks are given in runs while at least this share of the pool stays free: below it every block counts.
const SCARCE: usize = 8;

/// A fault may split a mapping in three.
const MAPPINGS_PER_FAULT: usize = 2;

impl<S: Sys> Space<S> {
    /// Resolves a write to byte `offset` of the region.
    pub(crate) fn resolve(&self, offset: usize) -> Result<Resolution, Unresolved> {
        let index = EntryIndex(self.pool().block_size.count(offset));
        self.make_writable(index, Some(self.pool().block_size.within(offset)))
    }

    /// Makes the block at `index` writable; `target` is the byte in it that is touched next, if known.
    pub(crate) fn make_writable(&self, index: EntryIndex, target: Option<usize>) -> Result<Resolution, Unresolved> {
        let window = self.table.lock(index);
        let resolved = self.make_writable_locked(index, target);
        drop(window);
        let counter = match resolved {
            Ok(Resolution::DemandZero) => &self.counters.demand_zero,
            Ok(Resolution::Copied) => &self.counters.copied,
            Ok(Resolution::Reused) => &self.counters.reused,
            Ok(Resolution::Raced) => &self.counters.raced,
            Err(_) => &self.counters.failed,
        };
        count(counter, 1);
        resolved
    }

    /// As [`Space::make_writable`], the window being locked by the caller.
    pub(crate) fn make_writable_locked(
        &self,
        index: EntryIndex,
        target: Option<usize>,
    ) -> Result<Resolution, Unresolved> {
        match self.table.get(index) {
            Entry::Private(_) => Ok(Resolution::Raced),
            Entry::Zero => self.give_zeroed(index, target),
            Entry::Shared(block) => {
                if self.reuse(index, block)? {
                    return Ok(Resolution::Reused);
                }
                self.copy(index, target)
            }
        }
    }

    /// First write: zeroed blocks for `index` and its never-written neighbours.
    fn give_zeroed(&self, index: EntryIndex, target: Option<usize>) -> Result<Resolution, Unresolved> {
        let pool = self.pool();
        let outlook = self.outlook(index, target);
        let mut ahead = Ahead::default();
        let run = self.zero_run(&mut ahead, index, outlook);
        let (taken, start) = self.take(index, run, Wanted::Zeroed)?;
        let touched = target.map(|byte| pool.block_size.len_of(index.0 - start.0) + byte);
        let cleared = pool
            .zero(taken, touched, outlook.used, outlook.side)
            .map_err(|error| self.returned(taken, Unresolved::OutOfMemory(error)))?;
        self.map(start, taken)?;
        self.follow(outlook, start, taken);
        self.count_zeroed(taken.count, cleared);
        Ok(Resolution::DemandZero)
    }

    /// Makes the block writable if this region is its only holder, and with it the neighbours of which that is true too.
    fn reuse(&self, index: EntryIndex, block: BlockId) -> Result<bool, Unresolved> {
        let pool = self.pool();
        let publishing = self.lock.shared();
        // Only a holder can add one, and the only way from this region, a snapshot, is kept out by the lock.
        if pool.frames.references(block) != 1 {
            return Ok(false);
        }
        let run = if pool.sys.merging() == Merging::Merge {
            self.around(index, |entry, by| match entry {
                Entry::Shared(other) => other.0 as isize == block.0 as isize + by && pool.frames.references(other) == 1,
                _ => false,
            })
        } else {
            index.0..index.0 + 1
        };
        self.check_budget()?;
        let len = pool.block_size.len_of(run.len());
        pool.sys.protect(self.address_of(run.start), len, Access::ReadWrite).map_err(Unresolved::Unmappable)?;
        let first = BlockId(block.0 - (index.0 - run.start) as u32);
        self.publish(EntryIndex(run.start), run.len(), |by| Entry::Private(first.offset(by)));
        drop(publishing);
        Ok(true)
    }

    /// Write to a block that others hold: a copy for this region alone.
    fn copy(&self, index: EntryIndex, target: Option<usize>) -> Result<Resolution, Unresolved> {
        let pool = self.pool();
        let outlook = self.outlook(index, target);
        let mut ahead = Ahead::default();
        // A snapshot marks an entry as shared before it takes the right to write away, and until that is done, and every
        // processor knows, other threads still write to the block. Under the lock no snapshot is half done: what others
        // hold then is write-protected, and stays so under our window locks. Locks ahead are only tried for, so it does not
        // matter that this one is held already.
        let choosing = self.lock.shared();
        let run = self.copy_run(&mut ahead, index, outlook);
        drop(choosing);
        let (taken, start) = self.take(index, run, Wanted::Any)?;
        for (fresh, content) in pool.runs_by_content(taken) {
            if content == Content::Fresh {
                pool.obtain(fresh, 0).map_err(|error| self.returned(taken, Unresolved::OutOfMemory(error)))?;
            }
        }
        self.copy_blocks(start, taken, index, target, outlook);
        self.map(start, taken)?;
        self.follow(outlook, start, taken);
        count(&self.counters.blocks_copied, taken.count as u64);
        count(&self.counters.bytes_copied, pool.block_size.len_of(taken.count) as u64);
        Ok(Resolution::Copied)
    }

    // Choosing, copying and counting are functions of their own so that what they need is off the stack when the deepest
    // call is made: without optimisation every local of a function stays there (see handler_stack).

    /// The entries that a first write to `index` gives blocks to.
    fn zero_run<'a>(&'a self, ahead: &mut Ahead<'a>, index: EntryIndex, outlook: Outlook) -> Range<usize> {
        if !self.leaves_enough(index, outlook) {
            index.0..index.0 + 1
        } else if self.table.is_one_a_window() {
            self.lock_ahead(ahead, index, outlook, |entry| entry == Entry::Zero)
        } else {
            self.around(index, |entry, _| entry == Entry::Zero)
        }
    }

    /// The entries that a write to the shared block at `index` copies. Under the region lock.
    fn copy_run<'a>(&'a self, ahead: &mut Ahead<'a>, index: EntryIndex, outlook: Outlook) -> Range<usize> {
        let (frames, budget) = (&self.pool().frames, self.pool().sys.budget());
        let is_held_by_others = |entry| matches!(entry, Entry::Shared(block) if frames.references(block) > 1);
        if self.table.is_one_a_window() && self.leaves_enough(index, outlook) {
            self.lock_ahead(ahead, index, outlook, is_held_by_others)
        } else if budget.fits(budget.limit() / 2) {
            index.0..index.0 + 1
        } else {
            self.around(index, |entry, _| is_held_by_others(entry))
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
        let frames = &self.pool().frames;
        let more = self.table.window_of(index).len() + outlook.stream.map_or(0, Stream::ahead);
        frames.available().saturating_sub(more) >= frames.len() / SCARCE
    }

    /// The entry at `index`, and the next ones of a stream that `belongs` says are in the same state, as far as their locks
    /// are to be had at once. Only where each entry has a lock of its own.
    fn lock_ahead<'a>(
        &'a self,
        locks: &mut Ahead<'a>,
        index: EntryIndex,
        outlook: Outlook,
        belongs: impl Fn(Entry) -> bool,
    ) -> Range<usize> {
        let mut run = index.0..index.0 + 1;
        let Some(stream) = outlook.stream else { return run };
        for lock in locks.iter_mut().take(stream.ahead()) {
            let next = match stream.direction {
                Direction::Up if run.end < self.table.len() => EntryIndex(run.end),
                Direction::Down if run.start > 0 => EntryIndex(run.start - 1),
                _ => break,
            };
            *lock = self.table.try_lock(next);
            if lock.is_none() || !belongs(self.table.get(next)) {
                break;
            }
            run = run.start.min(next.0)..run.end.max(next.0 + 1);
        }
        run
    }

    /// Notes how far a stream has been prepared.
    fn follow(&self, outlook: Outlook, start: EntryIndex, taken: Taken) {
        if let Some(stream) = outlook.stream {
            self.history.advance(stream, start, taken.count);
        }
    }

    /// The entries around `index`, in its window and without a gap, that `belongs` says belong to it; it is told how far
    /// from `index` they are.
    fn around(&self, index: EntryIndex, belongs: impl Fn(Entry, isize) -> bool) -> Range<usize> {
        let window = self.table.window_of(index);
        let belongs = |at: usize| belongs(self.table.get(EntryIndex(at)), at as isize - index.0 as isize);
        let mut run = index.0..index.0 + 1;
        while run.end < window.end && belongs(run.end) {
            run.end += 1;
        }
        while run.start > window.start && belongs(run.start - 1) {
            run.start -= 1;
        }
        run
    }

    /// Takes blocks for `index` and as much of `run` around it as there are neighbours free. Returns them and the entry
    /// that the first of them is for.
    fn take(&self, index: EntryIndex, run: Range<usize>, wanted: Wanted) -> Result<(Taken, EntryIndex), Unresolved> {
        self.check_budget()?;
        let (before, after) = (index.0 - run.start, run.end - 1 - index.0);
        let taken = self.pool().frames.take(self.wish(index), before, after, wanted).ok_or(Unresolved::PoolFull)?;
        self.pool().nudge_stock();
        Ok((taken, EntryIndex(index.0 - (taken.wanted.0 - taken.first.0) as usize)))
    }

    /// Maps `taken` at `start`, writable, and lets go of what was there.
    fn map(&self, start: EntryIndex, taken: Taken) -> Result<(), Unresolved> {
        let pool = self.pool();
        let len = pool.block_size.len_of(taken.count);
        let publishing = self.lock.shared();
        let mapped = pool.sys.map(self.address_of(start.0), len, pool.offset(taken.first), Access::ReadWrite);
        if let Err(failure) = mapped {
            self.restore(start.0..start.0 + taken.count, failure.left);
            return Err(self.returned(taken, Unresolved::Unmappable(failure.error)));
        }
        taken.blocks().for_each(|block| pool.frames.set_content(block, Content::Used));
        self.publish(start, taken.count, |by| Entry::Private(taken.first.offset(by)));
        drop(publishing);
        Ok(())
    }

    /// Whether a fault's or a call's changes still fit the process's mappings.
    pub(crate) fn check_budget(&self) -> Result<(), Unresolved> {
        let fits = self.pool().sys.budget().fits(MAPPINGS_PER_FAULT);
        if fits { Ok(()) } else { Err(Unresolved::TooManyMappings) }
    }

    /// Gives blocks back that could not be used, and passes the reason on.
    fn returned(&self, taken: Taken, reason: Unresolved) -> Unresolved {
        self.pool().give_back(taken);
        reason
    }
}
