//! Reading and writing descriptors by address: the memory may be shared, so that no slice of it may be formed.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::last_error;
use crate::error::SystemError;

/// One `read(2)`, or `pread(2)` at `offset`, of up to `len` bytes to `at`.
///
/// # Safety
/// `at..at + len` belongs to the caller's region, to which others make only accesses that may race.
pub(crate) unsafe fn read(
    fd: BorrowedFd<'_>,
    at: *mut u8,
    len: usize,
    offset: Option<u64>,
) -> Result<usize, SystemError> {
    match offset {
        // SAFETY: the kernel writes `at..at + len`, as far as it may be written to, and answers EFAULT where not.
        None => counted("read", unsafe { libc::read(fd.as_raw_fd(), at.cast(), len) }),
        Some(offset) => {
            // SAFETY: as above. An offset beyond `i64` comes out negative, which the kernel refuses.
            counted("pread", unsafe { libc::pread64(fd.as_raw_fd(), at.cast(), len, offset.cast_signed()) })
        }
    }
}

/// One `write(2)`, or `pwrite(2)` at `offset`, of up to `len` bytes from `at`.
///
/// # Safety
/// `at..at + len` belongs to the caller's region.
pub(crate) unsafe fn write(
    fd: BorrowedFd<'_>,
    at: *const u8,
    len: usize,
    offset: Option<u64>,
) -> Result<usize, SystemError> {
    match offset {
        // SAFETY: the kernel reads `at..at + len`, as far as it may be read, and answers EFAULT where not.
        None => counted("write", unsafe { libc::write(fd.as_raw_fd(), at.cast(), len) }),
        Some(offset) => {
            // SAFETY: as above, and as in `read`.
            counted("pwrite", unsafe { libc::pwrite64(fd.as_raw_fd(), at.cast(), len, offset.cast_signed()) })
        }
    }
}

fn counted(call: &'static str, result: isize) -> Result<usize, SystemError> {
    usize::try_from(result).map_err(|_| SystemError::new(call, last_error()))
}
