//! A readers-writer lock in one word, for many faults or one snapshot. A waiting snapshot goes before new faults.
//!
//! ```text
//!   bit 31           bits 30…0
//!  ┌────────────────┬──────────────────┐
//!  │ snapshot wants │ faults that are  │
//!  │ or has it      │ publishing       │
//!  └────────────────┴──────────────────┘
//! ```
//! A snapshot sets bit 31, which keeps further faults out, and waits until the count is zero. A fault holds the lock
//! only while it publishes a mapping (microseconds), not while it clears or copies. So a snapshot does not wait for
//! clears that are under way.

use super::primitive::{AtomicU32, Ordering, wait, wake};

const EXCLUSIVE: u32 = 1 << 31;

/// A readers-writer lock in one word; all zeroes is a free lock.
#[derive(Debug, Default)]
pub(crate) struct RegionLock {
    state: AtomicU32,
}

/// Held by a fault that publishes.
pub(crate) struct SharedGuard<'a>(&'a RegionLock);

/// Held while a snapshot is taken.
pub(crate) struct ExclusiveGuard<'a>(&'a RegionLock);

impl RegionLock {
    /// Locks beside other faults. Waits while a snapshot has or wants the lock.
    pub(crate) fn shared(&self) -> SharedGuard<'_> {
        loop {
            let seen = self.state.load(Ordering::Relaxed);
            if seen & EXCLUSIVE != 0 {
                wait(&self.state, seen);
            } else if self.state.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return SharedGuard(self);
            }
        }
    }

    /// Keeps further faults out and waits for those inside.
    pub(crate) fn exclusive(&self) -> ExclusiveGuard<'_> {
        loop {
            let seen = self.state.fetch_or(EXCLUSIVE, Ordering::Acquire);
            if seen & EXCLUSIVE == 0 {
                break;
            }
            wait(&self.state, seen);
        }
        loop {
            let seen = self.state.load(Ordering::Acquire);
            if seen == EXCLUSIVE {
                return ExclusiveGuard(self);
            }
            wait(&self.state, seen);
        }
    }
}

impl Drop for SharedGuard<'_> {
    fn drop(&mut self) {
        let order = if seeded!("published-without-a-fence") { Ordering::Relaxed } else { Ordering::Release };
        if self.0.state.fetch_sub(1, order) == EXCLUSIVE | 1 {
            // This was the last fault that held the lock, and a snapshot waits for the lock: the snapshot may take it
            // now. Faults that arrived since sleep on the same word, so this wakes all threads.
            wake(&self.0.state, u32::MAX >> 1);
        }
    }
}

impl Drop for ExclusiveGuard<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_and(!EXCLUSIVE, Ordering::Release);
        wake(&self.0.state, u32::MAX >> 1);
    }
}
