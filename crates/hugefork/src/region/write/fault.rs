//! Resolves a write to a block, on any [`Sys`]: table/transition.rs decides what the write needs, and this file does
//! it.
//!
//! The fault holds the window lock throughout. So two faults on a block do the work once, and the entry keeps the block
//! that is copied. The fault also holds the region lock, shared, while it reads the entry and while it publishes the
//! result, but not in between. So a snapshot waits for microseconds, and not for a clear or copy. In between, a
//! snapshot or `lazy_free` may change entries, but only in states that no fault works on: `Private` ones, and those
//! whose block this region alone holds.
//!
//! If the faults of a region are a stream (state/history.rs), one fault also prepares the next blocks of the stream
//! (run.rs).
//!
//! A fault that finds no block releases its locks, makes room (revoke.rs), and tries once more.
//!
//! All of this runs in the signal handler: it does not allocate, does not panic, takes only our own locks, and uses a
//! bounded stack.

use core::ops::Range;
use core::sync::atomic::Ordering;

use hugefork_kernels::{Target, Work};

use crate::mapping::addresses::Place;
use crate::mapping::change::Recount;
use crate::pool::frames::{Content, Taken, Wanted};
use crate::pool::shortage::Found;
use crate::region::private::{Locks, Quiesced};
use crate::region::state::history::Outlook;
use crate::region::state::{RegionCore, Unresolved};
use crate::stats::counters::count;
use crate::sync::SharedGuard;
use crate::sys::{Access, Shows, Sys};
use crate::table::transition::{Event, Grain, OnWrite, on_write};
use crate::table::{Entry, Locked, State, WindowsGuard};
use crate::units::{BASE_PAGE, EntryIndex};

/// How a write was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    DemandZero,
    Copied,
    Reused,
    /// The kernel copies the pages that are written.
    CowMapped,
    Raced,
}

/// The state that a caller wants a block to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::region) enum Become {
    /// Writable, by block or by page.
    Writable,
    /// Writable, by page if possible, because the pool is full.
    WritableByPage,
    /// A block of the region's own, with all bytes that the region shows there.
    Own,
    /// As `Own`, but a CoW mapping with prepared writes stays one. The engine's own work asks for this, and no call
    /// does.
    OwnUnlessPrepared,
}

impl Become {
    /// Whether the kernel may copy single pages of the block instead.
    fn may_be_by_page(self) -> bool {
        matches!(self, Become::Writable | Become::WritableByPage)
    }
}

/// Whether the thread has the turn of a region (state/core.rs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::region) enum Turns {
    /// It has no turn, so it may wait for a thread that has one.
    Free,
    /// It has at least one, so a thread that has another turn may wait for it.
    Taken,
}

/// A write to one block, under the lock of its window.
pub(super) struct Fault<'a, S: Sys> {
    pub(super) region: &'a RegionCore<S>,
    pub(super) window: &'a WindowsGuard<'a>,
    pub(super) index: EntryIndex,
    /// The byte of the block that the program touches next, if that is known.
    target: Option<usize>,
    pub(super) outlook: Outlook,
    /// Keeps writers off a CoW mapping while it is copied.
    pub(super) quiesced: Option<Quiesced<'a, S>>,
    /// The blocks that were taken for the run. The first of them is for the entry `start`.
    pub(super) taken: Taken,
    start: EntryIndex,
}

impl<S: Sys> RegionCore<S> {
    /// Resolves a write to byte `offset` of the region. If the search for a block is not over, the program's write
    /// faults again, and signals are delivered in between.
    pub(crate) fn resolve(&self, offset: usize) -> Result<Resolution, Unresolved> {
        let size = self.pool().block_size;
        match self.make(Become::Writable, EntryIndex(size.count(offset)), Some(size.within(offset)), Turns::Free) {
            Err(Unresolved::NotYet) => Ok(Resolution::Raced),
            resolved => resolved,
        }
    }

