//! The maintenance thread. It writes CoW mappings back whose blocks only their region holds, and promotes CoW mappings
//! that the program writes to densely (region/maintain.rs).
//!
//! The kernel reports nothing when it copies a page. But each copy is a minor fault of the process: while their count
//! stands still, there are no new private pages. So the thread inspects CoW mappings only after the count has grown by
//! several faults for each of them, or after a holder has let go of blocks. Even then it inspects a sample first: if
//! those have as many pages as there were faults for each, the others are alike. The thread sleeps without a timer
//! while there are no CoW mappings, and reads the count four times a second while it stands still.
//!
//! The thread also finds out how the program writes. A program that writes as fast as it can is served best by the
//! least total work: its writers copy whole blocks. A *paced* program, whose threads sleep between writes, is served
//! best by short waits: its writes are copied by page, and this thread promotes the blocks. Then the thread uses at
//! most a third of a processor, and rests often, because a writer that wakes on the same processor would wait for it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, iter};

use super::core::PoolCore;
use super::holders::{CowMappingHolder, Holder};
use super::lineage::RegionId;
use super::unheld::USELESS;
use super::worker::{Parker, Worker};
use crate::mem::EngineArc;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::units::BASE_PAGE;

/// The time between two reads of the fault count while it grows.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The time between two reads of the fault count while it stands still. A new CoW mapping ends it.
const QUIET_LOOK_EVERY: Duration = Duration::from_millis(250);

/// After this many reads without a change, the count stands still.
const QUIET_LOOKS: u32 = 16;

/// When the count has stood still for this long, the thread gives back memory that was allocated ahead and is unused.
const UNUSED_GOES_BACK_AFTER: Duration = Duration::from_secs(1);
const UNUSED_LOOKS: u32 = QUIET_LOOKS + (UNUSED_GOES_BACK_AFTER.as_millis() / QUIET_LOOK_EVERY.as_millis()) as u32;

/// This many faults for each CoW mapping are worth a look at a sample. A look at all takes about 2 us for each CoW
/// mapping, as long as a fault.
const FAULTS_A_COW_MAPPING: u64 = 2;

/// Fewer faults than this are worth no look.
const LEAST_FAULTS: u64 = 64;

/// A program becomes paced when its threads go to sleep at least `.0` times in a millisecond. It is no longer paced
/// when they go to sleep less than once in `.1` milliseconds.
const PACED_SLEEPS_A_MS: (u64, u64) = (1, 10);

/// A paced program takes fewer faults than this in a millisecond. A program that takes more spends its time on faults.
const PACED_FAULTS_A_MS: u64 = 1_000;

/// In a paced program, the thread rests after this much work, twice as long as it worked, but no longer than
/// [`LONGEST_REST`].
const WORTH_A_REST_NS: u64 = 30_000;
const LONGEST_REST: Duration = Duration::from_millis(2);

/// How long the thread observes the program before it decides whether the program is paced.
const OBSERVED_NS: u64 = 4_000_000;

/// The state that the thread shares with faults and calls.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    pub(super) parker: Parker,
    cow_mappings: AtomicUsize,
    /// A holder has let go of blocks, or memory is short.
    nudged: AtomicBool,
    /// Memory is short, so pages of a CoW mapping, which take less of it, are preferred to blocks.
    is_short: AtomicBool,
    /// The program's threads sleep between writes.
    is_paced: AtomicBool,
    /// A cut has captured all pages that were private.
    is_cut: AtomicBool,
    /// The blocks that copies may take although several snapshots keep one. The next cut needs the others for pages.
    spare: AtomicUsize,
    /// Whether a copy found none of them.
    lacks_spare: AtomicBool,
    /// The start of the present observation of the program's pace.
    observed_from: Mutex<Moment>,
}

/// A moment: its time in nanoseconds, the process's faults until then, and how often its threads had gone to sleep.
#[derive(Debug, Default)]
struct Moment {
    time: u64,
    faults: u64,
    sleeps: u64,
}

impl Maintenance {
    /// Adds `more`, which may be negative, to the number of CoW mappings. The fault handler calls this.
    pub(crate) fn count(&self, more: isize) {
        // Adding a wrapped negative number subtracts.
        self.cow_mappings.fetch_add(more.cast_unsigned(), Ordering::SeqCst);
        if more > 0 {
            self.parker.wake();
        }
    }

    /// Notes that a holder has let go of blocks, which may be below CoW mappings, and wakes the thread.
    pub(crate) fn nudge(&self) {
        if self.cow_mappings() > 0 {
            self.nudged.store(true, Ordering::SeqCst);
            self.parker.wake();
        }
    }

