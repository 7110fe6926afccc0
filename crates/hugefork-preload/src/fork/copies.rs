//! Detects that this process is a copy made without the fork handlers: by `_Fork`, or by `clone(2)`
//! itself.
//!
//! The kernel wipes one page in each copy of the process (`MADV_WIPEONFORK`), but not in threads or
//! `vfork` children, which share it. In a copy, locks may be held by threads that do not exist
//! there.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::BASE_PAGE;

/// The page's value in a process that is not a new copy.
const KNOWN: u32 = 1;

/// The page; null before the first pool or the first followed fork.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

fn page() -> Option<&'static AtomicU32> {
    // SAFETY: null, or a page that is never unmapped.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// Marks this process as known, if copies are detected.
pub(crate) fn know() {
    page().into_iter().for_each(|page| page.store(KNOWN, Ordering::Relaxed));
}

/// Starts to detect copies.
pub(crate) fn watch() {
    if page().is_some() {
        return know();
    }
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let Ok(new) = (unsafe { mmap_anonymous(ptr::null_mut(), BASE_PAGE, rights, MapFlags::PRIVATE) }) else { return };
    // SAFETY: the library's own new mapping.
    if unsafe { madvise(new, BASE_PAGE, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above.
        let _ = unsafe { munmap(new, BASE_PAGE) };
        return;
    }
    let new = new.cast::<AtomicU32>();
    // SAFETY: a page of zeros, which is a valid `AtomicU32`.
    unsafe { &*new }.store(KNOWN, Ordering::Relaxed);
    PAGE.store(new, Ordering::Release);
}

/// Whether this process is a copy that the library has not handled yet.
pub(crate) fn is_unnoticed() -> bool {
    page().is_some_and(|page| page.load(Ordering::Relaxed) != KNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::tests::one_at_a_time;

    #[test]
    fn a_copy_is_detected_and_the_original_is_not() {
        let _others_wait = one_at_a_time();
        watch();
        watch();
        assert!(!is_unnoticed());
        // SAFETY: the child reads a word and exits.
        let status = unsafe {
            match libc::syscall(libc::SYS_fork) {
                0 => libc::_exit(i32::from(is_unnoticed())),
                child => {
                    let mut status = 0;
                    assert_eq!(i64::from(libc::waitpid(child as i32, &mut status, 0)), child);
                    status
                }
            }
        };
        assert_eq!(libc::WEXITSTATUS(status), 1);
        assert!(!is_unnoticed());
    }
}
