//! The thread that looks after overlays (region/tend.rs): it folds those whose blocks nobody else holds any more, and
//! promotes those that are written to densely.
//!
//! The kernel tells nobody which pages it has copied. But while the count of the process's minor faults stands still,
//! there are none. So the thread looks at pages only after the count has grown by several for each overlay, or after
//! somebody has let go of blocks. It sleeps without a timer while there are no overlays, and looks four times a second
//! while nothing happens to them.

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

/// So many faults for each overlay are worth a look at its pages: it takes about 2 us, and a fault as much.
const FAULTS: u64 = 4;

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
        while !tending.nap.is_over() {
            if tending.overlays() == 0 {
                tending.nap.sleep_unless(|| tending.overlays() > 0);
                (seen, quiet) = (self.sys.minor_faults(), 0);
            } else if quiet > QUIET {
                tending.nap.rest(LATE);
            } else {
                tending.nap.pause(SOON);
            }
            let faults = self.sys.minor_faults();
            let enough = FEW.max(FAULTS * tending.overlays() as u64);
            let is_due = tending.nudged.swap(false, Ordering::SeqCst) || faults.wrapping_sub(seen) >= enough;
            quiet = if faults == last { quiet + 1 } else { 0 };
            if is_due {
                self.tend_all();
                // Faults of this thread are not the program's.
                seen = self.sys.minor_faults();
            }
            last = self.sys.minor_faults();
        }
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
        let _signals = SignalsBlocked::new();
        let visit = self.holders.visit();
        let region = visit.family.members().find(|holder| holder.id() == Some(id))?;
        region.overlaid()?.tend(from)
    }

    /// The region with overlays that comes next after this one.
    fn next_overlaid(&self, after: Option<RegionId>) -> Option<RegionId> {
        let _signals = SignalsBlocked::new();
        let visit = self.holders.visit();
        let has_overlays = |holder: &&dyn Holder| holder.overlaid().is_some_and(OverlayHolder::has_overlays);
        visit.family.members().filter(has_overlays).filter_map(Holder::id).filter(|id| Some(*id) > after).min()
    }
}
