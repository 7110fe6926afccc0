//! The thread that looks after overlays (region/tend.rs): it folds those whose blocks nobody else holds any more, and
//! promotes those that are written to densely.
//!
//! The kernel tells nobody which pages it has copied. But while the count of the process's minor faults stands still,
//! there are none. So the thread looks at pages only after the count has grown by several for each overlay, or after
//! somebody has let go of blocks. Even then it looks at some overlays first: if these have as many pages as there were
//! faults for each, so have the others. It sleeps without a timer while there are no overlays, and looks four times a
//! second while nothing happens to them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::core::PoolCore;
use super::holders::{Holder, OverlayHolder};
use super::lineage::RegionId;
use super::worker::{Nap, Worker};
use crate::own::Counted;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;

/// The time between two looks at the count while it grows.
const SOON: Duration = Duration::from_millis(1);

/// The time between two looks at the count while nothing happens. A new overlay ends it.
const LATE: Duration = Duration::from_millis(250);

/// After so many looks without a change it becomes late.
const QUIET: u32 = 16;

/// So many faults for each overlay are worth a look at some of them; at all it takes about 2 us for each, and a fault
/// as much.
const FAULTS: u64 = 2;

/// Fewer faults are worth none.
const FEW: u64 = 64;

/// What faults see of the thread.
#[derive(Debug, Default)]
pub(crate) struct Tending {
    nap: Nap,
    overlays: AtomicUsize,
    /// Somebody has let go of blocks, or memory is short.
    nudged: AtomicBool,
    /// Memory is short: an overlay costs less of it than a block.
    is_short: AtomicBool,
}

impl Tending {
    /// Counts overlays of a region. The fault handler calls this.
    pub(crate) fn count(&self, more: isize) {
        // To add a wrapped negative number is to subtract.
        self.overlays.fetch_add(more.cast_unsigned(), Ordering::SeqCst);
        if more > 0 && self.nap.is_asleep() {
            self.nap.wake();
        }
    }

    /// Tells the thread that somebody has let go of blocks, which may be over overlays.
    pub(crate) fn nudge(&self) {
        if self.overlays() > 0 {
            self.nudged.store(true, Ordering::SeqCst);
            if self.nap.is_asleep() {
                self.nap.wake();
            }
        }
    }

    /// Says whether memory is short. While it is, nothing is promoted. When it becomes so, the thread folds what it can
    /// at once: a page that goes back into its block is free memory.
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

    /// How many overlays there are.
    pub(super) fn overlays(&self) -> usize {
        self.overlays.load(Ordering::SeqCst)
    }
}

impl<S: Sys> PoolCore<S> {
    /// Starts the thread if there can be overlays. Without it they are folded at the next snapshot.
    pub(crate) fn start_tending(this: &Counted<Self>) -> io::Result<Option<Worker>> {
        if !this.sys.has_overlays() {
            return Ok(None);
        }
        let (working, telling) = (this.clone(), this.clone());
        Worker::start("hugefork-fold", move || working.tend(), move || telling.tending.nap.tell_to_end()).map(Some)
    }

    /// Looks after overlays until told to stop. This is the body of the thread.
    fn tend(&self) {
        let tending = &self.tending;
        let (mut seen, mut last, mut quiet) = (self.sys.minor_faults(), 0, 0);
        let mut looked = seen;
        while !tending.nap.is_over() {
            if tending.overlays() == 0 {
                tending.nap.sleep_unless(|| tending.overlays() > 0);
                (seen, quiet) = (self.sys.minor_faults(), 0);
                looked = seen;
            } else if quiet > QUIET {
                tending.nap.rest(LATE);
            } else {
                tending.nap.pause(SOON);
            }
            self.sys.tidy();
            let faults = self.sys.minor_faults();
            let enough = FEW.max(FAULTS * tending.overlays() as u64);
            let is_nudged = tending.nudged.swap(false, Ordering::SeqCst);
            let is_due = is_nudged || faults.wrapping_sub(seen) >= enough;
            quiet = if faults == last { quiet + 1 } else { 0 };
            if is_due {
                let mean = faults.wrapping_sub(looked) as usize / tending.overlays().max(1);
                let is_new = is_nudged || !self.are_alike(mean);
                if is_new {
                    self.tend_all();
                }
                // Faults of this thread are not the program's.
                seen = self.sys.minor_faults();
                looked = if is_new { seen } else { looked };
            }
            last = self.sys.minor_faults();
        }
    }

    /// Whether the overlays of each region are alike, and not dense.
    fn are_alike(&self, mean: usize) -> bool {
        let (mut region, mut are_alike) = (self.next_overlaid(None), true);
        while let Some(id) = region {
            are_alike &= self.visit_overlaid(id, |region| region.are_alike(mean)).unwrap_or(true);
            region = self.next_overlaid(Some(id));
        }
        are_alike
    }

    /// Looks once at each overlay of the pool.
    pub(crate) fn tend_all(&self) {
        let mut region = self.next_overlaid(None);
        while let Some(id) = region {
            let mut from = Some(0);
            while let Some(start) = from.filter(|_| !self.tending.nap.is_over()) {
                from = self.tend_part(id, start);
            }
            region = self.next_overlaid(Some(id));
        }
    }

    /// Looks at some overlays of a region, if it still lives. One visit for each part: whoever comes or goes waits for
    /// it.
    fn tend_part(&self, id: RegionId, from: usize) -> Option<usize> {
        self.visit_overlaid(id, |region| region.tend(from))?
    }

    /// Visits a region, if it still lives.
    fn visit_overlaid<T>(&self, id: RegionId, visit: impl FnOnce(&dyn OverlayHolder) -> T) -> Option<T> {
        let _signals = SignalsBlocked::new();
        let held = self.holders.visit();
        let region = held.family.members().find(|holder| holder.id() == Some(id))?;
        region.overlaid().map(visit)
    }

    /// The region with overlays that comes next after this one.
    fn next_overlaid(&self, after: Option<RegionId>) -> Option<RegionId> {
        let _signals = SignalsBlocked::new();
        let visit = self.holders.visit();
        let has_overlays = |holder: &&dyn Holder| holder.overlaid().is_some_and(OverlayHolder::has_overlays);
        visit.family.members().filter(has_overlays).filter_map(Holder::id).filter(|id| Some(*id) > after).min()
    }
}
