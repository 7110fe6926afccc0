//! Page faults that this process handles itself: a thread or system call that accesses a registered
//! range sleeps until the descriptor is closed.

use std::ops::Range;

use hugefork_linux::advice;
use hugefork_linux::userfaultfd::{
    Faults, MODE_MINOR, MODE_MISSING, MODE_WP, UFFD_FEATURE_MINOR_SHMEM, UFFD_FEATURE_MISSING_SHMEM,
    UFFD_FEATURE_PAGEFAULT_FLAG_WP, UFFD_FEATURE_WP_HUGETLBFS_SHMEM, UFFD_FEATURE_WP_UNPOPULATED, Userfaultfd,
};
use rustix::io::Errno;

fn open(features: u64) -> Result<Userfaultfd, Errno> {
    let faults = Userfaultfd::open(Faults::OfCallsToo)?;
    faults.enable(features)?;
    Ok(faults)
}

/// From now on, threads that write to a range of private memory sleep, until the result is dropped or another mapping
/// replaces the range. Readers do not sleep.
///
/// # Errors
/// The process lacks the right, or the kernel lacks the feature.
pub(super) fn hold_writers(range: &Range<usize>) -> Result<Userfaultfd, Errno> {
    let faults = open(UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_WP_UNPOPULATED)?;
    faults.register(range, MODE_WP)?;
    faults.protect(range).map(|()| faults)
}

/// Makes a range of private memory read as zeros that take no memory and no mapping: the kernel maps its zero page
/// there, also in a private mapping of a file. Threads that access the range meanwhile sleep.
///
/// # Errors
/// The process lacks the right, or the kernel lacks the feature. Some contents may have been dropped.
///
/// # Safety
/// The contents are not needed, and this thread does not access the range: signals are blocked.
pub(super) unsafe fn show_zeros(range: &Range<usize>) -> Result<(), Errno> {
    let faults = open(UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM)?;
    faults.register(range, MODE_MISSING | MODE_MINOR)?;
    // SAFETY: the caller no longer needs the contents.
    let done =
        unsafe { advice::drop_locked(range.start as *mut _, range.len()).and_then(|()| faults.put_zeros(range)) };
    // If the kernel refuses, closing the descriptor has the same effect a moment later.
    let _ = faults.unregister(range).and_then(|()| faults.wake(range));
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BASE_PAGE;
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    #[test]
    fn zeros_replace_file_contents_and_are_writable() {
        let file = memfd_create(c"hugefork-test", MemfdFlags::CLOEXEC).unwrap();
        let len = 4 * BASE_PAGE;
        rustix::io::pwrite(&file, &vec![7; len], 0).unwrap();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::PRIVATE, &file, 0) }.unwrap();
        // SAFETY: all of the mapping, which exists as long as this slice is used.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), len) };
        bytes[2 * BASE_PAGE] = 8;
        let middle = at as usize + BASE_PAGE..at as usize + 3 * BASE_PAGE;
        // SAFETY: the contents are not needed.
        match unsafe { show_zeros(&middle) } {
            Ok(()) => {}
            Err(errno) => return println!("skipped: this process may not handle the faults of system calls: {errno}"),
        }
        let expected = |nth: usize| if (1..3).contains(&(nth / BASE_PAGE)) { 0 } else { 7 };
        assert!(bytes.iter().enumerate().all(|(nth, byte)| *byte == expected(nth)));
        bytes[BASE_PAGE] = 9;
        assert_eq!((bytes[BASE_PAGE - 1], bytes[BASE_PAGE], bytes[BASE_PAGE + 1]), (7, 9, 0));
        let mut in_file = vec![0; len];
        rustix::io::pread(&file, &mut in_file, 0).unwrap();
        assert!(in_file.iter().all(|byte| *byte == 7));
        // SAFETY: the test's own mapping, no longer used.
        unsafe { munmap(at, len) }.unwrap();
    }
}
