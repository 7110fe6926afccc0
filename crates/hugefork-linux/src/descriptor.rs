//! Descriptors of this library in a program that does not know of them: the program may close them,
//! or replace their files.
//!
//! ```text
//!   keep ─▶ 900 or more, never 0 to 2 ─▶ get: the same file? ─ yes ─▶ a call
//!                                                            └ no ──▶ EBADF, or the file is opened again
//! ```
//! Another thread may still replace the file between the check and the call, some 0.1 us. Calls
//! that need no descriptor avoid this module.

use core::ffi::CStr;
use core::mem::forget;
use core::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags, Stat, fstat, openat};
use rustix::io::{Errno, fcntl_dupfd_cloexec, fcntl_getfd};
use syscalls::{Sysno, syscall3};

/// Programs seldom use numbers from here on, since the kernel hands out the lowest free number.
const HIGH: RawFd = 900;

/// An open file, identified by its number and by its device and inode. The library does not close it through std,
/// because std calls libc's `close`, which changes `errno` and may be interposed.
///
/// Types built on this ([`Pagemap`](crate::pagemap_scan::Pagemap) and others) may reopen a lost file under another
/// number. They must check that a number still leads to the same file, since the same `ioctl` number has another
/// meaning for other files.
#[derive(Debug)]
pub struct Descriptor {
    number: RawFd,
    device: AtomicU64,
    inode: AtomicU64,
}

impl Descriptor {
    /// Moves the file that `open` opens to a number of at least 900, if the process may have that many. The file never
    /// has number 0, 1 or 2, not even during the opening, because threads print there.
    ///
    /// # Errors
    /// The errors of `open`.
    pub fn keep<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Descriptor, E> {
        let taken = [take_if_closed(0), take_if_closed(1), take_if_closed(2)];
        let low = Descriptor::from(open()?);
        drop(taken);
        match fcntl_dupfd_cloexec(low.borrow(), HIGH).map(Descriptor::from) {
            Ok(high) if high.file() == low.file() => Ok(high),
            // No high number is free, or the program has replaced the file meanwhile and `high` duplicates the
            // replacement. In the latter case, later uses of `low` detect the mismatch.
            Ok(_) | Err(_) => Ok(low),
        }
    }

    /// Opens a file of `/proc` and moves it as [`Descriptor::keep`] does. Detects a replacement by the program during
    /// the move.
    ///
    /// # Errors
    /// The file's opening failed; `EBADF` if it was replaced.
    pub fn keep_of_proc(path: &CStr, access: OFlags) -> Result<Descriptor, Errno> {
        let kept = Descriptor::keep(|| openat(CWD, path, access | OFlags::CLOEXEC, Mode::empty()))?;
        // `fstatfs` would be the direct check, but seccomp filters often forbid it.
        let stat = kept.stat()?;
        if (stat.st_size, stat.st_blocks, stat.st_blksize) != (0, 0, 1024) {
            // The number may belong to the program now, so the library closes nothing. A duplicate above 900 remains
            // open.
            forget(kept);
            return Err(Errno::BADF);
        }
        Ok(kept)
    }

    /// Calls `fstat` for the file.
    ///
    /// # Errors
    /// `EBADF` if the number leads to no file or to another one.
    pub fn stat(&self) -> Result<Stat, Errno> {
        match fstat(self.borrow()) {
            Ok(stat) if self.file() == (stat.st_dev, stat.st_ino) => Ok(stat),
            Ok(_) | Err(_) => Err(Errno::BADF),
        }
    }

    /// Returns the descriptor after a check that takes 0.1 us.
    ///
    /// # Errors
    /// As in [`Descriptor::stat`].
    pub fn get(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.stat()?;
        Ok(self.borrow())
    }

