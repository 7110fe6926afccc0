//! Locks that a page-fault handler may take: one futex word each, nothing allocated, no thread-local state, no panic.
//!
//! | lock | guards | held by |
//! |---|---|---|
//! | [`WordLock`] | one window of a region's page table | a fault for as long as it clears or copies; `discard`, `populate` |
//! | [`WordLock`] | windows that wait for reclaim (table/waiting.rs) | who looks at some of them; a fault that looks too waits for it |
//! | [`RegionLock`] | the whole table against a snapshot | shared: a fault while it publishes; exclusive: `fork`, `snapshot`, `lazy_free` |
//!
//! [`Bell`]: sleeping until others have changed something.
//!
//! Order: the list of holders, who looks at waiting windows, window locks (ascending), the region lock. Code outside the handler holds [`SignalsBlocked`] around them:
//! a signal handler of the program that touched the region meanwhile would otherwise wait for its own thread.

mod bell;
mod primitive;
mod region_lock;
#[cfg(test)]
mod tests;
mod word_lock;

pub(crate) use bell::Bell;
pub(crate) use region_lock::{ExclusiveGuard, RegionLock, SharedGuard};
pub(crate) use word_lock::{WordGuard, WordLock};

pub(crate) use crate::sys::linux::futex::{wait, wait_at_most, wake};
pub(crate) use crate::sys::linux::mask::SignalsBlocked;
