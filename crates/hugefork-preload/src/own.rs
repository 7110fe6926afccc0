//! The numbers of descriptors that are the library's, in a program that does not know of them, and what they led to.
//! The functions that close descriptors ask here: the engine works on its file by number, and another file must not
//! take its place. If one has, since the program has closed the library's by instructions of its own, that is the
//! program's.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Stat, fstat};

use crate::seal;

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
    if !is_noted(number) || seal::is_sealed() {
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
    fn noted_ones_are_found_until_they_are_forgotten_or_lead_elsewhere() {
        let open = |path: &str| std::fs::File::open(path).unwrap();
        let (ours, other) = (open("/dev/null"), open("/dev/zero"));
        let put = |file: &std::fs::File, number: i32| {
            // SAFETY: numbers that nobody else has in this test.
            assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(file), number) }, number);
        };
        let known = fstat(&ours).unwrap();
        assert_eq!(first_in(0, u32::MAX), None);
        for number in [700, 701, 703] {
            put(&ours, number);
            note(number, &known);
        }
        note(-1, &known);
        note(COUNT as i32, &known);
        assert_eq!([-1, 700, 702, COUNT as i32].map(is_ours), [false, true, false, false]);
        assert_eq!((first_in(0, u32::MAX), first_in(702, 5000), first_in(704, 999)), (Some(700), Some(703), None));
        forget(700);
        put(&other, 701);
        assert_eq!((first_in(0, u32::MAX), is_ours(701)), (Some(703), false));
        forget_all();
        assert_eq!(first_in(0, u32::MAX), None);
        for number in [700, 701, 703] {
            // SAFETY: opened above.
            assert_eq!(unsafe { libc::close(number) }, 0);
        }
    }
}