    /// Makes the block at `index` what the caller wants. `target` is the byte in it that the program touches next, if
    /// that is known.
    pub(super) fn make(
        &self,
        what: Become,
        index: EntryIndex,
        target: Option<usize>,
        turns: Turns,
    ) -> Result<Resolution, Unresolved> {
        let (mut what, mut limit, mut short) = (what, self.accounts.limit, None);
        loop {
            let resolved = self.try_to_make(what, index, target, limit);
            // No lock is held here, so this thread may wait for others while it makes room.
            let counter = match resolved {
                Ok(Resolution::DemandZero) => &self.counters.demand_zero,
                Ok(Resolution::Copied) => &self.counters.copied,
                Ok(Resolution::Reused) => &self.counters.reused,
                Ok(Resolution::CowMapped) => &self.counters.cow_mapped,
                Ok(Resolution::Raced) => &self.counters.raced,
                Err(Unresolved::PoolFull) if what == Become::Writable && self.may_cow_map() => {
                    // A CoW mapping takes no block, so no other holder has to give one up.
                    what = Become::WritableByPage;
                    continue;
                }
                Err(Unresolved::PoolFull) => {
                    // Until this write is resolved, the pool's thread takes no blocks: the next free one is for the
                    // write.
                    short.get_or_insert_with(|| self.pool().note_writer_short_of_blocks());
                    match self.make_room(index, turns) {
                        Found::Some => continue,
                        Found::None => &self.counters.failed,
                        Found::LookAgain => return Err(Unresolved::NotYet),
                    }
                }
                Err(Unresolved::CowLimit) => {
                    if !self.write_back_a_charged_one() && !self.revoke_from_others(index) {
                        limit = None;
                    }
                    continue;
                }
                // The write has neither succeeded nor failed, and faults again.
                Err(Unresolved::NotYet) => return resolved,
                Err(
                    Unresolved::OutOfMemory(_)
                    | Unresolved::TooManyMappings
                    | Unresolved::Unmappable(_)
                    | Unresolved::Revoked,
                ) => &self.counters.failed,
            };
            count(counter, 1);
            return resolved;
        }
    }

    /// As [`RegionCore::make`], without making room.
    #[inline(never)] // Its locals are off the stack while the caller makes room.
    pub(in crate::region) fn try_to_make(
        &self,
        what: Become,
        index: EntryIndex,
        target: Option<usize>,
        limit: Option<usize>,
    ) -> Result<Resolution, Unresolved> {
        let early = seeded!("entry-read-before-the-lock").then(|| self.table.get(index));
        let window = self.table.lock(index);
        let publishing = self.lock.shared();
        let entry = early.unwrap_or_else(|| self.table.get(index));
        // A write-back or a copy would write-protect the CoW mapping for a moment, and a system call that writes to it
        // would fail.
        let stays = what != Become::Own && entry.is_writable_cow_mapping() && self.captured.is_prepared(index);
        let by_block = self.needed(entry, Grain::Block);
        let mut needed = if stays { OnWrite::AllowPageWrites } else { by_block };
        if needed == OnWrite::Nothing {
            // Another thread has made the block writable.
            self.see_to_right(Locked::windows(&window, &publishing), index)?;
            return Ok(Resolution::Raced);
        }
        let (outlook, start) = (self.habits.outlook(index, target, self.pool().block_size), index);
        let (quiesced, taken) = (None, Taken::NONE);
        let mut fault = Fault { region: self, window: &window, index, target, outlook, quiesced, taken, start };
        if needed == OnWrite::Copy && what.may_be_by_page() {
            needed = self.needed(entry, if what == Become::Writable { fault.grain(entry) } else { Grain::Page });
        }
        // A CoW mapping was charged to the limit when it became one, so its write-back is not charged again.
        let limit = if !what.may_be_by_page() && entry.is_cow_mapping() { None } else { limit };
        let resolved = match needed {
            OnWrite::GiveZeroed => {
                drop(publishing);
                fault.give_zeroed()
            }
            OnWrite::AllowWrites => fault.reuse(&publishing, entry),
            OnWrite::AllowPage => fault.write_page(&publishing),
            OnWrite::Copy => fault.copy(publishing, limit),
            OnWrite::CowMap | OnWrite::AllowPageWrites => match fault.by_page(&publishing, entry, limit) {
                // The kernel may refuse a writable private mapping where it grants a shared one: RLIMIT_DATA and
                // vm.overcommit_memory=2 count all of its pages, written or not.
                Err(Unresolved::Unmappable(_)) if by_block == OnWrite::Copy && what.may_be_by_page() => {
                    fault.copy(publishing, limit)
                }
                resolved => resolved,
            },
            OnWrite::WriteBack => fault.write_back(publishing),
            OnWrite::Nothing => Ok(Resolution::Raced),
            OnWrite::Refuse => Err(Unresolved::Revoked),
        };
        // If the copy failed, this makes the entry count as writable again, because the CoW mapping may have private
        // pages.
        fault.quiesced = None;
        // These two have released the region lock. A thread that took it twice could deadlock with a snapshot that
        // waits for it.
        let has_released = matches!(needed, OnWrite::Copy | OnWrite::WriteBack);
        let is_refused = has_released && matches!(resolved, Err(Unresolved::Unmappable(_)));
        if is_refused && what == Become::Writable && fault.goes_on_by_page() {
            return Ok(Resolution::CowMapped);
        }
        resolved
    }

