//! Locks that a page-fault handler may take. Each is one futex word, allocates nothing, uses no thread-local state, and
//! does not panic.
//!
//! | lock | guards | held by |
//! |---|---|---|
//! | [`WordLock`] | one window of a table | a fault, also while it clears or copies; `discard`, `populate` |
//! | [`WordLock`] | windows that wait for reclaim (table/waiting.rs) | a reclaim that visits them, also in a fault |
//! | [`WordLock`] | cuts and resets of a region against each other | a cut, a reset, or the preparation of a cut |
//! | [`WordLock`] | a region's CoW mappings against resets | the pool's thread that maintains them, and a reset |
//! | [`RegionLock`] | a table against snapshots | shared: faults that publish; alone: `fork`, `snapshot`, `lazy_free` |
//!
//! On a [`WaitQueue`] a thread sleeps until another has changed something.
//!
//! A [`Gate`] keeps operations of the program out while a snapshot is taken. No handler passes through one.
//!
//! The order of locks is: the list of holders, the lock of CoW mappings against resets, the lock of waiting windows,
//! window locks (ascending), the region lock, the lock of a snapshot. Code outside the handler holds [`SignalsBlocked`]
//! around them: otherwise a signal handler of the program that touches the region would wait for its own thread.

pub(crate) mod atomic;
mod engaged;
mod gate;
mod primitive;
mod region_lock;
#[cfg(test)]
#[path = "../rows_test/steps.rs"]
pub(crate) mod steps;
mod wait_queue;
/// The fuzzer and the model run each operation on one thread, so there are no turns to take.
#[cfg(all(any(fuzzing, feature = "model"), not(test)))]
pub(crate) mod steps {
    #[inline]
    pub(crate) fn step() {}
}
#[cfg(test)]
mod tests;
mod word_lock;

pub(crate) use atomic::{wait, wait_at_most, wake};
pub(crate) use engaged::Engaged;
pub(crate) use gate::{Fences, Gate, NotClosed, Seat};
pub(crate) use region_lock::{ExclusiveGuard, RegionLock, SharedGuard};
pub(crate) use wait_queue::WaitQueue;
pub(crate) use word_lock::{WordGuard, WordLock};

pub(crate) use crate::sys::linux::mask::SignalsBlocked;
