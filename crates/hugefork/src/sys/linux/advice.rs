//! Huge pages of what is there. `errno` is left alone: the thread that asks may share it with a thread of the program
//! (`hugefork run`).

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use hugefork_linux::advice;
use rustix::io::Errno;
use rustix::thread::{SecureComputingMode, secure_computing_mode};

use super::named;
use crate::sys::SystemError;
use crate::units::HUGE_PAGE;

/// Makes a huge page of the 2 MiB at `start` (`MADV_COLLAPSE`, Linux 6.1), whose contents stay: plain memory, or memory
/// of a file such as a memfd. For threads that have time: nobody else who wants something of the address space waits
/// for long, a `fork(2)` above all.
///
/// It takes some 0.3 ms where a processor is idle, tens of milliseconds where others want all of them. `errno` is left
/// alone.
///
/// # Errors
/// [`SystemError`] with the kernel's answer: `EINVAL` where no huge page may be (or before Linux 6.1), `EAGAIN` where
/// somebody uses a page just then, `ENOMEM` where there is no memory, or none at `start`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut memory = vec![1_u8; 4 << 20];
/// let start = memory.as_mut_ptr().map_addr(|address| address.next_multiple_of(2 << 20));
/// match hugefork::collapse(start.cast()) {
///     Ok(()) => println!("2 MiB are one page"),
///     Err(refused) => println!("they stay as they are: {refused}"),
/// }
/// assert!(memory.iter().all(|&byte| byte == 1));
/// # Ok(())
/// # }
/// ```
pub fn collapse(start: *mut c_void) -> Result<(), SystemError> {
    empty_the_batches();
    named("madvise(MADV_COLLAPSE)", collapse_now(start))
}

/// As [`collapse`], for who waits for it himself.
pub(super) fn collapse_now(start: *mut c_void) -> Result<(), Errno> {
    advice::collapse(start, HUGE_PAGE)
}

/// [`advice::empty_batches`]. Who may be killed for the call ([`has_filter`]) has the longer waits. docs/design.md has
/// figures.
pub(super) fn empty_the_batches() {
    if !has_filter() {
        advice::empty_batches();
    }
}

/// Whether a filter of system calls was there when this was noted.
static HAS_FILTER: AtomicBool = AtomicBool::new(false);

/// Notes whether this thread has a filter of system calls. To be called before threads have filters of their own.
pub(crate) fn note_filter() {
    if secure_computing_mode().is_ok_and(|mode| mode == SecureComputingMode::Filter) {
        HAS_FILTER.store(true, Ordering::Relaxed);
    }
}

/// Whether there was one. No filter says what it refuses, and some end whoever makes a call about NUMA or capabilities
/// (Debian's unit of Redis): so no such call is made.
pub(crate) fn has_filter() -> bool {
    HAS_FILTER.load(Ordering::Relaxed)
}
