//! The numbers of descriptors that are the library's, in a program that does not know of them. The functions that
//! close descriptors ask here: the engine works on its file by number, and another file must not take its place.

use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers from here on are not noted. The library's begin at 900, or are low where the program may not have so many.
const COUNT: usize = 2048;

static NOTED: [AtomicU64; COUNT / 64] = [const { AtomicU64::new(0) }; COUNT / 64];

fn place(number: i32) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(number).ok()?;
    Some((NOTED.get(at / 64)?, 1 << (at % 64)))
}

/// From now on, it is the library's.
pub(crate) fn note(number: i32) {
    if let Some((word, bit)) = place(number) {
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

/// Whether it is the library's.
pub(crate) fn is_noted(number: i32) -> bool {
    place(number).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// The first that is the library's in a range of numbers.
pub(crate) fn first_in(from: u32, to: u32) -> Option<u32> {
    (from..=to.min(COUNT as u32)).find(|number| is_noted(*number as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_ones_are_found_until_they_are_forgotten() {
        assert_eq!(first_in(0, u32::MAX), None);
        for number in [-1, 3, 1000, 1001, 2047, 2048] {
            note(number);
        }
        assert_eq!([-1, 3, 1000, 2047, 2048].map(is_noted), [false, true, true, true, false]);
        assert_eq!((first_in(0, u32::MAX), first_in(1001, 5000), first_in(4, 999)), (Some(3), Some(1001), None));
        forget(1001);
        assert_eq!(first_in(1001, u32::MAX), Some(2047));
        forget_all();
        assert_eq!(first_in(0, u32::MAX), None);
    }
}
