//! A reset: the region has the bytes of a snapshot again, at the cost of what was written since.
//!
//! | of `RegionCore` | what |
//! |---|---|
//! | `reset_to` | resets the region |
//! | `bytes_for_resets` | what is known for that takes so much |
//! | `may_take_pages`, `take_pages_of`, `dirty_list` | a new fork gets the pages of its snapshot |
//!
//! ```text
//!   hold writers ─▶ look which pages are private ─▶ put those back ─▶ exchange the other blocks ─▶ let writers go on
//! ```
//! | entry | what |
//! |---|---|
//! | shows the snapshot's block | nothing |
//! | … with private pages over it | they get the block's bytes and stay, so that the next write there takes no fault |
//! | shows something else | the block is exchanged for the snapshot's, as if it were a fork's |
//! | … its own block, again and again | that gets the snapshot's bytes and stays |
//! | pinned | it gets the snapshot's bytes and stays |
//!
//! | way | when | who waits |
//! |---|---|---|
//! | alone | the program has no other thread | nobody |
//! | at one moment (at_once.rs) | nothing differs but private pages in one mapping | writers, for some microseconds |
//! | held | otherwise | writers, until all is done |
//!
//! Alone, most calls are saved. The engine's own threads change entries only under the region lock, or the lock of
//! their own that a reset takes. Who holds others has the locks of all windows: a fault that copies a block must not
//! publish what was there before.
//!
//! Writers are held as at a snapshot. Where the kernel is to copy whatever comes and calls are to wait, they do so
//! while all is parked, and the pages are put back there (put_back.rs). Elsewhere pages cannot be written to then, but
//! by way of the kernel; where it refuses, they are dropped in place of being put back. What shows other blocks is
//! exchanged (exchange.rs).
//!
//! The cut is consistent both ways, by the argument of cut/freeze.rs: a write that lands before its page is protected
//! is gone, and a thread that writes later waits until the region is reset.

mod at_once;
mod by_sets;
mod exchange;
mod put_back;
mod reset_all;

pub(crate) use reset_all::{Pair, reset_all};

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use crate::mapping::addresses::Place;
use crate::ranges::runs;
use crate::region::private::{Locks, Quiesced};
use crate::region::state::operations;
use crate::region::state::{DirtyList, RegionCore, Unresolved};
use crate::snapshot::core::SnapshotCore;
use crate::stats::counters::count;
use crate::sync::SignalsBlocked;
use crate::sys::{Sys, SystemError};
use crate::table::transition::{Event, OnShare, on_share};
use crate::table::{Entry, Locked, WindowsGuard};
use crate::types::error::{RegionError, ResetError};
use crate::units::EntryIndex;

/// The kernel moves page tables of so much as one entry.
const GIB: usize = 1 << 30;

/// Why a reset ends before its end.
enum Stop {
    /// Nothing has changed: the region can do nothing with pages, so the snapshot is to make blocks of its own first.
    Incomplete,
    /// What comes before `done` bytes is as the snapshot.
    At { done: usize, reason: Unresolved },
}

impl From<Unresolved> for Stop {
    fn from(reason: Unresolved) -> Stop {
        Stop::At { done: 0, reason }
    }
}

impl From<SystemError> for Stop {
    fn from(error: SystemError) -> Stop {
        Unresolved::Unmappable(error).into()
    }
}

impl<S: Sys> RegionCore<S> {
    /// Gives the region the bytes of a snapshot.
    pub(crate) fn reset_to(&self, frozen: &SnapshotCore<S>) -> Result<(), ResetError> {
        self.check_goal(frozen).map_err(|reason| ResetError { done: 0, reason })?;
        loop {
            let over = operations::over_and_then([self].into_iter(), || self.take_turn());
            let (between, turn) = over.map_err(|reason| ResetError { done: 0, reason })?;
            let signals = SignalsBlocked::new();
            let mut dirty = self.dirty_list(frozen);
            let came = self.try_to_reset(frozen, &mut dirty);
            drop((dirty, signals));
            self.captured.drop_replaced();
            drop((between, turn));
            // From here on, no lock is held: errors allocate.
            let (done, reason) = match came {
                Ok(()) => break,
                Err(Stop::Incomplete) => {
                    frozen.complete().map_err(|reason| ResetError { done: 0, reason })?;
                    continue;
                }
                Err(Stop::At { done, reason }) => (done, self.error(reason)),
            };
            return Err(ResetError { done, reason });
        }
        self.reserve_again(0..self.table.len()).map_err(|reason| ResetError { done: self.len(), reason })
    }

    /// Bytes that resets take.
    pub(crate) fn bytes_for_resets(&self) -> usize {
        self.dirty_list.lock().bytes()
    }

