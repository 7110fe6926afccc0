//! The advice of `madvise(2)` that rustix lacks.
//!
//! [`madvise(2)`](https://man7.org/linux/man-pages/man2/madvise.2.html);
//! [`<asm-generic/mman-common.h>`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/asm-generic/mman-common.h)

use core::ffi::c_void;
use core::ptr;

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use syscalls::{Sysno, syscall3, syscall5, syscall6};

use crate::answer;

/// `MADV_DONTNEED_LOCKED`.
const DONTNEED_LOCKED: usize = 24;
/// `MADV_COLLAPSE`.
const COLLAPSE: usize = 25;

/// Collapses a range into huge pages (`MADV_COLLAPSE`, Linux 6.1) without changing its contents. Does nothing if no
/// whole huge page lies in the range.
///
/// # Errors
/// `EINVAL` if huge pages are not allowed there, or before Linux 6.1; `EAGAIN` if a page is in use at that moment;
/// `ENOMEM` if memory is short, or the range is not mapped.
pub fn collapse(start: *mut c_void, len: usize) -> Result<(), Errno> {
    // SAFETY: the call preserves the contents of any mapping.
    answer(unsafe { syscall3(Sysno::madvise, start.addr(), len, COLLAPSE) }).map(drop)
}

/// Like [`collapse`], in the process of a `pidfd_open(2)` (`process_madvise(2)`).
///
/// # Errors
/// As [`collapse`]; `EPERM` without `CAP_SYS_NICE` or the right to read that process, `ESRCH` once it has ended.
pub fn collapse_of(process: BorrowedFd<'_>, start: usize, len: usize) -> Result<(), Errno> {
    let ranges = [[start, len]];
    let (process, ranges) = (process.as_raw_fd() as usize, ranges.as_ptr().expose_provenance());
    // SAFETY: one range with the layout of `struct iovec`. The call preserves the contents of any mapping.
    answer(unsafe { syscall5(Sysno::process_madvise, process, ranges, 1, COLLAPSE, 0) }).map(drop)
}

/// Makes each processor flush its batch of newly allocated pages to the kernel's page lists.
///
/// `MADV_COLLAPSE` starts with the same flush (`lru_add_drain_all` in the kernel's `madvise_collapse`) while it holds
/// the lock of the address space. It waits for a kernel thread on each processor that has such pages, for milliseconds
/// if other threads occupy that processor. `move_pages` of no page flushes without the lock, so the collapse has
/// nothing to wait for. In containers that forbid `move_pages`, the long waits remain.
pub fn empty_batches() {
    /// `MPOL_MF_MOVE` of linux/mempolicy.h: moves pages that only this process maps.
    const MOVE_OWN: usize = 1 << 1;
    let nothing = ptr::from_ref(&0_usize).expose_provenance();
    // SAFETY: the count is 0, so the kernel reads and writes no array. The arrays are non-null because that selects
    // moving pages over querying them.
    let _ = unsafe { syscall6(Sysno::move_pages, 0, 0, nothing, nothing, nothing, MOVE_OWN) };
}

/// Drops the pages of a range, locked ones too (`MADV_DONTNEED_LOCKED`, Linux 5.18).
///
/// # Errors
/// The kernel refuses.
///
/// # Safety
/// No code needs the contents of the range.
pub unsafe fn drop_locked(start: *mut c_void, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller no longer needs the contents.
    answer(unsafe { syscall3(Sysno::madvise, start.addr(), len, DONTNEED_LOCKED) }).map(drop)
}

#[cfg(test)]
mod tests {
    use std::{println, vec};

    use super::*;

    #[test]
    fn collapsing_preserves_the_contents() {
        const HUGE: usize = 2 << 20;
        let mut memory = vec![7_u8; 2 * HUGE];
        let start = memory.as_mut_ptr().map_addr(|address| address.next_multiple_of(HUGE));
        match collapse(start.cast(), HUGE) {
            Ok(()) | Err(Errno::AGAIN | Errno::NOMEM) => {}
            Err(errno) => println!("skipped: this kernel cannot collapse pages: {errno}"),
        }
        assert!(memory.iter().all(|&byte| byte == 7));
        assert_eq!(collapse(core::ptr::without_provenance_mut(1), HUGE), Err(Errno::INVAL));
    }
}
