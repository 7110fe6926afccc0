//! A queue of threads that wait for a change made without a lock: a block becomes free, or a reservation is given up.
//!
//! A thread that looks and finds nothing sleeps. A thread that changes something rings, which is one load while nobody
//! sleeps. A sleeper leaves the processor to the thread that it waits for, which may have a lower scheduling class
//! (`SCHED_IDLE`, while the sleeper is real-time). If it spun or yielded instead, it would wait for ever.
//!
//! A thread that is about to sleep may miss a ring. So each sleep lasts only a moment, and then the thread looks again.

use core::time::Duration;

use super::primitive::{AtomicU32, Ordering, wait_at_most, wake};

/// The length of one sleep: the time that a missed ring costs.
const LOOKED_AGAIN_AFTER: Duration = Duration::from_millis(1);

/// Looks before the first sleep: most waits take less than a microsecond.
const LOOKS_BEFORE_SLEEP: usize = 20;

#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    rings: AtomicU32,
    sleepers: AtomicU32,
}

impl WaitQueue {
    /// Calls `look` until it finds something.
    pub(crate) fn until<T>(&self, look: impl Fn() -> Option<T>) -> T {
        for _ in 0..LOOKS_BEFORE_SLEEP {
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
            wait_at_most(&self.rings, rings, LOOKED_AGAIN_AFTER);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        seen
    }

    /// Sleeps until a thread rings, but only for a moment.
    pub(crate) fn wait_a_moment(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        wait_at_most(&self.rings, self.rings.load(Ordering::SeqCst), LOOKED_AGAIN_AFTER);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Makes all sleepers look again.
    pub(crate) fn ring(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.rings.fetch_add(1, Ordering::SeqCst);
            wake(&self.rings, u32::MAX >> 1);
        }
    }
}
