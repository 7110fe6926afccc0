//! The numbers of descriptors that are the library's, in a program that does not know of them. The functions that
//! close descriptors ask here: the engine works on its file by number, and another file must not take its place.

use std::sync::atomic::{AtomicU64, Ordering};

/// The first number that is noted, and so many after it. The library's descriptors lie there.
const FIRST: i32 = 900;
const COUNT: usize = 1024;

static NOTED: [AtomicU64; COUNT / 64] = [const { AtomicU64::new(0) }; COUNT / 64];

fn place(number: i32) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(number.checked_sub(FIRST)?).ok()?;
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
    let (first, end) = (FIRST as u32, FIRST as u32 + COUNT as u32);
    (from.max(first)..=to.min(end)).find(|number| is_noted(*number as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_ones_are_found_until_they_are_forgotten() {
        assert_eq!(first_in(0, u32::MAX), None);
        for number in [899, 1000, 1001, 1923, 1924] {
            note(number);
        }
        assert_eq!([899, 1000, 1923, 1924].map(is_noted), [false, true, true, false]);
        assert_eq!((first_in(0, u32::MAX), first_in(1001, 5000), first_in(0, 999)), (Some(1000), Some(1001), None));
        forget(1001);
        assert_eq!(first_in(1001, u32::MAX), Some(1923));
        forget_all();
        assert_eq!(first_in(0, u32::MAX), None);
    }
}
