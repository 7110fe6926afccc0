//! `madvise(2)` with the advice that rustix does not have.
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

/// Makes huge pages of a range (`MADV_COLLAPSE`, Linux 6.1), whose contents stay. Where nothing huge fits into it, it
/// does nothing.
///
/// # Errors
/// `EINVAL` where no huge page may be, or before Linux 6.1; `EAGAIN` where somebody uses a page just then; `ENOMEM`
/// where there is no memory, or none in the range.
pub fn collapse(start: *mut c_void, len: usize) -> Result<(), Errno> {
    // SAFETY: contents stay, whatever is mapped there.
    answer(unsafe { syscall3(Sysno::madvise, start.addr(), len, COLLAPSE) }).map(drop)
}

/// As [`collapse`], in the process of a `pidfd_open(2)` (`process_madvise(2)`).
///
/// # Errors
/// As [`collapse`]; `EPERM` without `CAP_SYS_NICE` or the right to read that process, `ESRCH` once it has ended.
pub fn collapse_of(process: BorrowedFd<'_>, start: usize, len: usize) -> Result<(), Errno> {
    let ranges = [[start, len]];
    let (process, ranges) = (process.as_raw_fd() as usize, ranges.as_ptr().expose_provenance());
    // SAFETY: one range, of the layout of `struct iovec`. Contents stay, whatever is mapped there.
    answer(unsafe { syscall5(Sysno::process_madvise, process, ranges, 1, COLLAPSE, 0) }).map(drop)
}

/// Has each processor put the pages that it has lately been given where the kernel finds them.
///
/// `MADV_COLLAPSE` does so first of all (`lru_add_drain_all` in the kernel's `madvise_collapse`), and has the lock of
/// the address space meanwhile: it waits for a thread of the kernel on each processor that has such pages, and as many
/// milliseconds as others want that processor. `move_pages` of no page does the same without the lock, and leaves it
/// nothing to wait for. Containers that forbid the call have the longer waits.
pub fn empty_batches() {
    /// `MPOL_MF_MOVE` of linux/mempolicy.h: pages that this process alone has.
    const MOVE_OWN: usize = 1 << 1;
    let nothing = ptr::from_ref(&0_usize).expose_provenance();
    // SAFETY: no page is named, so no array is read or written; they are there so that pages are to be moved, not
    // looked for.
    let _ = unsafe { syscall6(Sysno::move_pages, 0, 0, nothing, nothing, nothing, MOVE_OWN) };
}

/// Drops the pages of a range, locked ones too (`MADV_DONTNEED_LOCKED`, Linux 5.18).
///
/// # Errors
/// The kernel refuses.
///
/// # Safety
/// Nobody needs what is there.
pub unsafe fn drop_locked(start: *mut c_void, len: usize) -> Result<(), Errno> {
    // SAFETY: by contract.
    answer(unsafe { syscall3(Sysno::madvise, start.addr(), len, DONTNEED_LOCKED) }).map(drop)
}

#[cfg(test)]
mod tests {
    use std::{println, vec};

    use super::*;

    #[test]
    fn what_is_collapsed_keeps_its_contents() {
        const HUGE: usize = 2 << 20;
        let mut memory = vec![7_u8; 2 * HUGE];
        let start = memory.as_mut_ptr().map_addr(|address| address.next_multiple_of(HUGE));
        match collapse(start.cast(), HUGE) {
            Ok(()) | Err(Errno::AGAIN | Errno::NOMEM) => {}
            Err(errno) => println!("skipped: this kernel makes no huge pages of what is there: {errno}"),
        }
        assert!(memory.iter().all(|&byte| byte == 7));
        assert_eq!(collapse(core::ptr::without_provenance_mut(1), HUGE), Err(Errno::INVAL));
    }
}
