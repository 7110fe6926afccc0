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
mod region_lock;
mod signals;
#[cfg(test)]
mod tests;
mod word_lock;

/// What the locks are made of. `tests/locks.rs` puts a concurrency checker's in its place.
mod primitive {
    pub(super) use core::hint::spin_loop;
    pub(super) use core::sync::atomic::{AtomicU32, Ordering};

    /// A lock looks this many times before it sleeps: publishing a mapping takes microseconds, a sleep and a wake more
    /// than that.
    pub(super) const SPINS: u32 = 100;
}

pub(crate) use bell::Bell;
pub(crate) use region_lock::RegionLock;
pub(crate) use signals::SignalsBlocked;
pub(crate) use word_lock::{WordGuard, WordLock};

use core::sync::atomic::AtomicU32;
use core::time::Duration;

use rustix::thread::futex;
use rustix::time::Timespec;

/// Sleeps while `word` holds `seen`. May wake for no reason: callers look again.
pub(crate) fn wait(word: &AtomicU32, seen: u32) {
    // Interrupted or "already changed": both mean look again.
    let _ = futex::wait(word, futex::Flags::PRIVATE, seen, None);
}

/// Sleeps while `word` holds `seen`, no longer than `time`. May wake for no reason.
pub(crate) fn wait_at_most(word: &AtomicU32, seen: u32, time: Duration) {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let _ = futex::wait(word, futex::Flags::PRIVATE, seen, Some(&time));
}

/// Wakes up to `count` sleepers of `word`.
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, count);
}