    fn check_goal(&self, frozen: &SnapshotCore<S>) -> Result<(), RegionError> {
        if !self.pool().is(frozen.pool()) {
            return Err(RegionError::AnotherPool { pool: self.pool().name.clone(), other: frozen.pool().name.clone() });
        }
        if self.len() != frozen.len() {
            return Err(RegionError::AnotherLength { len: self.len(), other: frozen.len() });
        }
        if self.may_take_pages() { Ok(()) } else { frozen.complete() }
    }

    /// What is known from the last reset, with room for the sets of a snapshot. Under the lock that keeps snapshots and
    /// resets apart.
    pub(in crate::region) fn dirty_list(&self, frozen: &SnapshotCore<S>) -> MutexGuard<'_, DirtyList> {
        let mut dirty = self.dirty_list.lock();
        dirty.prepare(self.table.len());
        let has_sets = self.captured.are_any();
        if has_sets {
            // It writes to private pages, whatever the program may.
            self.captured.may_change(0..self.table.len());
        }
        if has_sets || frozen.has_pages() {
            self.captured.make_room();
        }
        if self.accounts.has_cow_mappings() || frozen.has_pages() {
            self.addresses.claim_staging();
        }
        dirty
    }

    /// One try, under the lock that keeps snapshots and resets apart.
    fn try_to_reset(&self, frozen: &SnapshotCore<S>, dirty: &mut DirtyList) -> Result<(), Stop> {
        let is_held = !self.pool().sys.is_alone() && !seeded!("reset-without-holding-writers");
        let maintenance = self.maintenance.lock();
        if is_held && self.reset_at_once(frozen, dirty) {
            return Ok(());
        }
        let windows = if is_held { self.table.lock_windows(0..self.table.windows()) } else { WindowsGuard::default() };
        let alone = self.lock.exclusive();
        // Whoever wants a block of the snapshot back waits until the region has it, too.
        let frozen_alone = frozen.lock.exclusive();
        let locks = (Locked::alone(&alone), Some(Locked::alone(&frozen_alone)));
        let came = Reset::new((self, frozen), locks, dirty, is_held).run();
        drop((frozen_alone, alone, windows, maintenance));
        came
    }

    /// One try without the locks of the windows. It takes 5 us to have those of 1 GiB.
    ///
    /// No entry gets another block. So it is enough that no fault, which lets go of the region lock in between, has
    /// looked at an entry: it would have its window locked by now. Whoever comes later waits for the region lock.
    fn reset_at_once(&self, frozen: &SnapshotCore<S>, dirty: &mut DirtyList) -> bool {
        let alone = self.lock.exclusive();
        // Nothing of the snapshot changes, and other regions may go back to it, too. But where page tables move one by
        // one, with an interrupt of all other processors for each, it is faster one region after the other.
        let _looking = (self.len() >= GIB).then(|| frozen.lock.shared());
        let _alone = (self.len() < GIB).then(|| frozen.lock.exclusive());
        let mut reset = Reset::new((self, frozen), (Locked::alone(&alone), None), dirty, true);
        !self.table.has_locked_windows() && reset.run_at_once()
    }
}

/// A reset under way. Nobody else changes an entry of the region or the snapshot.
struct Reset<'a, S: Sys> {
    region: &'a RegionCore<S>,
    frozen: &'a SnapshotCore<S>,
    locked: Locked<'a>,
    /// The snapshot's entries change only where a region's do.
    frozen_locked: Option<Locked<'a>>,
    dirty: &'a mut DirtyList,
    /// Whether others may write, so that they have to be held.
    is_held: bool,
    /// Keeps writers off the whole region, if they are held.
    quiesced: Option<Quiesced<'a, S>>,
    /// Where CoW mappings are meanwhile.
    place: Place,
    /// How far blocks were exchanged, in bytes.
    done: usize,
    /// Whether the snapshot has pages over blocks.
    has_sets: bool,
    /// Whether pages get marks once all is done.
    marks: bool,
}

