//! Sleeps on a word, and wakes those who sleep there.

use core::sync::atomic::AtomicU32;
use core::time::Duration;

use rustix::thread::futex;
use rustix::time::Timespec;

/// Sleeps while `word` holds `seen`. It may wake for no reason, so callers look again.
pub(crate) fn wait(word: &AtomicU32, seen: u32) {
    // Whether it was interrupted or the word has changed already, the caller looks again.
    let _ = futex::wait(word, futex::Flags::PRIVATE, seen, None);
}

/// As [`wait`], for at most `time`.
pub(crate) fn wait_at_most(word: &AtomicU32, seen: u32, time: Duration) {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let _ = futex::wait(word, futex::Flags::PRIVATE, seen, Some(&time));
}

/// Wakes up to `count` sleepers of `word`.
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, count);
}
