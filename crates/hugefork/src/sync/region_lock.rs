//! Many faults or one snapshot: a readers-writer lock in one word. A waiting snapshot goes before new faults.
//!
//! ```text
//!   bit 31           bits 30…0
//!  ┌────────────────┬──────────────────┐
//!  │ snapshot wants │ faults that are  │
//!  │ or has it      │ publishing       │
//!  └────────────────┴──────────────────┘
//! ```
//! A snapshot sets bit 31, so that no more faults enter, and waits until the count is zero. Faults hold the lock only
//! while they publish a mapping (microseconds), and not while they clear or copy. So a snapshot does not wait for
//! clears that are under way.

use super::primitive::{AtomicU32, Ordering, wait, wake};

const EXCLUSIVE: u32 = 1 << 31;

/// A readers-writer lock in one word; all zeroes is a free lock.
#[derive(Debug, Default)]
pub(crate) struct RegionLock {
    state: AtomicU32,
}

/// A fault is publishing.
pub(crate) struct SharedGuard<'a>(&'a RegionLock);

/// A snapshot is being taken.
pub(crate) struct ExclusiveGuard<'a>(&'a RegionLock);

impl RegionLock {
    /// Enters beside other faults. Waits while a snapshot has or wants the lock.
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

    /// Keeps faults out and waits for those inside.
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
        if self.0.state.fetch_sub(1, Ordering::Release) == EXCLUSIVE | 1 {
            // The last fault inside lets the snapshot in. New faults sleep on the same word, so all are woken.
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
