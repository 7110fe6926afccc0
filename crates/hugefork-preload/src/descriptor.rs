//! A descriptor that the library keeps in a program that does not know of it.
//!
//! Programs close descriptors that they did not open (daemons close all of them), and the number is then somebody
//! else's. So a descriptor is known by its file as well, and nothing is done through a number that leads elsewhere.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, memfd_create};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, getrlimit};

use crate::{own, seal};

/// Numbers from here on are seldom a program's, which takes the lowest that is free.
const HIGH: RawFd = 900;

/// So many can be there at once: a pool's, and one for each fork of which something lives.
const MANY: u64 = 80;

/// Whether the process may have all that may be needed, and the program does not miss them.
pub(crate) fn are_enough() -> bool {
    getrlimit(Resource::Nofile).current.is_none_or(|most| most >= HIGH as u64 + MANY)
}

/// A file of memory that is kept open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    number: RawFd,
    device: u64,
    inode: u64,
}

impl Kept {
    /// A new file that `exec` closes.
    ///
    /// # Errors
    /// The process has no descriptor left, among those that the program leaves alone.
    pub(crate) fn memory(name: &CStr) -> Result<Kept, Errno> {
        seal::allows_calls()?;
        let low = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?.into_raw_fd();
        // SAFETY: open, and only this function knows of it.
        let borrowed = unsafe { BorrowedFd::borrow_raw(low) };
        let number = if low < HIGH {
            let high = fcntl_dupfd_cloexec(borrowed, HIGH).map(IntoRawFd::into_raw_fd);
            // SAFETY: as above, and not used again.
            unsafe { rustix::io::close(low) };
            // Where there is none, low ones are the program's.
            high?
        } else {
            // No other is free.
            low
        };
        // SAFETY: open since a moment ago.
        unsafe { Kept::of(number) }
    }

    /// One that is open already.
    ///
    /// # Errors
    /// The kernel cannot say which file it is.
    ///
    /// # Safety
    /// It is the library's, and nobody closes it who does not ask [`Kept::get`].
    pub(crate) unsafe fn of(number: RawFd) -> Result<Kept, Errno> {
        // SAFETY: open, by contract.
        let file = fstat(unsafe { BorrowedFd::borrow_raw(number) })?;
        own::note(number, &file);
        Ok(Kept { number, device: file.st_dev, inode: file.st_ino })
    }

    /// The descriptor, if it still leads to the file.
    pub(crate) fn get(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the number may be closed or another file's; `fstat` finds out.
        let borrowed = unsafe { BorrowedFd::borrow_raw(self.number) };
        let file = fstat(borrowed).ok()?;
        ((file.st_dev, file.st_ino) == (self.device, self.inode)).then_some(borrowed)
    }

    /// Closes it.
    pub(crate) fn close(self) {
        if self.get().is_some() {
            own::forget(self.number);
            // SAFETY: it is ours.
            unsafe { rustix::io::close(self.number) };
        }
    }

    /// Whether nobody maps the file shared any more, in this process or another. If the program has closed the
    /// descriptor, nobody can say, and it is as `unknown` says.
    pub(crate) fn is_unmapped(&self, unknown: bool) -> bool {
        self.get().map_or(unknown, |file| fcntl_add_seals(file, SealFlags::WRITE) != Err(Errno::BUSY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_leads_elsewhere_is_left_alone() {
        let kept = Kept::memory(c"hugefork-test").unwrap();
        assert!(kept.number >= HIGH);
        let borrowed = kept.get().unwrap();
        let other = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: both are open, and the test owns the number.
        assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&other), kept.number) }, kept.number);
        let _ = borrowed;
        assert!(kept.get().is_none());
        assert!(kept.is_unmapped(true) && !kept.is_unmapped(false));
        kept.close();
        // SAFETY: still open, since `close` left it alone.
        assert_eq!(unsafe { libc::close(kept.number) }, 0);
    }
}
