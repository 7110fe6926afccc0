//! A reset gives a region the bytes of a snapshot again. It costs as much as was written since.
//!
//! | methods of `RegionCore` | purpose |
//! |---|---|
//! | `reset_to` | resets the region |
//! | `check_fits` | says whether a snapshot is of a region like this one |
//! | `bytes_for_resets` | says how much memory the region keeps for its resets |
//! | `may_take_pages`, `take_pages_of`, `dirty_list` | give a new fork the pages of its snapshot |
//!
//! ```text
//!   keep writers off ─▶ find the private pages ─▶ put them back ─▶ exchange the other blocks ─▶ resume writers
//! ```
//! | the region's entry | what the reset does |
//! |---|---|
//! | shows the snapshot's block | nothing |
//! | … with private pages over it | copies the block's bytes into them; they stay, so the next write takes no fault |
//! | shows something else | shows the snapshot's block in its place, as a fork does |
//! | … its own block, reset after reset | copies the snapshot's bytes into the block, which stays |
//! | pinned | copies the snapshot's bytes into the block, which stays |
//!
//! | way | used when | threads that wait |
//! |---|---|---|
//! | alone | the program has no other thread | none |
//! | at one moment (at_once.rs) | nothing differs but private pages in one mapping | writers, for some microseconds |
//! | held | otherwise | writers, until all is done |
//!
//! Alone, a reset saves most system calls. The engine's own threads do not disturb it: they change entries only under
//! the region lock, or under `maintenance`, and a reset takes both. A reset that keeps writers off also has the locks
//! of all windows. Otherwise a fault that has copied a block could publish bytes from before the reset.
//!
//! A reset keeps writers off as a snapshot does. If the region copies by page and its system calls may wait, all
//! contents are parked meanwhile, and the reset puts the pages back there (put_back.rs). Otherwise the pages are
//! read-only then, so the reset writes to them by way of the kernel; where the kernel refuses, it drops them instead.
//! Entries that show other blocks are exchanged (exchange.rs).
//!
//! The reset is a consistent cut, by the argument of cut/freeze.rs: a write that lands before its page is protected is
//! gone, and a thread that writes later waits until the region is reset.

mod at_once;
mod by_sets;
mod exchange;
mod put_back;
mod reset_all;

pub(crate) use reset_all::{Pair, reset_all};

use reset_all::{Failed, reset_each};

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use crate::mapping::addresses::Place;
use crate::ranges::runs;
use crate::region::private::{Locks, Quiesced};
use crate::region::state::{DirtyList, RegionCore, Unresolved};
use crate::snapshot::core::SnapshotCore;
use crate::stats::counters::count;
use crate::sys::{Sys, SystemError};
use crate::table::transition::{Event, OnShare, on_share};
use crate::table::{Entry, Locked, WindowsGuard};
use crate::types::error::{RegionError, ResetError};
use crate::units::EntryIndex;

/// The kernel moves the page tables of this many bytes as one entry.
const GIB: usize = 1 << 30;

