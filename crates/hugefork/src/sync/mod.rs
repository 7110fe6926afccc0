//! Locks that a page-fault handler may take. Each is one futex word, allocates nothing, uses no thread-local state, and
//! does not panic.
//!
//! | lock | guards | held by |
//! |---|---|---|
//! | [`WordLock`] | one window of a table | a fault, also while it clears or copies; `discard`, `populate` |
//! | [`WordLock`] | windows that wait for reclaim (table/waiting.rs) | whoever looks at some of them, also a fault |
//! | [`WordLock`] | cuts and resets of a region against each other | whoever cuts or resets it, or prepares a cut |
//! | [`WordLock`] | a region's CoW mappings against resets | the pool's thread that looks after them, and a reset |
//! | [`RegionLock`] | a table against snapshots | shared: faults that publish; alone: `fork`, `snapshot`, `lazy_free` |
//!
//! A [`WaitQueue`] sleeps until others have changed something.
//!
//! A [`Gate`] keeps operations of the program apart from snapshots. No handler goes through one.
//!
//! They are taken in this order: the list of holders, the lock of CoW mappings against resets, the lock of waiting
//! windows, window locks (ascending), the region lock, the lock of a snapshot. Code outside the handler holds
//! [`SignalsBlocked`] around them: otherwise a signal handler of the program that touches the region would wait for its
//! own thread.

pub(crate) mod atomic;
mod gate;
mod primitive;
mod region_lock;
#[cfg(test)]
#[path = "../rows_test/steps.rs"]
pub(crate) mod steps;
mod wait_queue;
/// A fuzzer's operations are one thread's, which nobody takes turns with, and so are a model's.
#[cfg(all(any(fuzzing, feature = "model"), not(test)))]
pub(crate) mod steps {
    #[inline]
    pub(crate) fn step() {}
}
#[cfg(test)]
mod tests;
mod word_lock;

pub(crate) use atomic::{wait, wait_at_most, wake};
pub(crate) use gate::{Fences, Gate, NotClosed, Seat};
pub(crate) use region_lock::{ExclusiveGuard, RegionLock, SharedGuard};
pub(crate) use wait_queue::WaitQueue;
pub(crate) use word_lock::{WordGuard, WordLock};

pub(crate) use crate::sys::linux::mask::SignalsBlocked;
