//! Structs that begin with their size, so that they can grow: new fields come at the end.
//!
//! What a program hands in may be older than the library, and then lacks fields, which are zero: the default. It may be
//! newer, and then has fields that the library does not know. If those are not zero, the program wants something that
//! the library cannot do, and that is an error. What the library fills in is cut to the program's size, or zero where
//! the program knows more.

use std::{ptr, slice};

use crate::failure::Failure;

/// More than any such struct has: a size above it was never set.
const MOST: usize = 4096;

/// A struct that begins with its size.
///
/// # Safety
/// It is `#[repr(C)]`, begins with a `usize`, has no padding, and zero bytes are a value of it.
pub(crate) unsafe trait Versioned: Copy {
    /// Its name in C.
    const TYPE: &'static str;
    /// The size that it had in the first release.
    const FIRST: usize;
}

/// The program's size of the struct at `at`.
///
/// # Safety
/// `at` is null or points to a struct that begins with its size.
unsafe fn size<T: Versioned>(at: *const T) -> Result<usize, Failure> {
    const { assert!(T::FIRST <= size_of::<T>() && size_of::<T>() <= MOST) };
    if at.is_null() {
        return Err(Failure::null(T::TYPE));
    }
    // SAFETY: it begins with its size.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    if !(T::FIRST..=MOST).contains(&size) {
        let text =
            format!("a {} whose `size` is {size}: set it to sizeof({}), {} bytes", T::TYPE, T::TYPE, size_of::<T>());
        return Err(Failure::bad_struct(text));
    }
    Ok(size)
}

/// What a program hands in; zeros for a null pointer.
///
/// # Safety
/// `from` is null or points to as many bytes as its first field says.
pub(crate) unsafe fn read<T: Versioned>(from: *const T) -> Result<T, Failure> {
    // SAFETY: zero bytes are a value of it.
    let mut value: T = unsafe { std::mem::zeroed() };
    if from.is_null() {
        return Ok(value);
    }
    // SAFETY: the caller's promise.
    let size = unsafe { size(from)? };
    // SAFETY: it has so many bytes.
    let bytes = unsafe { slice::from_raw_parts(from.cast::<u8>(), size) };
    let (known, unknown) = bytes.split_at(size.min(size_of::<T>()));
    if unknown.iter().any(|byte| *byte != 0) {
        let text = format!(
            "this {} asks for something that hugefork {} does not know: leave its new fields zero, or use the library that \
             belongs to the header",
            T::TYPE,
            env!("CARGO_PKG_VERSION")
        );
        return Err(Failure::bad_struct(text));
    }
    // SAFETY: any bytes of an older or of this struct are a value of it, since it has no padding.
    unsafe { ptr::copy_nonoverlapping(known.as_ptr(), (&raw mut value).cast(), known.len()) };
    Ok(value)
}

/// Fills in what a program has asked for; its own size stays.
///
/// # Safety
/// `to` is null or points to as many bytes as its first field says, which can be written to.
pub(crate) unsafe fn write<T: Versioned>(to: *mut T, value: &T) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let size = unsafe { size(to)? };
    let known = size.min(size_of::<T>());
    let head = size_of::<usize>();
    // SAFETY: it has `size` bytes, of which the first are its size, and the value has `known`.
    unsafe {
        ptr::copy_nonoverlapping((&raw const *value).cast::<u8>().add(head), to.cast::<u8>().add(head), known - head);
        to.cast::<u8>().add(known).write_bytes(0, size - known);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Now {
        size: usize,
        first: usize,
        second: usize,
    }

    // SAFETY: `repr(C)`, numbers of one size.
    unsafe impl Versioned for Now {
        const TYPE: &'static str = "now";
        const FIRST: usize = 16;
    }

    fn taken(bytes: &[usize]) -> Result<Now, Failure> {
        // SAFETY: the test gives as many bytes as they say.
        unsafe { read(bytes.as_ptr().cast()) }
    }

    #[test]
    fn older_and_newer_structs_are_read() {
        assert_eq!(taken(&[16, 5]).unwrap(), Now { size: 16, first: 5, second: 0 });
        assert_eq!(taken(&[24, 5, 6]).unwrap(), Now { size: 24, first: 5, second: 6 });
        assert_eq!(taken(&[40, 5, 6, 0, 0]).unwrap(), Now { size: 40, first: 5, second: 6 });
        assert!(taken(&[40, 5, 6, 0, 1]).is_err());
        for never_set in [0, 8, 15, 4097, usize::MAX] {
            assert!(taken(&[never_set, 0, 0]).is_err(), "{never_set}");
        }
        // SAFETY: null is allowed.
        assert_eq!(unsafe { read::<Now>(ptr::null()) }.unwrap(), Now { size: 0, first: 0, second: 0 });
    }

    #[test]
    fn older_and_newer_structs_are_filled_in() {
        let value = Now { size: 24, first: 5, second: 6 };
        let filled = |mut bytes: [usize; 5]| {
            // SAFETY: the test gives as many bytes as they say.
            unsafe { write(bytes.as_mut_ptr().cast(), &value) }.unwrap();
            bytes
        };
        assert_eq!(filled([16, 1, 2, 3, 4]), [16, 5, 2, 3, 4]);
        assert_eq!(filled([24, 1, 2, 3, 4]), [24, 5, 6, 3, 4]);
        assert_eq!(filled([40, 1, 2, 3, 4]), [40, 5, 6, 0, 0]);
        // SAFETY: null is allowed.
        assert!(unsafe { write(ptr::null_mut(), &value) }.is_err());
    }
}
