//! Descriptors of our own, in a program that does not know of them: it may close them, or put other files in their
//! places.
//!
//! ```text
//!   keep ─▶ 900 or more, never 0 to 2 ─▶ get: the same file? ─ yes ─▶ a call
//!                                                            └ no ──▶ EBADF, or the file is opened again
//! ```
//! Between the look and the call another thread may put another file there. That moment lasts some 0.1 us. Calls that
//! can go by address do not come here.

use core::ffi::CStr;
use core::mem::forget;
use core::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags, Stat, fstat, openat};
use rustix::io::{Errno, fcntl_dupfd_cloexec, fcntl_getfd};

/// Programs seldom have numbers from here on, since they get the lowest that is free.
const HIGH: RawFd = 900;

/// An open file, known by its number and by what it is. std closes its own by libc, which touches `errno` and may be
/// stood in for by somebody else.
///
/// What is made of one is public where it may get another number ([`Pagemap`](crate::pagemap_scan::Pagemap) and
/// others). It has to be the same file then: the numbers of calls mean something else to others.
#[derive(Debug)]
pub struct Descriptor {
    number: RawFd,
    device: AtomicU64,
    inode: AtomicU64,
}

impl Descriptor {
    /// Keeps the file that `open` opens, at a number of 900 or more if the process may have so many. The file never has
    /// number 0, 1 or 2, where threads print, not even while it is opened.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn keep<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Descriptor, E> {
        let taken = [take_if_closed(0), take_if_closed(1), take_if_closed(2)];
        let low = match open() {
            Ok(file) => Descriptor::from(file),
            Err(error) => return Err(error),
        };
        drop(taken);
        match fcntl_dupfd_cloexec(low.borrow(), HIGH).map(Descriptor::from) {
            Ok(high) if high.file() == low.file() => Ok(high),
            // There is none, or the program has put another file there meanwhile, of which `high` is a duplicate. Then
            // `low` is not its file any more, and says so when it is used.
            Ok(_) | Err(_) => Ok(low),
        }
    }

    /// Keeps a file of `/proc`. Another one that the program has put in its place meanwhile is not taken for it.
    ///
    /// # Errors
    /// The file cannot be opened; `EBADF` if it was replaced.
    pub fn keep_of_proc(path: &CStr, access: OFlags) -> Result<Descriptor, Errno> {
        let kept = Descriptor::keep(|| openat(CWD, path, access | OFlags::CLOEXEC, Mode::empty()))?;
        // `fstatfs` would say it, but filters of system calls leave that out.
        let stat = kept.stat()?;
        match (stat.st_size, stat.st_blocks, stat.st_blksize) == (0, 0, 1024) {
            true => Ok(kept),
            false => {
                // The number may be the program's, so nothing is closed. A duplicate above 900 stays open.
                forget(kept);
                Err(Errno::BADF)
            }
        }
    }

    /// The kernel's answer to `fstat` of the file.
    ///
    /// # Errors
    /// `EBADF` if the number leads to no file or to another one.
    pub fn stat(&self) -> Result<Stat, Errno> {
        match fstat(self.borrow()) {
            Ok(stat) if self.file() == (stat.st_dev, stat.st_ino) => Ok(stat),
            Ok(_) | Err(_) => Err(Errno::BADF),
        }
    }

    /// The descriptor. This takes 0.1 us.
    ///
    /// # Errors
    /// As of [`Descriptor::stat`].
    pub fn get(&self) -> Result<BorrowedFd<'_>, Errno> {
        match self.stat() {
            Ok(_) => Ok(self.borrow()),
            Err(errno) => Err(errno),
        }
    }

    /// As [`Descriptor::get`]. If the number no longer leads to the file, the descriptor is what `open` opens, which
    /// stays open as long as `again`.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn get_or_open<'a>(
        &'a self,
        again: &'a mut Option<Descriptor>,
        open: impl FnOnce() -> Result<Descriptor, Errno>,
    ) -> Result<BorrowedFd<'a>, Errno> {
        match self.get() {
            Ok(file) => Ok(file),
            Err(_) => match open() {
                Ok(file) => again.insert(file).get(),
                Err(errno) => Err(errno),
            },
        }
    }

    /// The device and the inode of the file.
    pub fn file(&self) -> (u64, u64) {
        (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed))
    }

    /// Opens the file again if the program has closed it, at the same number. False if there is no need, or the number
    /// leads to another file by now.
    pub fn reopen(&self, open: impl FnOnce() -> Option<Descriptor>) -> bool {
        if fcntl_getfd(self.borrow()).is_ok() {
            return false;
        }
        let Some(mut new) = open() else { return false };
        if new.number != self.number {
            // The lowest that is free, from this number on.
            match fcntl_dupfd_cloexec(new.borrow(), self.number) {
                Ok(again) => new = Descriptor::from(again),
                Err(_) => return false,
            }
        }
        if new.number != self.number {
            return false;
        }
        let (device, inode) = new.file();
        self.device.store(device, Ordering::Relaxed);
        self.inode.store(inode, Ordering::Relaxed);
        // It is this one from now on.
        forget(new);
        true
    }

    fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is that of a descriptor, or was. Only those do anything by it who have seen that it leads
        // to the file.
        unsafe { BorrowedFd::borrow_raw(self.number) }
    }
}

/// Takes a number that is free, and the lowest. Nothing can be written there.
fn take_if_closed(number: RawFd) -> Option<Descriptor> {
    // SAFETY: only asked whether it is open.
    if fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }) != Err(Errno::BADF) {
        return None;
    }
    match openat(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => Some(Descriptor::from(file)),
        Err(_) => None,
    }
}

impl From<OwnedFd> for Descriptor {
    fn from(file: OwnedFd) -> Descriptor {
        // If the kernel does not say what it is, it is no file that anybody ever finds.
        let (device, inode) = match fstat(&file) {
            Ok(stat) => (stat.st_dev, stat.st_ino),
            Err(_) => (0, 0),
        };
        Descriptor { number: file.into_raw_fd(), device: AtomicU64::new(device), inode: AtomicU64::new(inode) }
    }
}

impl AsRawFd for Descriptor {
    /// The number, which may lead elsewhere by now.
    fn as_raw_fd(&self) -> RawFd {
        self.number
    }
}

impl AsFd for Descriptor {
    /// As [`AsRawFd::as_raw_fd`], for those who hand it on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.borrow()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.get().is_ok() {
            // SAFETY: it is ours, and not used again.
            unsafe { rustix::io::close(self.number) };
        }
    }
}
