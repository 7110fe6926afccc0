//! Whether this process owns the regions or is a `fork(2)` child of the owner.
//!
//! The mark is a value in one page that the kernel clears in a child (`MADV_WIPEONFORK`), so a fault handler, a `Drop`
//! or a method only has to read it. It works for every kind of `fork`, also one without libc.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use hugefork_linux::mappings::map_anonymous;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use super::{last_error, named};
use crate::sys::SystemError;
use crate::units::BASE_PAGE;

static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

const OWNER: u32 = 1;

/// Marks this process as the owner, and has the C library call `in_child` in each child that it forks. This must come
/// before the first region. A second call does no harm.
pub(crate) fn claim(in_child: unsafe extern "C" fn()) -> Result<(), SystemError> {
    let page = named("mmap", map_anonymous(BASE_PAGE))?.as_ptr();
    // SAFETY: the page is ours and is never unmapped.
    named("madvise(MADV_WIPEONFORK)", unsafe { madvise(page.cast(), BASE_PAGE, Advice::LinuxWipeOnFork) })?;
    let mark: *mut AtomicU32 = page.cast();
    // SAFETY: it is page-aligned, zeroed, and never unmapped.
    unsafe { &*mark }.store(OWNER, Ordering::Relaxed);
    MARK.store(mark, Ordering::Release);
    // SAFETY: `in_child` is sound to run there, for which the caller answers.
    at_fork(unsafe { libc::pthread_atfork(None, None, Some(in_child)) })
}

/// The result of `pthread_atfork`.
fn at_fork(refused: i32) -> Result<(), SystemError> {
    if refused == 0 { Ok(()) } else { named("pthread_atfork", Err(Errno::from_raw_os_error(refused))) }
}

/// Has the C library call these at each fork from now on: `prepare` before it, `parent` and `child` after it.
///
/// # Safety
/// They do only what such handlers may do.
pub(crate) unsafe fn follow_forks(
    prepare: extern "C" fn(),
    parent: extern "C" fn(),
    child: extern "C" fn(),
) -> Result<(), SystemError> {
    // SAFETY: by this function's contract.
    at_fork(unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) })
}

/// Forks by the C library. Returns 0 in the child, and its number in the parent.
///
/// # Safety
/// The child does only what a child of one thread may do.
pub(crate) unsafe fn fork() -> Result<i32, SystemError> {
    // SAFETY: by this function's contract.
    match unsafe { libc::fork() } {
        -1 => named("fork", Err(last_error())),
        child => Ok(child),
    }
}

/// Ends the process without destructors.
pub(crate) fn end(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Waits for the end of a child. Returns its status as `waitpid(2)` does; 0 if another thread has waited for it.
pub(crate) fn wait_for(child: i32) -> i32 {
    status_of(child, 0).unwrap_or(0)
}

/// As [`wait_for`], but does not wait: `None` if the child has not ended.
pub(crate) fn try_wait_for(child: i32) -> Option<i32> {
    status_of(child, libc::WNOHANG)
}

fn status_of(child: i32, options: i32) -> Option<i32> {
    let mut status = 0;
    loop {
        // SAFETY: writes the status.
        match unsafe { libc::waitpid(child, &raw mut status, options) } {
            0 => return None,
            -1 if last_error() == Errno::INTR => {}
            // The child has ended, or is nobody's to wait for any more.
            1.. | ..=-1 => return Some(status),
        }
    }
}

/// True in a `fork(2)` child of a process that called [`claim`], and in its children.
pub(crate) fn is_forked_child() -> bool {
    let mark = MARK.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or leads to the page that `claim` made, which is never unmapped.
    unsafe { mark.as_ref() }.is_some_and(|mark| mark.load(Ordering::Relaxed) != OWNER)
}
