//! `userfaultfd(2)` for write-protection, by its ioctls. No crate here names them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::mm::{UserfaultfdFlags, userfaultfd};

use crate::error::BenchError;

/// A descriptor that gets the write faults of one range.
pub(super) struct Userfault {
    fd: OwnedFd,
    range: Range,
}

/// `struct uffdio_range`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

/// `struct uffd_msg`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    more: u64,
}

const UFFD_API: u64 = 0xAA;
const UFFD_FEATURE_PAGEFAULT_FLAG_WP: u64 = 1;
const UFFD_EVENT_PAGEFAULT: u8 = 0x12;
const UFFDIO_REGISTER_MODE_WP: u64 = 2;
const UFFDIO_WRITEPROTECT_MODE_WP: u64 = 1;
const UFFD_USER_MODE_ONLY: u32 = 1;

const UFFDIO_API: libc::Ioctl = request(3, 0x3F, size_of::<Api>());
const UFFDIO_REGISTER: libc::Ioctl = request(3, 0x00, size_of::<Register>());
const UFFDIO_UNREGISTER: libc::Ioctl = request(2, 0x01, size_of::<Range>());
const UFFDIO_WRITEPROTECT: libc::Ioctl = request(3, 0x06, size_of::<WriteProtect>());

/// The number of a request: 1 writes, 2 reads, 3 both.
const fn request(direction: u32, number: u32, size: usize) -> libc::Ioctl {
    ((direction << 30) | ((size as u32) << 16) | (0xAA << 8) | number) as libc::Ioctl
}

/// Whether writes fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnWrite {
    Fault,
    Pass,
}

impl Userfault {
    /// Registers `len` bytes from `start`, in whole pages. Writes pass until [`Userfault::set`] says otherwise. Only
    /// faults in user mode are asked for, which needs no privileges.
    ///
    /// # Errors
    /// [`BenchError::CannotRun`] if the kernel refuses, or cannot write-protect.
    pub(super) fn of(start: *mut u8, len: usize) -> Result<Userfault, BenchError> {
        let refused = |what: &str, error: io::Error| {
            BenchError::CannotRun(format!(
                "{what}: {error}; userfaultfd for user-mode writes needs Linux 5.11, and a container that allows it"
            ))
        };
        let flags = UserfaultfdFlags::CLOEXEC
            | UserfaultfdFlags::NONBLOCK
            | UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
        // SAFETY: makes a descriptor and touches no memory.
        let fd = unsafe { userfaultfd(flags) }.map_err(|errno| refused("userfaultfd", errno.into()))?;
        let userfault = Userfault { fd, range: Range { start: start as u64, len: len as u64 } };
        let mut api = Api { api: UFFD_API, features: UFFD_FEATURE_PAGEFAULT_FLAG_WP, ioctls: 0 };
        userfault.call(UFFDIO_API, &mut api).map_err(|error| refused("UFFDIO_API", error))?;
        let mut register = Register { range: userfault.range, mode: UFFDIO_REGISTER_MODE_WP, ioctls: 0 };
        userfault.call(UFFDIO_REGISTER, &mut register).map_err(|error| refused("UFFDIO_REGISTER", error))?;
        Ok(userfault)
    }

    /// Decides what writes to `len` bytes at `offset` do. If they pass, those that wait go on.
    pub(super) fn set(&self, offset: usize, len: usize, writes: OnWrite) -> io::Result<()> {
        let range = Range { start: self.range.start + offset as u64, len: len as u64 };
        let mode = if writes == OnWrite::Fault { UFFDIO_WRITEPROTECT_MODE_WP } else { 0 };
        let mut protect = WriteProtect { range, mode };
        loop {
            match self.call(UFFDIO_WRITEPROTECT, &mut protect) {
                // The kernel was changing mappings meanwhile.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }

    /// Decides it for the whole range.
    pub(super) fn set_all(&self, writes: OnWrite) -> io::Result<()> {
        self.set(0, self.range.len as usize, writes)
    }

    /// Lets all writes go on, for good.
    pub(super) fn end(&self) -> io::Result<()> {
        let mut range = self.range;
        self.call(UFFDIO_UNREGISTER, &mut range)
    }

    /// Calls `fault` with the offset of each write that waits. Does not wait itself.
    pub(super) fn each_fault(&self, mut fault: impl FnMut(usize) -> io::Result<()>) -> io::Result<()> {
        let none = Message { event: 0, reserved: [0; 7], flags: 0, address: 0, more: 0 };
        let mut messages = [none; 16];
        // SAFETY: a live array of plain numbers, and its length.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), messages.as_mut_ptr().cast(), size_of_val(&messages)) };
        if read < 0 {
            let error = io::Error::last_os_error();
            let nothing = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if nothing { Ok(()) } else { Err(error) };
        }
        let messages = &messages[..read as usize / size_of::<Message>()];
        let faults = messages.iter().filter(|message| message.event == UFFD_EVENT_PAGEFAULT);
        faults.map(|message| (message.address - self.range.start) as usize).try_for_each(&mut fault)
    }

    fn call<T>(&self, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        // SAFETY: the argument is the structure that the request takes, and lives through the call. What the requests
        // change is whether writes to the range wait, which changes no bytes.
        let answer = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, ptr_of(argument)) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn ptr_of<T>(argument: &mut T) -> *mut T {
    argument
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `linux/userfaultfd.h` has them.
    #[test]
    fn requests_have_the_kernels_numbers() {
        let numbers = [UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WRITEPROTECT].map(|number| number as u32);
        assert_eq!(numbers, [0xC018_AA3F, 0xC020_AA00, 0x8010_AA01, 0xC018_AA06]);
        assert_eq!(size_of::<Message>(), 32);
    }
}
