//! Reading and writing descriptors by address: the memory may be shared, so that no slice of it may be formed.

use core::mem::size_of_val;
use core::ptr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;

use super::last_error;
use crate::sys::SystemError;

/// A `write(2)` that has written none of some bytes, and says that it went well.
pub(crate) const WROTE_NOTHING: SystemError = SystemError::new("write of no bytes", Errno::IO);

/// How the kernel moves bytes between a descriptor and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moves {
    /// It copies through the page table, and what it cannot copy it keeps for the next call.
    Bytes,
    /// It may hold on to the physical pages while a device or another program fills them (`O_DIRECT`, FUSE, TLS in the
    /// kernel), or throw away the message that it cannot copy.
    PagesOrMessages,
}

impl Moves {
    /// When `fd` is read.
    pub(crate) fn of_reads(fd: BorrowedFd<'_>) -> Moves {
        let copies = match fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::Fifo) => true,
            Ok(FileType::Socket) => option(fd, libc::SOL_SOCKET, libc::SO_TYPE) == libc::SOCK_STREAM && !has_layer(fd),
            _ => false,
        };
        if copies { Moves::Bytes } else { Moves::PagesOrMessages }
    }

    /// When `fd` is written. Nothing is lost then, and it is `O_DIRECT` that says whether pages are held on to.
    pub(crate) fn of_writes(fd: BorrowedFd<'_>) -> Moves {
        let direct = fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
        if direct { Moves::PagesOrMessages } else { Moves::Bytes }
    }
}

/// A socket's option; -1 if it has none.
fn option(fd: BorrowedFd<'_>, level: i32, name: i32) -> i32 {
    let (mut value, mut len) = (-1, size_of::<i32>() as libc::socklen_t);
    // SAFETY: writes up to `len` bytes to `value`, and how many to `len`.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, ptr::from_mut(&mut value).cast(), &mut len) };
    if result == 0 { value } else { -1 }
}

/// Whether something sits on top of TCP, such as TLS, which may decrypt straight into the reader's pages.
fn has_layer(fd: BorrowedFd<'_>) -> bool {
    let mut name = [0u8; 16];
    let mut len = size_of_val(&name) as libc::socklen_t;
    let at = name.as_mut_ptr().cast();
    // SAFETY: writes up to `len` bytes to `name`, and how many to `len`.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_ULP, at, &mut len) };
    result == 0 && len > 0
}

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
