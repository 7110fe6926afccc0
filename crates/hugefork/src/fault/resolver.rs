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
//! not for a clear or copy. What it may change meanwhile, `Private` to `Shared`, is not a state that we work on.
//!
//! Blocks smaller than 2 MiB are taken, zeroed and mapped in runs of the neighbours that are in the same state, at most
//! one window at a time: a mapping a block would use up `vm.max_map_count` within 256 MiB of 4 KiB blocks. Copies stay
//! single while mappings are plentiful, since copying little is what small blocks are for.
//!
//! Runs in the signal handler: no allocation, no panic, no lock but ours, a bounded stack.

use core::ops::Range;

use hugefork_kernels::Target;

use crate::error::SystemError;
use crate::pool::frames::{Content, Taken};
use crate::space::Space;
use crate::stats::count;
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
        let left = pool.frames.available().saturating_sub(self.table.window_of(index).len());
        let run = if left >= pool.frames.len() / SCARCE {
            self.around(index, |entry, _| entry == Entry::Zero)
        } else {
            index.0..index.0 + 1
        };
        let (taken, start) = self.take(index, run)?;
        let touched = target.map(|byte| pool.block_size.len_of(index.0 - start.0) + byte);
        let cleared =
            pool.zero(taken, touched).map_err(|error| self.returned(taken, Unresolved::OutOfMemory(error)))?;
        self.map(start, taken)?;

        let blocks_cleared = pool.block_size.count(cleared);
        count(&self.counters.blocks_cleared, blocks_cleared as u64);
        count(&self.counters.bytes_cleared, cleared as u64);
        count(&self.counters.blocks_fresh, (taken.count - blocks_cleared) as u64);
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
        let budget = pool.sys.budget();
        let run = if budget.fits(budget.limit() / 2) {
            index.0..index.0 + 1
        } else {
            self.around(index, |entry, _| matches!(entry, Entry::Shared(_)))
        };
        let (taken, start) = self.take(index, run)?;
        for (fresh, content) in pool.runs_by_content(taken) {
            if content == Content::Fresh {
                pool.obtain(fresh, 0).map_err(|error| self.returned(taken, Unresolved::OutOfMemory(error)))?;
            }
        }
        for (by, new) in taken.blocks().enumerate() {
            pool.frames.set_content(new, Content::Used);
            let Some(old) = self.table.get(EntryIndex(start.0 + by)).block() else { continue };
            let target = if start.0 + by == index.0 { target } else { None };
            // SAFETY: both blocks lie in the direct map and are page-aligned. `new` is ours alone and mapped nowhere
            // else. `old` is held by this entry, under its window lock, and mapped read-only wherever it is mapped, so
            // nobody writes to it.
            unsafe {
                pool.copy_kernel.copy(
                    pool.direct(new),
                    pool.direct(old),
                    pool.block_size.bytes(),
                    target.map_or(Target::Unknown, Target::At),
                );
            }
        }
        self.map(start, taken)?;
        count(&self.counters.blocks_copied, taken.count as u64);
        count(&self.counters.bytes_copied, pool.block_size.len_of(taken.count) as u64);
        Ok(Resolution::Copied)
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
    fn take(&self, index: EntryIndex, run: Range<usize>) -> Result<(Taken, EntryIndex), Unresolved> {
        self.check_budget()?;
        let (before, after) = (index.0 - run.start, run.end - 1 - index.0);
        let taken = self.pool().frames.take(self.wish(index), before, after).ok_or(Unresolved::PoolFull)?;
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
