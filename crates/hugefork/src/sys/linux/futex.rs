//! Sleeping on a word, and waking those who do.

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
