//! Faults that this process handles itself: whoever needs a page of a range that is registered, and finds none, sleeps
//! until he is woken, system calls too. The thread that handles them reads where they were.
//!
//! The engine has the same for the process that owns the memory (sys/linux/hold.rs), whose sleepers nobody reads of.

use std::ops::Range;

use hugefork_linux::advice;
use hugefork_linux::userfaultfd::{
    Faults, MODE_MINOR, MODE_MISSING, MODE_WP, Message, UFFD_FEATURE_MINOR_SHMEM, UFFD_FEATURE_MISSING_SHMEM,
    UFFD_FEATURE_PAGEFAULT_FLAG_WP, UFFD_FEATURE_WP_HUGETLBFS_SHMEM, UFFD_FEATURE_WP_UNPOPULATED, Userfaultfd,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::descriptors::passing::Passing;

/// A fault that somebody waits with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The start of the page.
    pub(crate) address: usize,
    pub(crate) is_write: bool,
}

/// What faults are handled with.
pub(crate) struct UserFaults(Passing<Userfaultfd>);

impl UserFaults {
    /// Opens it, if the process may handle the faults of system calls.
    ///
    /// # Errors
    /// The process may not, or the kernel cannot.
    pub(crate) fn open() -> Result<UserFaults, Errno> {
        UserFaults::open_with(UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM)
    }

    fn open_with(features: u64) -> Result<UserFaults, Errno> {
        let faults = Passing::open(|| Userfaultfd::open(Faults::OfCallsToo))?;
        faults.enable(features)?;
        Ok(UserFaults(faults))
    }

    /// From now on, who finds no page there sleeps.
    ///
    /// # Errors
    /// The kernel refuses: it needs a mapping more, or something else is there than private memory.
    pub(crate) fn register(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.0.register(range, MODE_MISSING | MODE_MINOR)
    }

    /// From now on, who writes to a range of private memory sleeps, until this is dropped or something else is mapped
    /// there. Who reads does not.
    ///
    /// # Errors
    /// The process may not, or the kernel cannot.
    pub(crate) fn hold_writers(range: &Range<usize>) -> Result<UserFaults, Errno> {
        let faults = UserFaults::of_writers()?;
        faults.register_writers(range)?;
        faults.protect(range).map(|()| faults)
    }

    /// Opens one for [`UserFaults::register_writers`].
    ///
    /// # Errors
    /// As [`UserFaults::open`].
    pub(crate) fn of_writers() -> Result<UserFaults, Errno> {
        let features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_WP_UNPOPULATED;
        UserFaults::open_with(features)
    }

    /// From now on, pages of a range of private memory can be protected.
    ///
    /// # Errors
    /// As [`UserFaults::register`].
    pub(crate) fn register_writers(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.0.register(range, MODE_WP)
    }

    /// From now on, who writes to a range that is registered for that sleeps.
    ///
    /// # Errors
    /// The kernel refuses. Some of the range may be protected.
    pub(crate) fn protect(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.0.protect(range)
    }

    /// No longer. Who sleeps there goes on.
    ///
    /// # Errors
    /// The kernel refuses. Who sleeps may do so until this is dropped.
    pub(crate) fn unprotect(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.0.unprotect(range)
    }

    /// No longer. Who sleeps looks again.
    ///
    /// # Errors
    /// The kernel refuses. Who comes there may sleep until this is dropped.
    pub(crate) fn unregister(&self, range: &Range<usize>) -> Result<(), Errno> {
        match self.0.unregister(range) {
            // What is unmapped meanwhile, or another mapping, is not registered.
            Ok(()) | Err(Errno::INVAL) => self.wake(range),
            refused => refused,
        }
    }

    /// Who sleeps looks again.
    ///
    /// # Errors
    /// The kernel refuses. Who sleeps may do so until this is dropped.
    pub(crate) fn wake(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.0.wake(range)
    }

