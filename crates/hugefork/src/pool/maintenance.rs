//! The thread that looks after CoW mappings (region/maintain.rs): it writes those back whose blocks nobody else holds
//! any more, and promotes those that are written to densely.
//!
//! The kernel tells nobody which pages it has copied. But while the count of the process's minor faults stands still,
//! there are none. So the thread looks at pages only after the count has grown by several for each CoW mapping, or
//! after somebody has let go of blocks. Even then it looks at some CoW mappings first: if these have as many pages as
//! there were faults for each, so have the others. It sleeps without a timer while there are no CoW mappings, and looks
//! four times a second while nothing happens to them.
//!
//! It also tells how the program writes. One that writes as fast as it can gets its blocks by the least work: the
//! writers copy whole blocks. One that is *paced*, whose threads sleep between writes, gets them by the shortest waits:
//! its writes go by page, and the thread promotes the blocks beside it. Then the thread takes a third of a processor at
//! most, a little at a time: a writer that wakes where it runs would wait.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::core::PoolCore;
use super::holders::{CowMappingHolder, Holder};
use super::lineage::RegionId;
use super::worker::{Parker, Slept, Worker};
use crate::mem::EngineArc;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::units::BASE_PAGE;

/// The time between two looks at the count while it grows.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The time between two looks at the count while nothing happens. A new CoW mapping ends it.
const QUIET_LOOK_EVERY: Duration = Duration::from_millis(250);

/// After so many looks without a change, nothing counts as happening.
const QUIET_LOOKS: u32 = 16;

/// When nothing has happened for so long, memory that was got ahead and is not used goes back.
const UNUSED_GOES_BACK_AFTER: Duration = Duration::from_secs(1);
const UNUSED_LOOKS: u32 = QUIET_LOOKS + (UNUSED_GOES_BACK_AFTER.as_millis() / QUIET_LOOK_EVERY.as_millis()) as u32;

/// So many faults for each CoW mapping are worth a look at some of them; at all it takes about 2 us for each, and a
/// fault as much.
const FAULTS_A_COW_MAPPING: u64 = 2;

/// Fewer faults are worth none.
const LEAST_FAULTS: u64 = 64;

/// A program is paced whose threads go to sleep so often in a millisecond, and is no more if they do so in so many.
const PACED_SLEEPS_A_MS: (u64, u64) = (1, 10);

/// And that takes fewer faults in a millisecond. What takes more has no time for them.
const PACED_FAULTS_A_MS: u64 = 1_000;

/// The thread rests after so much work, where the program is paced, and for this long at most.
const WORTH_A_REST_NS: u64 = 30_000;
const LONGEST_REST: Duration = Duration::from_millis(2);

/// How long the program is watched before it is said to be paced or not.
const TELLING_NS: u64 = 4_000_000;

/// What faults see of the thread.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    parker: Parker,
    cow_mappings: AtomicUsize,
    /// Somebody has let go of blocks, or memory is short.
    nudged: AtomicBool,
    /// Memory is short: a CoW mapping costs less of it than a block.
    is_short: AtomicBool,
    /// The program's threads sleep between writes.
    is_paced: AtomicBool,
    /// A cut has captured all pages that were private.
    is_cut: AtomicBool,
    /// Since when that is to be told.
    told: Told,
}

/// A moment: nanoseconds, faults of the process, and how often its threads have gone to sleep.
#[derive(Debug, Default)]
struct Told {
    time: AtomicU64,
    faults: AtomicU64,
    sleeps: AtomicU64,
}

impl Maintenance {
    /// Counts CoW mappings of a region. The fault handler calls this.
    pub(crate) fn count(&self, more: isize) {
        // To add a wrapped negative number is to subtract.
        self.cow_mappings.fetch_add(more.cast_unsigned(), Ordering::SeqCst);
        if more > 0 && self.parker.is_asleep() {
            self.parker.wake();
        }
    }

    /// Tells the thread that somebody has let go of blocks, which may be over CoW mappings.
    pub(crate) fn nudge(&self) {
        if self.cow_mappings() > 0 {
            self.nudged.store(true, Ordering::SeqCst);
            if self.parker.is_asleep() {
                self.parker.wake();
            }
        }
    }

    /// Wakes the thread: somebody waits for it. The fault handler calls this.
    pub(super) fn wake(&self) {
        if self.parker.is_asleep() {
            self.parker.wake();
        }
    }

