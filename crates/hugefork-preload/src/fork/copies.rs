//! Whether this process is a copy that no handler was told of: one by `_Fork`, or by `clone(2)` itself.
//!
//! A page is wiped by the kernel in each copy of the process, and in nothing else (`MADV_WIPEONFORK`): not in threads,
//! and not in children of `vfork`, which share it. In a copy, locks may be held by threads that it does not have.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::BASE_PAGE;

/// What the page holds in a process that knows of itself.
const KNOWN: u32 = 1;

/// The page; null before the first pool, or the first fork that is followed.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

fn page() -> Option<&'static AtomicU32> {
    // SAFETY: null, or a page that stays mapped.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// This process is known, if copies are noticed.
pub(crate) fn know() {
    page().into_iter().for_each(|page| page.store(KNOWN, Ordering::Relaxed));
}

/// From now on, copies are noticed.
pub(crate) fn watch() {
    if page().is_some() {
        return know();
    }
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping where the kernel likes.
    let Ok(new) = (unsafe { mmap_anonymous(ptr::null_mut(), BASE_PAGE, rights, MapFlags::PRIVATE) }) else { return };
    // SAFETY: our own mapping, which nobody else knows.
    if unsafe { madvise(new, BASE_PAGE, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above.
        let _ = unsafe { munmap(new, BASE_PAGE) };
        return;
    }
    let new = new.cast::<AtomicU32>();
    // SAFETY: zeros, which are an `AtomicU32`.
    unsafe { &*new }.store(KNOWN, Ordering::Relaxed);
    PAGE.store(new, Ordering::Release);
}

/// Whether this process is a copy that has not been noticed yet.
pub(crate) fn is_unnoticed() -> bool {
    page().is_some_and(|page| page.load(Ordering::Relaxed) != KNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::tests::one_at_a_time;

    #[test]
    fn a_copy_is_noticed_and_the_original_is_none() {
        let _others_wait = one_at_a_time();
        watch();
        watch();
        assert!(!is_unnoticed());
        // SAFETY: the child looks at a word and leaves.
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