    /// Waits until somebody sleeps; false if nobody does within the time.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    pub(crate) fn wait(&self, ns: i64) -> Result<bool, Errno> {
        let time = Timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 };
        match poll(&mut [PollFd::from_borrowed_fd(self.0.0.get()?, PollFlags::IN)], Some(&time)) {
            Err(Errno::INTR) => Ok(false),
            polled => polled.map(|ready| ready > 0),
        }
    }

    /// The next fault that nobody was told of.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(crate) fn next(&self) -> Result<Option<Fault>, Errno> {
        let mut message = [Message::default()];
        let told = self.0.read(&mut message)?;
        let page = message[0].page().filter(|_| told > 0);
        Ok(page.map(|address| Fault { address, is_write: message[0].is_write() }))
    }
}

/// Has a range of private memory read as zeros, which take no memory, and no mapping: the kernel puts its page of zeros
/// there, also into a private mapping of a file. Who comes there meanwhile sleeps.
///
/// # Errors
/// The process may not, or the kernel cannot. Something may have been dropped.
///
/// # Safety
/// Nobody needs what is there, and this thread does not come there: signals are blocked.
pub(crate) unsafe fn show_zeros(range: &Range<usize>) -> Result<(), Errno> {
    let faults = UserFaults::open()?;
    faults.register(range)?;
    // SAFETY: by contract.
    let done =
        unsafe { advice::drop_locked(range.start as *mut _, range.len()).and_then(|()| faults.0.put_zeros(range)) };
    // If the kernel refuses, it is so in a moment, when the descriptor is closed.
    let _ = faults.unregister(range);
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BASE_PAGE;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    #[test]
    fn who_finds_no_page_is_told_of_and_woken() {
        let faults = match UserFaults::open() {
            Ok(faults) => faults,
            Err(errno) => return println!("skipped: this process may not handle the faults of system calls: {errno}"),
        };
        let file = memfd_create(c"hugefork-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, BASE_PAGE as u64).unwrap();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let at = unsafe { mmap(std::ptr::null_mut(), BASE_PAGE, rights, MapFlags::PRIVATE, &file, 0) }.unwrap();
        let range = at as usize..at as usize + BASE_PAGE;
        faults.register(&range).unwrap();
        assert_eq!((faults.wait(1_000_000), faults.next()), (Ok(false), Ok(None)));
        std::thread::scope(|scope| {
            // SAFETY: within the mapping, whose address stays.
            let writer = scope.spawn(|| unsafe { (range.start as *mut u8).write_volatile(7) });
            assert_eq!(faults.wait(60_000_000_000), Ok(true));
            assert_eq!(faults.next(), Ok(Some(Fault { address: range.start, is_write: true })));
            faults.unregister(&range).unwrap();
            writer.join().unwrap();
        });
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { munmap(at, BASE_PAGE) }.unwrap();
    }

    #[test]
    fn zeros_hide_what_a_file_has_and_can_be_written() {
        let file = memfd_create(c"hugefork-test", MemfdFlags::CLOEXEC).unwrap();
        let len = 4 * BASE_PAGE;
        rustix::io::pwrite(&file, &vec![7; len], 0).unwrap();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let at = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::PRIVATE, &file, 0) }.unwrap();
        // SAFETY: all of the mapping, which stays as long as this is used.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), len) };
        bytes[2 * BASE_PAGE] = 8;
        let middle = at as usize + BASE_PAGE..at as usize + 3 * BASE_PAGE;
        // SAFETY: nobody needs it.
        match unsafe { show_zeros(&middle) } {
            Ok(()) => {}
            Err(errno) => return println!("skipped: this process may not handle the faults of system calls: {errno}"),
        }
        let expected = |nth: usize| if (1..3).contains(&(nth / BASE_PAGE)) { 0 } else { 7 };
        assert!(bytes.iter().enumerate().all(|(nth, byte)| *byte == expected(nth)));
        bytes[BASE_PAGE] = 9;
        assert_eq!((bytes[BASE_PAGE - 1], bytes[BASE_PAGE], bytes[BASE_PAGE + 1]), (7, 9, 0));
        let mut in_file = vec![0; len];
        rustix::io::pread(&file, &mut in_file, 0).unwrap();
        assert!(in_file.iter().all(|byte| *byte == 7));
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { munmap(at, len) }.unwrap();
    }
}