/// Why a reset ends early.
enum Stop {
    /// Nothing has changed. The region cannot show pages over blocks, so the snapshot has to make whole blocks of them
    /// first.
    Incomplete,
    /// The first `done` bytes are as in the snapshot.
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
        let attempt = || self.try_to_reset(frozen).map_err(|stop| Failed { nth: 0, done: 0, stop });
        reset_each(&[(self, frozen)], || self.take_turn(), attempt)
    }

    /// The bytes of memory that the region keeps for its resets.
    pub(crate) fn bytes_for_resets(&self) -> usize {
        self.dirty_list.lock().unwrap_or_else(PoisonError::into_inner).bytes()
    }

    /// Checks that the snapshot is of a region like this one, in this pool.
    pub(crate) fn check_fits(&self, frozen: &SnapshotCore<S>) -> Result<(), RegionError> {
        if !self.pool().is(frozen.pool()) {
            return Err(RegionError::AnotherPool { pool: self.pool().name.clone(), other: frozen.pool().name.clone() });
        }
        if self.len() != frozen.len() {
            return Err(RegionError::AnotherLength { len: self.len(), other: frozen.len() });
        }
        Ok(())
    }

    fn check_goal(&self, frozen: &SnapshotCore<S>) -> Result<(), RegionError> {
        self.check_fits(frozen)?;
        if self.may_take_pages() && self.puts_back_all() { Ok(()) } else { frozen.complete() }
    }

    /// Locks the list from the last reset, and makes room for the sets of a snapshot. The caller has the region's turn.
    pub(in crate::region) fn dirty_list(&self, frozen: &SnapshotCore<S>) -> MutexGuard<'_, DirtyList> {
        let mut dirty = self.dirty_list.lock().unwrap_or_else(PoisonError::into_inner);
        dirty.prepare(self.table.len());
        let has_sets = self.captured.are_any();
        if has_sets {
            // A reset writes to private pages, even where the program may not.
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

    /// One try. The caller has the region's turn.
    fn try_to_reset(&self, frozen: &SnapshotCore<S>) -> Result<(), Stop> {
        let dirty = &mut *self.dirty_list(frozen);
        let is_held = !self.pool().sys.is_alone() && !seeded!("reset-without-holding-writers");
        let maintenance = self.maintenance.lock();
        if is_held && self.reset_at_once(frozen, dirty) {
            return Ok(());
        }
        let windows = if is_held { self.table.lock_windows(0..self.table.windows()) } else { WindowsGuard::default() };
        let alone = self.lock.exclusive();
        // A region that wants to revoke a block of the snapshot waits until this region has the block, too.
        let frozen_alone = frozen.lock.exclusive();
        let locks = (Locked::alone(&alone), Some(Locked::alone(&frozen_alone)));
        let came = Reset::new((self, frozen), locks, dirty, is_held).run();
        drop((frozen_alone, alone, windows, maintenance));
        came
    }

    /// One try without the locks of the windows, because it takes 5 us to lock those of 1 GiB.
    ///
    /// No entry gets another block here. So the reset only has to meet no fault that is half done. Such a fault may
    /// have released the region lock, but its window is locked until it ends. Faults that begin later wait for the
    /// region lock.
    fn reset_at_once(&self, frozen: &SnapshotCore<S>, dirty: &mut DirtyList) -> bool {
        let alone = self.lock.exclusive();
        // The snapshot does not change, so other regions may be reset to it at the same time. But below 1 GiB the
        // kernel moves page tables one by one and interrupts all other processors for each. Then it is faster to reset
        // one region after the other.
        let is_moved = self.len() < GIB && (dirty.until_try == 0 || self.accounts.calls_wait);
        let (_alone, _looking) = match is_moved {
            true => (Some(frozen.lock.exclusive()), None),
            false => (None, Some(frozen.lock.shared())),
        };
        let mut reset = Reset::new((self, frozen), (Locked::alone(&alone), None), dirty, true);
        !self.table.has_locked_windows() && reset.run_at_once()
    }
}

/// A reset under way. No other thread changes an entry of the region or the snapshot.
struct Reset<'a, S: Sys> {
    region: &'a RegionCore<S>,
    frozen: &'a SnapshotCore<S>,
    locked: Locked<'a>,
    /// The proof that the snapshot's entries may be changed; `None` in a reset that changes none of them.
    frozen_locked: Option<Locked<'a>>,
    dirty: &'a mut DirtyList,
    /// Whether other threads may write, so that the reset has to keep them off.
    is_held: bool,
    /// Keeps writers off the whole region, if other threads may write; or off the staged run.
    quiesced: Option<Quiesced<'a, S>>,
    /// The run whose private pages are staged, in a reset of several regions.
    staged: Option<Range<usize>>,
    /// Where the contents of the CoW mappings are at the moment.
    place: Place,
    /// Whether the snapshot has pages over blocks.
    has_sets: bool,
    /// Whether the reset marks pages at its end.
    marks: bool,
}

impl<'a, S: Sys> Reset<'a, S> {
    fn new(
        (region, frozen): Pair<'a, S>,
        (locked, frozen_locked): (Locked<'a>, Option<Locked<'a>>),
        dirty: &'a mut DirtyList,
        is_held: bool,
    ) -> Reset<'a, S> {
        let (quiesced, staged, place) = (None, None, Place::Own);
        let (has_sets, marks) = (frozen.has_pages(), false);
        Reset { region, frozen, locked, frozen_locked, dirty, is_held, quiesced, staged, place, has_sets, marks }
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

