//! Structs that begin with their size, so that new fields can be added at the end.
//!
//! A struct from an older program lacks fields; they count as zero, the default. A struct from a
//! newer program may have fields that the library does not know. If they are not zero, the program
//! requests something that the library cannot do, and the call fails. A struct that the library
//! fills in is cut to the program's size, and fields that only the program knows are zero.

use std::{ptr, slice};

use crate::failure::Failure;

/// More than the size of any such struct: a larger value means that `size` was never set.
const MAX_SIZE: usize = 4096;

/// A struct that begins with its size.
///
/// # Safety
/// The type is `#[repr(C)]`, begins with a `usize`, has no padding, and may be all zero bytes.
pub(crate) unsafe trait Versioned: Copy {
    /// The type's name in C.
    const TYPE: &'static str;
    /// The type's size in the first release.
    const FIRST_SIZE: usize;
}

/// The size that the program has set in the struct at `at`.
///
/// # Safety
/// `at` is null or points to a struct that begins with its size.
unsafe fn size<T: Versioned>(at: *const T) -> Result<usize, Failure> {
    const { assert!(T::FIRST_SIZE <= size_of::<T>() && size_of::<T>() <= MAX_SIZE) };
    if at.is_null() {
        return Err(Failure::null(T::TYPE));
    }
    // SAFETY: it begins with its size.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    if !(T::FIRST_SIZE..=MAX_SIZE).contains(&size) {
        let text = format_args!(
            "a {} whose `size` is {size}: set it to sizeof({}), {} bytes",
            T::TYPE,
            T::TYPE,
            size_of::<T>()
        );
        return Err(Failure::bad_struct(text));
    }
    Ok(size)
}

/// Reads a struct of the program; all zeros for a null pointer.
///
/// # Safety
/// `from` is null or points to as many bytes as its first field says.
pub(crate) unsafe fn read<T: Versioned>(from: *const T) -> Result<T, Failure> {
    // SAFETY: the type may be all zero bytes.
    let mut value: T = unsafe { std::mem::zeroed() };
    if from.is_null() {
        return Ok(value);
    }
    // SAFETY: the caller vouches for the arguments.
    let size = unsafe { size(from)? };
    // SAFETY: the caller vouches for this many bytes.
    let bytes = unsafe { slice::from_raw_parts(from.cast::<u8>(), size) };
    let (known, unknown) = bytes.split_at(size.min(size_of::<T>()));
    if unknown.iter().any(|byte| *byte != 0) {
        let text = format_args!(
            "this {} asks for something that hugefork {} does not know: leave its new fields zero, or use the library that \
             belongs to the header",
            T::TYPE,
            env!("CARGO_PKG_VERSION")
        );
        return Err(Failure::bad_struct(text));
    }
    // SAFETY: the struct has no padding, so any bytes of it, or of its older version, are a valid value.
    unsafe { ptr::copy_nonoverlapping(known.as_ptr(), (&raw mut value).cast(), known.len()) };
    Ok(value)
}

/// Fills in a struct of the program; the size in it is unchanged.
///
/// # Safety
/// `to` is null, or writable for as many bytes as its first field says.
pub(crate) unsafe fn write<T: Versioned>(to: *mut T, value: &T) -> Result<(), Failure> {
    // SAFETY: the caller vouches for the arguments.
    let size = unsafe { size(to)? };
    let known = size.min(size_of::<T>());
    let head = size_of::<usize>();
    // SAFETY: `to` has `size` bytes, and the first of them are the size field; `value` has `known` bytes.
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

    // SAFETY: `repr(C)`; all fields are numbers of one size.
    unsafe impl Versioned for Now {
        const TYPE: &'static str = "now";
        const FIRST_SIZE: usize = 16;
    }

    fn taken(bytes: &[usize]) -> Result<Now, Failure> {
        // SAFETY: the test passes as many bytes as the size field says.
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
            // SAFETY: the test passes as many bytes as the size field says.
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