    /// Notes that a cut has captured all pages that were private.
    pub(crate) fn note_cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }

    /// Says whether memory is short. While it is, nothing is promoted. When it becomes so, the thread writes back what
    /// it can at once: a page that goes back into its block is free memory.
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

    /// Whether single waits matter more to the program than the work of all. False while nothing is known. The fault
    /// handler calls this.
    pub(crate) fn is_paced(&self) -> bool {
        self.is_paced.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn set_paced(&self, is_paced: bool) {
        self.is_paced.store(is_paced, Ordering::Relaxed);
    }

    /// Whether the thread is to end.
    pub(super) fn is_over(&self) -> bool {
        self.parker.is_over()
    }

    /// How many CoW mappings there are.
    pub(super) fn cow_mappings(&self) -> usize {
        self.cow_mappings.load(Ordering::SeqCst)
    }
}

impl<S: Sys> PoolCore<S> {
    /// Starts the thread if there can be CoW mappings. Without it they are written back at the next snapshot.
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

    /// Looks after CoW mappings until told to stop. This is the body of the thread.
    fn maintain(&self) {
        let maintenance = &self.maintenance;
        let (mut seen, mut last, mut quiet) = (self.sys.minor_faults(), 0, 0);
        let (mut looked, mut at_cut) = (seen, seen);
        self.tells_from(self.sys.now(), seen, self.sys.sleeps());
        self.captures.shortage.set_served(true);
        while !maintenance.parker.is_over() {
            self.answer_shortage();
            if maintenance.cow_mappings() == 0 {
                let is_work = || maintenance.cow_mappings() > 0 || self.captures.shortage.is_asked();
                self.sleep(is_work);
                (seen, quiet) = (self.sys.minor_faults(), 0);
                (looked, at_cut) = (seen, seen);
            } else if quiet > QUIET_LOOKS {
                if quiet == UNUSED_LOOKS {
                    self.give_back_unused();
                }
                maintenance.parker.rest(QUIET_LOOK_EVERY);
            } else {
                maintenance.parker.pause(LOOK_EVERY);
            }
            self.sys.tidy();
            let faults = self.sys.minor_faults();
            self.tell_pace();
            if maintenance.is_cut.swap(false, Ordering::Relaxed) {
                at_cut = faults;
                self.ahead.note_cut();
            }
            // The next cut captures one page for each fault at most.
            let pages = faults.wrapping_sub(at_cut) as usize;
            self.get_ahead(self.block_size.count(pages * BASE_PAGE));
            let due_faults = LEAST_FAULTS.max(FAULTS_A_COW_MAPPING * maintenance.cow_mappings() as u64);
            let is_nudged = maintenance.nudged.swap(false, Ordering::SeqCst);
            if is_nudged {
                self.captures.drop_useless(&self.frames);
            }
            let is_due = is_nudged || faults.wrapping_sub(seen) >= due_faults;
            quiet = if faults == last { quiet + 1 } else { 0 };
            if is_due {
                let mean = faults.wrapping_sub(looked) as usize / maintenance.cow_mappings().max(1);
                let is_new = is_nudged || !self.are_alike(mean);
                if is_new {
                    self.maintain_all();
                }
                // Faults of this thread are not the program's.
                seen = self.sys.minor_faults();
                looked = if is_new { seen } else { looked };
            }
            last = self.sys.minor_faults();
        }
        self.captures.shortage.set_served(false);
    }

    /// Sleeps until there is work. Memory that was got ahead goes back first, if nobody uses it for long.
    fn sleep(&self, is_work: impl Fn() -> bool) {
        let parker = &self.maintenance.parker;
        if self.ahead.has_some.load(Ordering::Relaxed)
            && parker.sleep_at_most(UNUSED_GOES_BACK_AFTER, &is_work) == Slept::ToTheEnd
        {
            self.give_back_unused();
        } else {
            parker.sleep_unless(is_work);
        }
    }

