//! Locks that a page-fault handler may take: one futex word each, nothing allocated, no thread-local state, no panic.
//!
//! | lock | guards | held by |
//! |---|---|---|
//! | [`WordLock`] | one window of a region's page table | a fault for as long as it clears or copies; `discard`, `populate` |
//! | [`RegionLock`] | the whole table against a snapshot | shared: a fault while it publishes; exclusive: `fork`, `snapshot` |
//!
//! Order: window locks (ascending), then the region lock. Code outside the handler holds [`SignalsBlocked`] around them:
//! a signal handler of the program that touched the region meanwhile would otherwise wait for its own thread.

mod region_lock;
mod signals;
mod word_lock;

pub(crate) use region_lock::RegionLock;
pub(crate) use signals::SignalsBlocked;
pub(crate) use word_lock::{WordGuard, WordLock};

use core::sync::atomic::AtomicU32;

use rustix::thread::futex;

/// Sleeps while `word` holds `seen`. May wake for no reason: callers look again.
fn wait(word: &AtomicU32, seen: u32) {
    // Interrupted or "already changed": both mean look again.
    let _ = futex::wait(word, futex::Flags::PRIVATE, seen, None);
}

/// Wakes up to `count` sleepers of `word`.
fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, count);
}
