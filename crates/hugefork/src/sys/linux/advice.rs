//! Collapses existing memory into huge pages. These functions do not change `errno`, because the calling thread may
//! share it with a thread of the program (`hugefork run`).

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use hugefork_linux::advice;
use rustix::io::Errno;
use rustix::thread::{SecureComputingMode, secure_computing_mode};

use super::named;
use crate::sys::SystemError;
use crate::units::HUGE_PAGE;

/// Makes one huge page of the 2 MiB at `start` (`MADV_COLLAPSE`, Linux 6.1), and keeps the contents. The memory may be
/// plain, or that of a file such as a memfd. Call it from a thread that can afford to wait. Another thread that changes
/// the address space meanwhile, for example in `fork(2)`, never waits long for this call.
///
/// It takes some 0.3 ms where a processor is idle, tens of milliseconds where others want all of them. `errno` is left
/// alone.
///
/// # Errors
/// [`SystemError`] with the kernel's answer: `EINVAL` where no huge page is possible (or before Linux 6.1), `EAGAIN`
/// where another thread uses a page at that moment, `ENOMEM` where there is no memory, or none at `start`.
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
    named("madvise(MADV_COLLAPSE)", advice::collapse(start, HUGE_PAGE))
}

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