    /// Notes that a cut has captured all pages that were private.
    pub(crate) fn note_cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }

    /// Sets the number of blocks that the next cut does not need.
    pub(crate) fn set_spare(&self, blocks: usize) {
        self.spare.store(blocks, Ordering::Relaxed);
    }

    /// Takes one of the blocks that the next cut does not need. False if there is none.
    pub(crate) fn take_spare(&self) -> bool {
        let taken = self.spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |spare| spare.checked_sub(1));
        self.lacks_spare.store(taken.is_err(), Ordering::Relaxed);
        taken.is_ok()
    }

    /// Notes whether memory is short. While it is, nothing is promoted. When it becomes short, the thread at once
    /// writes back as much as it can, because a page that goes back into its block becomes free memory.
    pub(crate) fn tell_short(&self, is_short: bool) {
        self.is_short.store(is_short, Ordering::SeqCst);
        if is_short {
            self.nudge();
        }
    }

    /// Whether memory is short.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::SeqCst)
    }

    /// Whether the program is paced: each single wait then matters more to it than the total work. False while nothing
    /// is known. The fault handler calls this.
    pub(crate) fn is_paced(&self) -> bool {
        self.is_paced.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn set_paced(&self, is_paced: bool) {
        self.is_paced.store(is_paced, Ordering::Relaxed);
    }

    /// How many CoW mappings there are.
    pub(super) fn cow_mappings(&self) -> usize {
        self.cow_mappings.load(Ordering::SeqCst)
    }
}

impl<S: Sys> PoolCore<S> {
    /// Starts the thread if there can be CoW mappings. Without the thread, the next snapshot writes them back.
    pub(crate) fn start_maintenance(this: &EngineArc<Self>) -> io::Result<Option<Worker>> {
        if !this.sys.has_cow_mappings() {
            return Ok(None);
        }
        let (working, telling) = (this.clone(), this.clone());
        let work = move || working.maintain();
        let worker = Worker::start("hugefork-maint", work, move || telling.maintenance.parker.tell_to_end())?;
        this.ahead.running.store(this.ahead.most > 0, Ordering::Relaxed);
        Ok(Some(worker))
    }

    /// Maintains CoW mappings until it is told to end. This is the body of the thread.
    fn maintain(&self) {
        let maintenance = &self.maintenance;
        let (mut seen, mut last, mut quiet) = (self.sys.minor_faults(), 0, 0);
        let (mut looked, mut at_cut, mut last_cut) = (seen, seen, 0);
        *self.observed_from() = Moment { time: self.sys.now(), faults: seen, sleeps: self.sys.sleeps() };
        self.unheld.set_served(true);
        while !maintenance.parker.is_over() {
            self.answer_shortage();
            if maintenance.cow_mappings() == 0 {
                // Memory that was allocated ahead and stays unused for long goes back first.
                let time = self.ahead.has_some.load(Ordering::Relaxed).then_some(UNUSED_GOES_BACK_AFTER);
                if maintenance.parker.sleep(time, || maintenance.cow_mappings() > 0 || self.unheld.is_asked()) {
                    self.give_back_unused();
                }
                (seen, quiet) = (self.sys.minor_faults(), 0);
                (looked, at_cut) = (seen, seen);
            } else if quiet > QUIET_LOOKS {
                if quiet == UNUSED_LOOKS {
                    self.give_back_unused();
                }
                maintenance.parker.sleep(Some(QUIET_LOOK_EVERY), || false);
            } else {
                maintenance.parker.pause(LOOK_EVERY);
            }
            self.sys.tidy();
            let faults = self.sys.minor_faults();
            self.decide_pace();
            // Each fault since the last cut gives the next cut at most one page to capture.
            let due = |at_cut: u64| self.block_size.count(faults.wrapping_sub(at_cut) as usize * BASE_PAGE);
            if maintenance.is_cut.swap(false, Ordering::Relaxed) {
                (last_cut, at_cut) = (due(at_cut), faults);
                self.ahead.rests.store(false, Ordering::Relaxed);
            }
            let next_cut = due(at_cut).max(last_cut);
            self.get_ahead(due(at_cut));
            let due_faults = LEAST_FAULTS.max(FAULTS_A_COW_MAPPING * maintenance.cow_mappings() as u64);
            let is_nudged = maintenance.nudged.swap(false, Ordering::SeqCst);
            if is_nudged {
                self.drop_sets(USELESS);
            }
            let is_due = is_nudged || faults.wrapping_sub(seen) >= due_faults;
            quiet = if faults == last { quiet + 1 } else { 0 };
            if is_due {
                let mean = faults.wrapping_sub(looked) as usize / maintenance.cow_mappings().max(1);
                let is_new = is_nudged || !self.are_alike(mean);
                if is_new {
                    self.maintain_all(next_cut);
                }
                // This thread's own faults are not the program's.
                seen = self.sys.minor_faults();
                looked = if is_new { seen } else { looked };
            }
            last = self.sys.minor_faults();
        }
        self.unheld.set_served(false);
    }

