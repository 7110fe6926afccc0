//! Work before a collapse into huge pages. These functions do not change `errno`, because the calling thread may
//! share it with a thread of the program (`hugefork run`).

use std::sync::atomic::{AtomicBool, Ordering};

use hugefork_linux::advice;
use rustix::io::Errno;
use rustix::thread::{SecureComputingMode, secure_computing_mode};

/// Calls [`advice::empty_batches`], unless a filter might end the process for that ([`has_filter`]). Without the call,
/// waits are longer; docs/design.md has figures.
pub(super) fn empty_the_batches() {
    if !has_filter() {
        advice::empty_batches();
    }
}

/// Whether the process had a filter of system calls when [`note_filter`] was called.
static HAS_FILTER: AtomicBool = AtomicBool::new(false);

/// Notes whether this thread has a filter of system calls. Must be called before threads have filters of their own.
pub(crate) fn note_filter() {
    if is_filtered() {
        HAS_FILTER.store(true, Ordering::Relaxed);
    }
}

/// Whether this thread's system calls are filtered now. (In strict mode, which allows hardly any call, the question
/// ends the process.)
pub(super) fn is_filtered() -> bool {
    // A kernel without filters does not know the call's argument.
    !matches!(secure_computing_mode(), Ok(SecureComputingMode::Disabled) | Err(Errno::INVAL))
}

/// Whether there was a filter. A process cannot ask what its filter refuses, and some filters end a process for a call
/// about NUMA or capabilities (Debian's unit of Redis). So under a filter no such call is made.
pub(crate) fn has_filter() -> bool {
    HAS_FILTER.load(Ordering::Relaxed)
}
