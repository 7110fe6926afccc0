//! Waiting for what many may do, none of whom holds a lock meanwhile: a block that comes back, a reservation that is given up.
//!
//! Who looks and finds nothing sleeps; who has changed something rings, which is one load while nobody sleeps. The
//! sleeper does not take the processor from the one it waits for, which may be of a lower scheduling class
//! (`SCHED_IDLE`, while the sleeper is real-time): one that spins, or yields, would wait for ever.
//!
//! A ring may be missed by one who is just lying down. So nobody sleeps for longer than a moment before it looks again.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use super::primitive::{wait_at_most, wake};

/// What a ring that was missed costs.
const MOMENT: Duration = Duration::from_millis(1);

/// Looks before the first sleep: most of what is waited for takes less than a microsecond.
const LOOKS: usize = 20;

#[derive(Debug, Default)]
pub(crate) struct Bell {
    rings: AtomicU32,
    sleepers: AtomicU32,
}

impl Bell {
    /// Looks until there is something to be seen.
    pub(crate) fn until<T>(&self, look: impl Fn() -> Option<T>) -> T {
        for _ in 0..LOOKS {
            if let Some(seen) = look() {
                return seen;
            }
            core::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = loop {
            let rings = self.rings.load(Ordering::SeqCst);
            if let Some(seen) = look() {
                break seen;
            }
            wait_at_most(&self.rings, rings, MOMENT);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        seen
    }

    /// Sleeps until somebody rings, for a moment at most.
    pub(crate) fn wait_a_moment(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        wait_at_most(&self.rings, self.rings.load(Ordering::SeqCst), MOMENT);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Has sleepers look again.
    pub(crate) fn ring(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.rings.fetch_add(1, Ordering::SeqCst);
            wake(&self.rings, u32::MAX >> 1);
        }
    }
}
