//! `userfaultfd(2)` for write-protection.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use hugefork_linux::userfaultfd::{Faults, MODE_WP, Message, UFFD_FEATURE_PAGEFAULT_FLAG_WP, Userfaultfd};
use rustix::io::Errno;

use crate::error::BenchError;

/// A descriptor that gets the write faults of one range.
pub(super) struct Userfault {
    faults: Userfaultfd,
    range: Range<usize>,
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
        let refused = |what: &str, error: Errno| {
            let error = io::Error::from(error);
            BenchError::CannotRun(format!(
                "{what}: {error}; userfaultfd for user-mode writes needs Linux 5.11, and a container that allows it"
            ))
        };
        let faults = Userfaultfd::open(Faults::OfThreads).map_err(|errno| refused("userfaultfd", errno))?;
        faults.enable(UFFD_FEATURE_PAGEFAULT_FLAG_WP).map_err(|errno| refused("UFFDIO_API", errno))?;
        let range = start.expose_provenance()..start.addr() + len;
        faults.register(&range, MODE_WP).map_err(|errno| refused("UFFDIO_REGISTER", errno))?;
        Ok(Userfault { faults, range })
    }

    /// Decides what writes to `len` bytes at `offset` do. If they pass, those that wait go on.
    pub(super) fn set(&self, offset: usize, len: usize, writes: OnWrite) -> io::Result<()> {
        let range = self.range.start + offset..self.range.start + offset + len;
        let done = match writes {
            OnWrite::Fault => self.faults.protect(&range),
            OnWrite::Pass => self.faults.unprotect(&range),
        };
        Ok(done?)
    }

    /// Decides it for the whole range.
    pub(super) fn set_all(&self, writes: OnWrite) -> io::Result<()> {
        self.set(0, self.range.len(), writes)
    }

    /// Lets all writes go on, for good.
    pub(super) fn end(&self) -> io::Result<()> {
        Ok(self.faults.unregister(&self.range)?)
    }

    /// Calls `fault` with the offset of each write that waits. Does not wait itself.
    pub(super) fn each_fault(&self, fault: impl FnMut(usize) -> io::Result<()>) -> io::Result<()> {
        let mut messages = [Message::default(); 16];
        let told = self.faults.read(&mut messages)?;
        messages[..told].iter().filter_map(Message::page).map(|page| page - self.range.start).try_for_each(fault)
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.faults.0.as_fd()
    }
}