    /// Like [`Descriptor::get`], for a file of `/proc`. If the number no longer leads to the file, the result is the
    /// file opened again, which remains open as long as `again`.
    ///
    /// # Errors
    /// As in [`Descriptor::keep_of_proc`].
    pub fn get_or_open<'a>(
        &'a self,
        again: &'a mut Option<Descriptor>,
        path: &CStr,
        access: OFlags,
    ) -> Result<BorrowedFd<'a>, Errno> {
        match self.get() {
            Ok(file) => Ok(file),
            Err(_) => again.insert(Descriptor::keep_of_proc(path, access)?).get(),
        }
    }

    /// The device and the inode of the file.
    pub fn file(&self) -> (u64, u64) {
        (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed))
    }

    /// Opens the file again at the same number, if the program has closed it. Returns false if the file is open, or if
    /// the number leads to another file.
    pub fn reopen(&self, open: impl FnOnce() -> Option<Descriptor>) -> bool {
        if fcntl_getfd(self.borrow()).is_ok() {
            return false;
        }
        let Some(mut new) = open() else { return false };
        if new.number != self.number {
            // The lowest free number from this one on.
            let Ok(again) = fcntl_dupfd_cloexec(new.borrow(), self.number) else { return false };
            new = Descriptor::from(again);
        }
        if new.number != self.number {
            return false;
        }
        let (device, inode) = new.file();
        self.device.store(device, Ordering::Relaxed);
        self.inode.store(inode, Ordering::Relaxed);
        // From now on `self` owns this number.
        forget(new);
        true
    }

    fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is or was that of a descriptor. Callers use it only after a check that it leads to the
        // file.
        unsafe { BorrowedFd::borrow_raw(self.number) }
    }
}

/// Occupies `number` if it is the lowest free one, with a file that cannot be written.
fn take_if_closed(number: RawFd) -> Option<Descriptor> {
    // SAFETY: the call only checks whether the number is open.
    if fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }) != Err(Errno::BADF) {
        return None;
    }
    match openat(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => Some(Descriptor::from(file)),
        Err(_) => None,
    }
}

/// Gives the calling thread a table of descriptors of its own, in which only those of `kept` are open. So the program
/// cannot close or replace them, and the thread keeps no file of the program open. Sorts `kept`.
///
/// Returns false if the kernel refuses. Then the table may still be the program's, or have other open descriptors.
#[must_use]
pub fn keep_only(kept: &mut [RawFd]) -> bool {
    const UNSHARE: usize = 1 << 1;
    kept.sort_unstable();
    let (mut last, mut flags) = (u32::MAX, UNSHARE);
    // From the end: the kernel duplicates the table only up to the first range.
    for number in kept.iter().rev().copied().chain([-1]) {
        let first = (number + 1).cast_unsigned();
        // SAFETY: the first call makes the table this thread's own before it closes, so no descriptor of another thread
        // is closed. A call that fails closes none.
        if first <= last && unsafe { syscall3(Sysno::close_range, first as usize, last as usize, flags) }.is_err() {
            return false;
        }
        if number <= 0 {
            break;
        }
        (last, flags) = (number.cast_unsigned() - 1, 0);
    }
    true
}

impl From<OwnedFd> for Descriptor {
    fn from(file: OwnedFd) -> Descriptor {
        // If the kernel does not identify the file, store an identity that no file matches.
        let (device, inode) = fstat(&file).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
        Descriptor { number: file.into_raw_fd(), device: AtomicU64::new(device), inode: AtomicU64::new(inode) }
    }
}

impl AsRawFd for Descriptor {
    /// The number. It may lead to another file by now.
    fn as_raw_fd(&self) -> RawFd {
        self.number
    }
}

impl AsFd for Descriptor {
    /// Like [`AsRawFd::as_raw_fd`], for callers that pass the descriptor on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.borrow()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.get().is_ok() {
            // SAFETY: `self` owns the number and does not use it again.
            unsafe { rustix::io::close(self.number) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::vec::Vec;

    #[test]
    fn a_thread_keeps_only_some_descriptors_and_others_keep_all() {
        let files: Vec<File> = (0..5).map(|_| File::open("/dev/null").unwrap()).collect();
        let is_open = |file: &File| fcntl_getfd(file).is_ok();
        let in_the_thread = std::thread::scope(|scope| {
            let body = || {
                let mut kept = [3, 1].map(|nth: usize| files[nth].as_raw_fd());
                keep_only(&mut kept).then(|| files.iter().map(is_open).collect::<Vec<_>>())
            };
            scope.spawn(body).join().unwrap()
        });
        assert_eq!(in_the_thread.unwrap(), [false, true, false, true, false]);
        assert!(files.iter().all(is_open));
    }
}