    /// Tells whether the program is paced, by its faults and sleeps until now, if it took some.
    fn tell_pace(&self) {
        let Maintenance { told, is_paced, .. } = &self.maintenance;
        let since = |earlier: &AtomicU64, now: u64| now.saturating_sub(earlier.load(Ordering::Relaxed));
        let now = self.sys.now();
        let time = since(&told.time, now);
        if time < TELLING_NS {
            return;
        }
        // The kernel adds up what each thread of the process has, which takes longer than to ask for the time.
        let (faults, sleeps) = (self.sys.minor_faults(), self.sys.sleeps());
        let (faults_of, sleeps_of) = (since(&told.faults, faults), since(&told.sleeps, sleeps));
        self.tells_from(now, faults, sleeps);
        if faults_of < LEAST_FAULTS {
            return;
        }
        let milliseconds = time / 1_000_000;
        // Where most blocks are not shown by page, writes to those take no faults, and nothing can be told. Where each
        // CoW mapping has a fault in a millisecond, it will be dense before anybody comes to promote it.
        let rate = faults_of / milliseconds;
        let is_slow = rate < PACED_FAULTS_A_MS && rate < self.maintenance.cow_mappings() as u64;
        if sleeps_of * PACED_SLEEPS_A_MS.1 < milliseconds || !is_slow {
            is_paced.store(false, Ordering::Relaxed);
        } else if sleeps_of >= milliseconds * PACED_SLEEPS_A_MS.0 && self.most_are_cow_mapped() {
            is_paced.store(true, Ordering::Relaxed);
        }
    }

    /// From here on it is told anew.
    fn tells_from(&self, now: u64, faults: u64, sleeps: u64) {
        let told = &self.maintenance.told;
        told.time.store(now, Ordering::Relaxed);
        told.faults.store(faults, Ordering::Relaxed);
        told.sleeps.store(sleeps, Ordering::Relaxed);
    }

    /// Does a piece of work. If the program is paced, the thread rests after it.
    fn work_and_rest<T>(&self, work: impl FnOnce() -> T) -> T {
        let maintenance = &self.maintenance;
        let may_rest = maintenance.is_paced() && !maintenance.is_short();
        self.answer_shortage();
        let begun = may_rest.then(|| self.sys.cpu_time());
        let done = work();
        let took = begun.map_or(0, |begun| self.sys.cpu_time() - begun);
        if took >= WORTH_A_REST_NS {
            maintenance.parker.pause(Duration::from_nanos(2 * took).min(LONGEST_REST));
            self.tell_pace();
        }
        done
    }

    /// Whether most blocks of regions that have CoW mappings are CoW mappings, and writers may have to copy some.
    fn most_are_cow_mapped(&self) -> bool {
        let (mut region, mut blocks) = (self.next_cow_mapped(None), 0);
        while let Some(id) = region {
            blocks += self.visit_cow_mapped(id, |region| region.waited_for()).unwrap_or(0);
            region = self.next_cow_mapped(Some(id));
        }
        blocks > 0 && 2 * self.maintenance.cow_mappings() >= blocks
    }

    /// Whether the CoW mappings of each region are alike, and not dense.
    fn are_alike(&self, mean: usize) -> bool {
        let (mut region, mut are_alike) = (self.next_cow_mapped(None), true);
        while let Some(id) = region {
            are_alike &= self.visit_cow_mapped(id, |region| region.are_alike(mean)).unwrap_or(true);
            region = self.next_cow_mapped(Some(id));
        }
        are_alike
    }

    /// Looks once at each CoW mapping of the pool, and takes blocks of zeros back that are left of some.
    pub(crate) fn maintain_all(&self) {
        {
            let _signals = SignalsBlocked::new();
            self.drop_zeros();
        }
        let mut region = self.next_cow_mapped(None);
        while let Some(id) = region {
            let mut from = Some(0);
            while let Some(start) = from.filter(|_| !self.maintenance.parker.is_over()) {
                from = self.work_and_rest(|| self.maintain_part(id, start));
            }
            region = self.next_cow_mapped(Some(id));
        }
    }

    /// Looks at some CoW mappings of a region, if it still lives. One visit for each part: whoever comes or goes waits
    /// for it.
    fn maintain_part(&self, id: RegionId, from: usize) -> Option<usize> {
        self.visit_cow_mapped(id, |region| region.maintain(from))?
    }

    /// Visits a region, if it still lives.
    fn visit_cow_mapped<T>(&self, id: RegionId, visit: impl FnOnce(&dyn CowMappingHolder) -> T) -> Option<T> {
        let _signals = SignalsBlocked::new();
        let held = self.holders.visit();
        let region = held.family.region(id)?;
        region.with_cow_mappings().map(visit)
    }

    /// The region with CoW mappings that comes next after this one.
    fn next_cow_mapped(&self, after: Option<RegionId>) -> Option<RegionId> {
        let _signals = SignalsBlocked::new();
        let visit = self.holders.visit();
        let has_cow_mappings =
            |holder: &&dyn Holder| holder.with_cow_mappings().is_some_and(CowMappingHolder::has_cow_mappings);
        visit.family.regions().filter(has_cow_mappings).filter_map(Holder::id).filter(|id| Some(*id) > after).min()
    }
}