    /// Writes back a charged CoW mapping whose block no other holder has any more, so that it counts against the limit
    /// no longer. True if there was one.
    fn write_back_a_charged_one(&self) -> bool {
        let is_free = |index: usize| self.table.get(EntryIndex(index)).is_charged() && self.may_write_back(index);
        let mut indices = 0..if self.accounts.charged.load(Ordering::Relaxed) > 0 { self.table.len() } else { 0 };
        let Some(index) = indices.find(|&index| is_free(index)) else { return false };
        self.try_to_make(Become::Own, EntryIndex(index), None, None).is_ok()
    }

    fn needed(&self, entry: Entry, grain: Grain) -> OnWrite {
        on_write(entry.state(), self.held(entry), grain).1
    }
}

impl<S: Sys> Fault<'_, S> {
    /// Resolves a first write: gives zeroed blocks to the entry and to neighbours that have none either.
    fn give_zeroed(&mut self) -> Result<Resolution, Unresolved> {
        let (_ahead, run) = self.unwritten();
        self.take(&run, Wanted::Zeroed)?;
        if seeded!("mapped-without-being-cleared") { self.obtain_fresh() } else { self.zero() }?;
        self.map(Resolution::DemandZero)
    }

    /// Makes a block that this region alone holds writable, together with neighbours in the same state.
    fn reuse(&self, publishing: &SharedGuard<'_>, entry: Entry) -> Result<Resolution, Unresolved> {
        let (region, locked) = (self.region, Locked::windows(self.window, publishing));
        let (_ahead, run) = self.alike(entry);
        region.reprotect(locked, Place::Own, run.clone(), Access::ReadWrite, Event::Write, |_| State::Private)?;
        region.habits.follow(self.outlook, EntryIndex(run.start), run.len());
        if matches!(entry, Entry::Lazy(_)) {
            count(&region.counters.bytes_cancelled, region.bytes_of(&run).len() as u64);
        }
        Ok(Resolution::Reused)
    }

    /// Resolves a write to a split block that this region alone holds.
    fn write_page(&self, publishing: &SharedGuard<'_>) -> Result<Resolution, Unresolved> {
        let locked = Locked::windows(self.window, publishing);
        let Some(split) = self.region.split(self.index) else { return Ok(Resolution::Reused) };
        split.write(locked, self.target.map(|byte| byte / BASE_PAGE))?;
        Ok(Resolution::Reused)
    }

    /// Resolves a write to a block that others hold: makes a copy for this region alone, and perhaps copies of
    /// neighbours.
    ///
    /// The run is chosen under the region lock. A snapshot first marks an entry as shared and then takes away the right
    /// to write. Until every processor knows of that, other threads still write to the block. But a snapshot holds the
    /// region lock exclusively all that time, so none is half done when the run is chosen. Blocks that others hold are
    /// write-protected then, and our window locks keep them so.
    fn copy(&mut self, publishing: SharedGuard<'_>, limit: Option<usize>) -> Result<Resolution, Unresolved> {
        let region = self.region;
        if region.table.get(self.index).is_cow_mapping() {
            let (locks, only) = (Locks::Windows(self.window), self.index.0..self.index.0 + 1);
            self.quiesced = Some(Quiesced::new(region, locks, only));
        }
        self.check_limit(limit)?;
        let (_ahead, run) = self.held_by_others();
        drop(publishing);
        if !region.addresses.can_hold() {
            self.keep_writers_off()?;
        }
        self.take(&run, Wanted::Any)?;
        self.obtain_fresh()?;
        self.copy_blocks();
        if region.addresses.can_hold() {
            // Not earlier, because writers change only private pages, and never the blocks that were copied.
            self.keep_writers_off().map_err(|reason| self.returned(reason))?;
        }
        self.patch()?;
        self.map(Resolution::Copied)
    }

    /// Checks that the forks and snapshots of this region may cost it one more copy.
    pub(super) fn check_limit(&self, limit: Option<usize>) -> Result<(), Unresolved> {
        let table = &self.region.table;
        match limit {
            Some(blocks) if table.get(self.index).is_owner() && self.region.accounts.cost() >= blocks => {
                Err(Unresolved::CowLimit)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Takes blocks for the entry and for as many entries of `run` around it as the pool has free neighbours for.
    fn take(&mut self, run: &Range<usize>, wanted: Wanted) -> Result<(), Unresolved> {
        let (pool, index) = (self.region.pool(), self.index);
        let wish = self.region.placement.hint(index, pool.frames.len());
        let reserved = self.region.table.reservation(index);
        let taken = pool.frames.take(wish, index.0 - run.start, run.end - 1 - index.0, wanted, reserved);
        self.taken = taken.ok_or(Unresolved::PoolFull)?;
        self.start = EntryIndex(index.0 - (self.taken.wanted.0 - self.taken.first.0) as usize);
        pool.stock.nudge(&pool.frames);
        Ok(())
    }

    /// Makes the taken blocks read as zeros.
    fn zero(&self) -> Result<(), Unresolved> {
        let pool = self.region.pool();
        let touched = self.target.map(|byte| pool.block_size.len_of(self.index.0 - self.start.0) + byte);
        let zeroed = pool.zero(self.taken, touched, self.outlook.manner);
        let bytes = zeroed.map_err(|error| self.returned(Unresolved::OutOfMemory(error)))?;
        let (counters, cleared) = (&self.region.counters, pool.block_size.count(bytes));
        count(&counters.blocks_cleared, cleared as u64);
        count(&counters.bytes_cleared, bytes as u64);
        count(&counters.blocks_zeroed_before, (self.taken.count - cleared) as u64);
        Ok(())
    }

    /// Gets memory for those of the taken blocks that have none.
    fn obtain_fresh(&self) -> Result<(), Unresolved> {
        let pool = self.region.pool();
        for (fresh, content) in pool.runs_by_content(self.taken) {
            if content == Content::Fresh {
                pool.obtain(fresh, 0).map_err(|error| self.returned(Unresolved::OutOfMemory(error)))?;
            }
        }
        Ok(())
    }

    /// Copies the entries' blocks into the taken blocks.
    fn copy_blocks(&self) {
        let pool = self.region.pool();
        let kernel = pool.kernel(Work::Copy, pool.block_size.bytes(), self.outlook.manner);
        for (by, new) in self.taken.blocks().enumerate() {
            pool.frames.set_content(new, Content::Used);
            let index = EntryIndex(self.start.0 + by);
            let Some(old) = self.region.table.get(index).block() else { continue };
            let target = self.target.filter(|_| index == self.index);
            // SAFETY: both blocks lie in the direct map and are page-aligned. `new` is ours alone and mapped nowhere
            // else. This entry holds `old`, under its window lock. Others held it too when the run was chosen, so it is
            // write-protected wherever it is mapped, and nobody writes to it.
            unsafe {
                kernel.copy(
                    pool.direct(new),
                    pool.direct(old),
                    pool.block_size.bytes(),
                    target.map_or(Target::Unknown, Target::At),
                );
            }
        }
        count(&self.region.counters.blocks_copied, self.taken.count as u64);
        count(&self.region.counters.bytes_copied, pool.block_size.len_of(self.taken.count) as u64);
    }

    /// Maps the taken blocks, writable, and releases the old ones. That resolves the write.
    fn map(&mut self, resolved: Resolution) -> Result<Resolution, Unresolved> {
        let (region, entries) = (self.region, self.start.0..self.start.0 + self.taken.count);
        let publishing = region.lock.shared();
        let locked = Locked::windows(self.window, &publishing);
        seeded!("reference-dropped-before-the-mapping-goes").then(|| self.store(locked, entries.clone()));
        let shows = Shows::Memory { start: self.taken.first, access: Access::ReadWrite };
        let remapped = region.remap(locked, Place::Own, &entries, shows);
        let remapped = remapped.map_err(|refused| self.returned(refused.into()))?;
        let right = remapped.right();
        remapped.published(self.store(locked, entries.clone()));
        if let Err(error) = right {
            // The blocks are shown but may be read-only: the next write asks for the right to write again.
            region.note_failed_protection(locked, entries);
            return Err(Unresolved::Unmappable(error));
        }
        drop(publishing);
        if let Some(quiesced) = self.quiesced.take() {
            quiesced.done();
        }
        region.habits.follow(self.outlook, self.start, self.taken.count);
        Ok(resolved)
    }

    fn store(&self, locked: Locked<'_>, entries: Range<usize>) -> Recount {
        let content = if seeded!("used-block-counts-as-zero") { Content::Clean } else { Content::Used };
        self.region.store(locked, Event::Write, entries, |alike, _| {
            let first = self.taken.first.offset(alike.start - self.start.0);
            for by in 0..alike.len() {
                self.region.pool().frames.set_content(first.offset(by), content);
            }
            Entry::Private(first)
        })
    }

    /// Gives back the taken blocks, which could not be used, and returns the reason.
    pub(super) fn returned(&self, reason: Unresolved) -> Unresolved {
        if !seeded!("blocks-kept-after-a-failure") {
            self.region.pool().give_back(self.taken);
        }
        reason
    }
}
