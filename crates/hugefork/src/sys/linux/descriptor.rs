//! Reads and writes descriptors by address, because a slice must not be formed over memory that other threads may write
//! to.

use core::mem::size_of_val;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, fstatfs};
use rustix::io::Errno;
use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;

use super::last_error;
use crate::sys::SystemError;

/// A `write(2)` that reports success but has written nothing.
pub(crate) const WROTE_NOTHING: SystemError = SystemError::new("write of no bytes", Errno::IO);

/// The way in which the kernel moves bytes between a descriptor and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moves {
    /// The kernel copies through the page table. If it cannot copy some bytes, it leaves them for the next call.
    Bytes,
    /// The kernel may use the physical pages directly, while a device or another program fills or reads them
    /// (`O_DIRECT`, FUSE, 9P, TLS in the kernel). Or it may drop a message that it cannot copy.
    PagesOrMessages,
}

impl Moves {
    /// How bytes move when `fd` is read.
    pub(crate) fn of_reads(fd: BorrowedFd<'_>) -> Moves {
        let copies = match fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            // With this flag, each write to the pipe is a message.
            Ok(FileType::Fifo) => !is_direct(fd),
            Ok(FileType::Socket) => socket_type(fd) == Ok(SocketType::STREAM) && !has_layer(fd),
            _ => false,
        };
        if copies { Moves::Bytes } else { Moves::PagesOrMessages }
    }

    /// How bytes move when `fd` is written; a write loses no message. If a program serves the file system, direct I/O
    /// cannot be ruled out.
    pub(crate) fn of_writes(fd: BorrowedFd<'_>) -> Moves {
        if is_direct(fd) || has_a_server(fd) || has_layer(fd) { Moves::PagesOrMessages } else { Moves::Bytes }
    }
}

fn is_direct(fd: BorrowedFd<'_>) -> bool {
    fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::DIRECT))
}

/// Whether a program or another machine serves the file (FUSE or 9P), by the numbers of statfs(2).
fn has_a_server(fd: BorrowedFd<'_>) -> bool {
    const FUSE: u64 = 0x6573_5546;
    const V9FS: u64 = 0x0102_1997;
    fstatfs(fd).is_ok_and(|found| [FUSE, V9FS].contains(&(found.f_type as u64)))
}

/// Whether a protocol lies on top of TCP, such as TLS, which may decrypt straight into the reader's pages.
fn has_layer(fd: BorrowedFd<'_>) -> bool {
    let mut name = [0u8; 16];
    let mut len = size_of_val(&name) as libc::socklen_t;
    let at = name.as_mut_ptr().cast();
    // SAFETY: the call writes up to `len` bytes to `name`, and their number to `len`.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_ULP, at, &mut len) };
    result == 0 && len > 0
}

/// One `read(2)`, or `pread(2)` at `offset`, of up to `len` bytes to `at`.
///
/// # Safety
/// `at..at + len` belongs to the caller's region, and other threads make only accesses to it that may race.
pub(crate) unsafe fn read(
    fd: BorrowedFd<'_>,
    at: *mut u8,
    len: usize,
    offset: Option<u64>,
) -> Result<usize, SystemError> {
    match offset {
        // SAFETY: the kernel writes to `at..at + len` where it may, and answers EFAULT where it may not.
        None => counted("read", unsafe { libc::read(fd.as_raw_fd(), at.cast(), len) }),
        // SAFETY: as above. An offset beyond `i64` becomes negative, and the kernel refuses it.
        Some(from) => counted("pread", unsafe { libc::pread64(fd.as_raw_fd(), at.cast(), len, from.cast_signed()) }),
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
        // SAFETY: the kernel reads `at..at + len` where it may, and answers EFAULT where it may not.
        None => counted("write", unsafe { libc::write(fd.as_raw_fd(), at.cast(), len) }),
        // SAFETY: as above, and as in `read`.
        Some(to) => counted("pwrite", unsafe { libc::pwrite64(fd.as_raw_fd(), at.cast(), len, to.cast_signed()) }),
    }
}

/// The result of a call that counts bytes.
pub(super) fn counted(call: &'static str, result: isize) -> Result<usize, SystemError> {
    usize::try_from(result).map_err(|_| SystemError::new(call, last_error()))
}
