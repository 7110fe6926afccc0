//! The descriptors that the library keeps in a program that does not know of them.
//!
//! Programs close descriptors that they did not open (daemons close all of them), and the number is then somebody
//! else's. So a descriptor is known by its file as well, and nothing is done through a number that leads elsewhere.
//!
//! The functions that close descriptors ask here whether a number is the library's: the engine works on its file by
//! number, and another file must not take its place. If one has, since the program has closed the library's by
//! instructions of its own, that is the program's.

pub(crate) mod passing;

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, Stat, fcntl_add_seals, fstat, memfd_create};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, getrlimit};

use crate::sandbox::withdrawn;

/// Numbers from here on are seldom a program's, which takes the lowest that is free.
pub(crate) const HIGH: RawFd = 900;

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
        withdrawn::allows_calls()?;
        passing::undisturbed(|| {
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
        })
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
        note(number, &file);
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
            forget(self.number);
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

/// Numbers from here on are not noted. The library's begin at 900, or are low where the program may not have so many.
const COUNT: usize = 2048;

static NOTED: [AtomicU64; COUNT / 64] = [const { AtomicU64::new(0) }; COUNT / 64];

/// What tells the file of each.
static FILES: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];

fn identity(file: &Stat) -> u64 {
    file.st_dev.rotate_left(32) ^ file.st_ino
}

fn place(number: i32) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(number).ok()?;
    Some((NOTED.get(at / 64)?, 1 << (at % 64)))
}

/// From now on, it is the library's.
pub(crate) fn note(number: i32, file: &Stat) {
    if let Some((word, bit)) = place(number) {
        FILES[number as usize].store(identity(file), Ordering::Relaxed);
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// From now on, it is anybody's.
pub(crate) fn forget(number: i32) {
    if let Some((word, bit)) = place(number) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// In the child of a fork: what it inherits, the program may close.
pub(crate) fn forget_all() {
    NOTED.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

fn is_noted(number: i32) -> bool {
    place(number).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Whether it is the library's still. Where the kernel may not be asked any more, the number decides.
pub(crate) fn is_ours(number: i32) -> bool {
    if !is_noted(number) || withdrawn::is_withdrawn() {
        return is_noted(number);
    }
    // SAFETY: whatever the number leads to is only asked what it is.
    let file = fstat(unsafe { BorrowedFd::borrow_raw(number) });
    file.is_ok_and(|file| identity(&file) == FILES[number as usize].load(Ordering::Relaxed))
}

/// The first that is the library's in a range of numbers.
pub(crate) fn first_in(from: u32, to: u32) -> Option<u32> {
    (from..=to.min(COUNT as u32)).find(|number| is_ours(*number as i32))
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

    #[test]
    fn noted_ones_are_found_until_they_are_forgotten_or_lead_elsewhere() {
        let open = |path: &str| std::fs::File::open(path).unwrap();
        let (ours, other) = (open("/dev/null"), open("/dev/zero"));
        let put = |file: &std::fs::File, number: i32| {
            // SAFETY: numbers that nobody else has in this test.
            assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(file), number) }, number);
        };
        let known = fstat(&ours).unwrap();
        assert_eq!(first_in(0, HIGH as u32 - 1), None);
        for number in [700, 701, 703] {
            put(&ours, number);
            note(number, &known);
        }
        note(-1, &known);
        note(COUNT as i32, &known);
        assert_eq!([-1, 700, 702, COUNT as i32].map(is_ours), [false, true, false, false]);
        assert_eq!((first_in(0, 800), first_in(702, 5000), first_in(704, 800)), (Some(700), Some(703), None));
        forget(700);
        put(&other, 701);
        assert_eq!((first_in(0, 800), is_ours(701)), (Some(703), false));
        forget_all();
        assert_eq!(first_in(0, HIGH as u32 - 1), None);
        for number in [700, 701, 703] {
            // SAFETY: opened above.
            assert_eq!(unsafe { libc::close(number) }, 0);
        }
    }
}