    /// Resumes the writers that were kept off, after the reset is done or has failed.
    fn release(&mut self, is_done: bool) {
        let Some(mut quiesced) = self.quiesced.take() else { return };
        if self.place == Place::Parked {
            // For blocks that were exchanged meanwhile, the entries do not say whether they are parked.
            quiesced.unpark_in(runs(0..self.region.table.len(), |index| self.dirty.blocks[index].is_parked));
            self.dirty.blocks.iter_mut().for_each(|block| block.is_parked = false);
            self.place = Place::Own;
        }
        if is_done {
            // CoW mappings become writable, as far as that can be done. The rest is left to faults. With a limit, each
            // is charged when it is written to.
            let has_limit = self.region.accounts.limit.is_some();
            for run in self.region.cow_mappings(0..if has_limit { 0 } else { self.region.table.len() }) {
                let _ = self.region.allow_writes(self.locked, run, Place::Own);
            }
            quiesced.done();
        } else {
            drop(quiesced);
        }
        self.region.count_mappings_anew();
    }

    /// Sets all entries back. No other thread writes meanwhile.
    fn set_back(&mut self) -> Result<(), Stop> {
        let came = self.set_each_back();
        if matches!(came, Err(Stop::At { .. })) && self.goes_by_sets() {
            // Some pages have the snapshot's bytes by now and others do not, so no set describes them.
            self.region.captured.outdate(0..self.region.table.len());
        }
        came
    }

    fn set_each_back(&mut self) -> Result<(), Stop> {
        self.tell();
        let faults = self.look()?;
        self.region.captured.end_prepared();
        // Until the reset is done, the list may lack private pages.
        self.dirty.seen_at = None;
        if !self.is_held {
            self.allow_writes()?;
        }
        self.put_back()?;
        self.change_all()?;
        let unlisted = self.put_back_by_sets()?;
        self.note_sets();
        if self.marks {
            self.mark_told();
        }
        self.region.accounts.origin.set(self.frozen.id);
        count(&self.region.counters.resets, 1);
        // The count from before the scan: even if this thread is alone, the kernel may have written for it since.
        self.dirty.seen_at = Some(faults).filter(|_| unlisted == 0 && !self.marks);
        Ok(())
    }

    /// Keeps writers off, as a snapshot does. After a failure the entries are correct, whether writers are kept off or
    /// not.
    fn hold(&mut self) -> Result<(), Unresolved> {
        let (region, locked, all) = (self.region, self.locked, 0..self.region.table.len());
        let quiesced = self.quiesced.insert(Quiesced::new(region, Locks::Region(locked), all.clone()));
        for run in region.visible(all.clone()) {
            region.store(locked, Event::Snapshot, run, |alike, old| {
                let (next, on) = on_share(old.state(), region.pins.of(EntryIndex(alike.start)));
                debug_assert!(!matches!(on, OnShare::GiveCopy | OnShare::Refuse));
                old.in_state(next)
            });
        }
        let kept_off = quiesced.keep_all_off(1);
        self.place = quiesced.place;
        if self.place == Place::Own {
            return kept_off;
        }
        for index in all.clone() {
            let entry = region.table.get(EntryIndex(index));
            self.dirty.blocks[index].is_parked = entry.is_cow_mapping() || matches!(entry, Entry::Shared(..));
        }
        kept_off?;
        region.cow_mappings(all).try_for_each(|run| region.allow_writes(locked, run, self.place))
    }

    /// Makes all CoW mappings writable that count as writable.
    fn allow_writes(&mut self) -> Result<(), Unresolved> {
        let region = self.region;
        if !region.accounts.unsure.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let is_open = |index: usize| region.table.get(EntryIndex(index)).is_writable_cow_mapping();
        for run in runs(0..region.table.len(), is_open) {
            // After a failure, the next reset tries again.
            let note = |_: &Unresolved| region.accounts.unsure.store(true, Ordering::Relaxed);
            region.allow_writes(self.locked, run, Place::Own).inspect_err(note)?;
        }
        Ok(())
    }
}
