//! Futexes: a thread sleeps on a word until another wakes it.
//!
//! A fault sleeps at its deepest place on the stack. So these are plain system calls: rustix's futex takes 600 bytes of
//! stack in an unoptimised build.

use core::ptr;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

use rustix::time::Timespec;
use syscalls::{Sysno, syscall4};

/// `FUTEX_WAIT` and `FUTEX_WAKE`, for threads of one process (`FUTEX_PRIVATE_FLAG`).
const WAIT: usize = 128;
const WAKE: usize = 129;

/// Sleeps while `word` holds `seen`. It may return for no reason, so callers check again.
pub(crate) fn wait(word: &AtomicU32, seen: u32) {
    wait_until(word, seen, ptr::null());
}

/// As [`wait`], for at most `time`.
pub(crate) fn wait_at_most(word: &AtomicU32, seen: u32, time: Duration) {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    wait_until(word, seen, &raw const time);
}

fn wait_until(word: &AtomicU32, seen: u32, time: *const Timespec) {
    // On every outcome, an interrupted sleep or a changed word included, the caller checks again.
    // SAFETY: the kernel reads the word and the time, which live as long as the call.
    let _ = unsafe { syscall4(Sysno::futex, word.as_ptr().addr(), WAIT, seen as usize, time.addr()) };
}

/// Wakes up to `count` sleepers of `word`.
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    // SAFETY: the kernel looks for the word's address, and neither reads nor writes it.
    let _ = unsafe { syscall4(Sysno::futex, word.as_ptr().addr(), WAKE, count as usize, 0) };
}
