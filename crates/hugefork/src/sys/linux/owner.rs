//! Whether this process owns the regions or is a `fork(2)` child of the owner.
//!
//! The mark is a value in one page that the kernel clears in a child (`MADV_WIPEONFORK`), so a fault handler, a `Drop`
//! or a method only has to read it. It works for every kind of `fork`, also one without libc.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use hugefork_linux::mappings::map_anonymous;
use rustix::mm::{Advice, madvise};

use super::named;
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
    let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    if refused == 0 { Ok(()) } else { named("pthread_atfork", Err(rustix::io::Errno::from_raw_os_error(refused))) }
}

/// True in a `fork(2)` child of a process that called [`claim`], and in its children.
pub(crate) fn is_forked_child() -> bool {
    let mark = MARK.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or leads to the page that `claim` made, which is never unmapped.
    unsafe { mark.as_ref() }.is_some_and(|mark| mark.load(Ordering::Relaxed) != OWNER)
}