    fn observed_from(&self) -> MutexGuard<'_, Moment> {
        self.maintenance.observed_from.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides whether the program is paced, by its faults and sleeps since the last decision, if these are enough.
    fn decide_pace(&self) {
        let (mut from, is_paced, now) = (self.observed_from(), &self.maintenance.is_paced, self.sys.now());
        let time = now.saturating_sub(from.time);
        if time < OBSERVED_NS {
            return;
        }
        // This comes late because it takes longer than a read of the clock: the kernel adds up the counts of all
        // threads.
        let (faults, sleeps) = (self.sys.minor_faults(), self.sys.sleeps());
        let (faults_of, sleeps_of) = (faults.saturating_sub(from.faults), sleeps.saturating_sub(from.sleeps));
        *from = Moment { time: now, faults, sleeps };
        if faults_of < LEAST_FAULTS {
            return;
        }
        let milliseconds = time / 1_000_000;
        // If most blocks are not CoW mappings, writes to them raise no faults, and the count shows nothing. If each CoW
        // mapping has a fault every millisecond, it is dense before this thread comes to promote it.
        let rate = faults_of / milliseconds;
        let is_slow = rate < PACED_FAULTS_A_MS && rate < self.maintenance.cow_mappings() as u64;
        if sleeps_of * PACED_SLEEPS_A_MS.1 < milliseconds || !is_slow {
            is_paced.store(false, Ordering::Relaxed);
        } else if sleeps_of >= milliseconds * PACED_SLEEPS_A_MS.0 && self.most_are_cow_mapped() {
            is_paced.store(true, Ordering::Relaxed);
        }
    }

    /// Does a piece of work. In a paced program, the thread rests afterwards.
    fn work_and_rest<T>(&self, work: impl FnOnce() -> T) -> T {
        let maintenance = &self.maintenance;
        let may_rest = maintenance.is_paced() && !maintenance.is_short();
        self.answer_shortage();
        let begun = may_rest.then(|| self.sys.cpu_time());
        let done = work();
        let took = begun.map_or(0, |begun| self.sys.cpu_time() - begun);
        if took >= WORTH_A_REST_NS {
            maintenance.parker.pause(Duration::from_nanos(2 * took).min(LONGEST_REST));
            self.decide_pace();
        }
        done
    }

    /// Whether at least half of the blocks that writers may have to copy are CoW mappings, in the regions that have
    /// some.
    fn most_are_cow_mapped(&self) -> bool {
        let blocks_of = |id| self.visit_cow_mapped(id, |region| region.waited_for());
        let blocks: usize = self.cow_mapped_regions().filter_map(blocks_of).sum();
        blocks > 0 && 2 * self.maintenance.cow_mappings() >= blocks
    }

    /// Whether the CoW mappings of each region are alike, and not dense.
    fn are_alike(&self, mean: usize) -> bool {
        let is_unlike = |id: &RegionId| self.visit_cow_mapped(*id, |region| region.are_alike(mean)) == Some(false);
        // All regions are asked, because the question makes writers copy the blocks of dense ones.
        self.cow_mapped_regions().filter(is_unlike).count() == 0
    }

    /// Inspects each CoW mapping of the pool once, and takes back blocks of zeros that only snapshots still hold.
    /// Leaves `next_cut` blocks for the pages of the next cut: a snapshot that finds none takes blocks from others.
    pub(crate) fn maintain_all(&self, next_cut: usize) {
        {
            let _signals = SignalsBlocked::new();
            self.drop_zeros();
        }
        if self.maintenance.lacks_spare.swap(false, Ordering::Relaxed) {
            self.drop_unheld();
        }
        self.maintenance.set_spare(self.blocks_beside(next_cut));
        for id in self.cow_mapped_regions() {
            // Each part is a visit of its own, because a thread that adds or removes a holder waits for the end of the
            // visit.
            let maintain = |from| self.visit_cow_mapped(id, |region| region.maintain(from)).flatten();
            let mut from = Some(0);
            while let Some(start) = from.filter(|_| !self.maintenance.parker.is_over()) {
                from = self.work_and_rest(|| maintain(start));
            }
        }
    }

    /// Visits a region, if it is still alive.
    fn visit_cow_mapped<T>(&self, id: RegionId, visit: impl FnOnce(&dyn CowMappingHolder) -> T) -> Option<T> {
        let _signals = SignalsBlocked::new();
        let held = self.holders.visit();
        let region = held.region(id)?;
        region.with_cow_mappings().map(visit)
    }

    /// The regions with CoW mappings, oldest first. Each is looked for only when it is asked for.
    fn cow_mapped_regions(&self) -> impl Iterator<Item = RegionId> {
        let has_cow_mappings =
            |holder: &&dyn Holder| holder.with_cow_mappings().is_some_and(CowMappingHolder::has_cow_mappings);
        let mut last = None;
        iter::from_fn(move || {
            let _signals = SignalsBlocked::new();
            let visit = self.holders.visit();
            let ids = visit.regions().filter(has_cow_mappings).filter_map(Holder::id);
            last = Some(ids.filter(|id| Some(*id) > last).min()?);
            last
        })
    }
}