impl<'a, S: Sys> Reset<'a, S> {
    fn new(
        (region, frozen): Pair<'a, S>,
        (locked, frozen_locked): (Locked<'a>, Option<Locked<'a>>),
        dirty: &'a mut DirtyList,
        is_held: bool,
    ) -> Reset<'a, S> {
        let (place, has_sets) = (Place::Own, frozen.has_pages());
        Reset {
            region,
            frozen,
            locked,
            frozen_locked,
            dirty,
            is_held,
            quiesced: None,
            place,
            done: 0,
            has_sets,
            marks: false,
        }
    }

    fn run(&mut self) -> Result<(), Stop> {
        if self.frozen.is_revoked() {
            return Err(Unresolved::Revoked.into());
        }
        self.take_sets()?;
        if !self.is_held {
            return self.set_back();
        }
        if self.run_at_once() {
            return Ok(());
        }
        let came = self.hold().map_err(Stop::from).and_then(|()| self.set_back());
        self.release(came.is_ok());
        came
    }

    /// Resumes writers who were held, after all is done or something has failed.
    fn release(&mut self, is_done: bool) {
        let (region, all) = (self.region, 0..self.region.table.len());
        let Some(mut quiesced) = self.quiesced.take() else { return };
        if self.place == Place::Parked {
            // Of what was exchanged meanwhile, the entries do not say whether it is parked.
            quiesced.unpark_in(runs(all.clone(), |index| self.dirty.parked[index]));
            self.dirty.parked.fill(false);
            self.place = Place::Own;
        }
        if is_done {
            self.resume_writes();
            quiesced.done();
        } else {
            drop(quiesced);
        }
        region.addresses.recount(region.addresses.mappings(), 1 + region.shown().edges(all));
    }

    /// Sets all entries back. Nobody else writes meanwhile.
    fn set_back(&mut self) -> Result<(), Stop> {
        let came = self.set_each_back();
        if matches!(came, Err(Stop::At { .. })) && self.goes_by_sets() {
            // Some pages are as the snapshot's by now, and others are not.
            self.region.captured.outdate(0..self.region.table.len());
        }
        came
    }

    fn set_each_back(&mut self) -> Result<(), Stop> {
        self.tell();
        let faults = self.look()?;
        self.region.captured.end_prepared();
        // Until all is done, what is known may be less than what there is.
        self.dirty.seen_at = None;
        if !self.is_held {
            self.allow_writes()?;
        }
        self.put_back()?;
        // Pages that sets tell of are put back at the end.
        self.change_all()
            .map_err(|reason| Stop::At { done: if self.goes_by_sets() { 0 } else { self.done }, reason })?;
        let unlisted = self.put_back_by_sets()?;
        self.note_sets();
        if self.marks {
            self.mark_told();
        }
        self.region.accounts.origin.set(self.frozen.id);
        count(&self.region.counters.resets, 1);
        // Those of before the look: even alone, the kernel may have written since, for this thread.
        self.dirty.seen_at = Some(faults).filter(|_| unlisted == 0 && !self.marks);
        Ok(())
    }

    /// Keeps writers off, as a snapshot does. If that fails, the entries are correct whether they are or not.
    fn hold(&mut self) -> Result<(), Unresolved> {
        let (region, locked, all) = (self.region, self.locked, 0..self.region.table.len());
        let quiesced = self.quiesced.insert(Quiesced::new(region, Locks::Region(locked), all.clone()));
        region.each_visible(all.clone(), |run| {
            region.store(locked, Event::Snapshot, run, |alike, old| {
                let (next, on) = on_share(old.state(), region.pins.of(EntryIndex(alike.start)));
                debug_assert!(!matches!(on, OnShare::GiveCopy | OnShare::Refuse));
                old.in_state(next)
            });
            Ok(())
        })?;
        let kept_off = quiesced.keep_all_off(1);
        self.place = quiesced.place();
        if self.place == Place::Own {
            return kept_off;
        }
        for index in all.clone() {
            self.dirty.parked[index] = match region.table.get(EntryIndex(index)) {
                Entry::Shared(..) | Entry::CowMapped(..) => true,
                Entry::Zero | Entry::Private(_) | Entry::Lazy(_) | Entry::Split(_) | Entry::Revoked => false,
            };
        }
        kept_off?;
        region.cow_mappings(all).try_for_each(|run| region.allow_writes(locked, run, self.place))
    }

    /// Gives the right to write to CoW mappings, as far as that can be done. The rest is left to faults.
    fn resume_writes(&mut self) {
        let region = self.region;
        if region.accounts.limit.is_some() {
            // Each is charged to the limit when it is written to.
            return;
        }
        for run in region.cow_mappings(0..region.table.len()) {
            let _ = region.allow_writes(self.locked, run, Place::Own);
        }
    }

    /// Sees to it that all that counts as writable is.
    fn allow_writes(&mut self) -> Result<(), Unresolved> {
        let region = self.region;
        if !region.accounts.unsure.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let is_open = |index: usize| region.table.get(EntryIndex(index)).is_writable_cow_mapping();
        for run in runs(0..region.table.len(), is_open) {
            let writable = region.allow_writes(self.locked, run, Place::Own);
            // The next reset is to see to it.
            region.accounts.unsure.fetch_or(writable.is_err(), Ordering::Relaxed);
            writable?;
        }
        Ok(())
    }
}
