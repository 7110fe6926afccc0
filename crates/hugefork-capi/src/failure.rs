//! Error codes, and failures: the reasons why calls fail.
//!
//! The engine's codes are the negated numbers of its `ErrorCode`s. Errors that occur only in the C
//! binding have numbers from 2001 on.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::ops::Range;

use hugefork::{BuildError, ErrorCode, ImportError, RegionError, ResetError, SizeError, SystemError, TransferError};

use crate::last;

pub(crate) const HF_E_BAD_HANDLE: c_int = -2001;
pub(crate) const HF_E_NULL: c_int = -2002;
pub(crate) const HF_E_BAD_STRUCT: c_int = -2003;
pub(crate) const HF_E_BAD_VALUE: c_int = -2004;
pub(crate) const HF_E_PANIC: c_int = -2005;

/// The binding's own codes: number, name, `errno`.
const OWN: [(c_int, &CStr, c_int); 5] = [
    (HF_E_BAD_HANDLE, c"bad_handle", libc::EINVAL),
    (HF_E_NULL, c"null", libc::EINVAL),
    (HF_E_BAD_STRUCT, c"bad_struct", libc::EINVAL),
    (HF_E_BAD_VALUE, c"bad_value", libc::EINVAL),
    (HF_E_PANIC, c"panic", libc::EIO),
];

/// A call that failed. Its text becomes the thread's last error when the failure is made: each failure ends the call in
/// which it is made.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: c_int,
    /// Bytes that a call had done before.
    pub(crate) done: usize,
}

impl Failure {
    fn new(code: c_int, errno: c_int, text: fmt::Arguments<'_>) -> Failure {
        last::set(text, errno);
        Failure { code, done: 0 }
    }

    fn own(code: c_int, text: fmt::Arguments<'_>) -> Failure {
        Failure::new(code, errno_of(code), text)
    }

    pub(crate) fn bad_handle(text: fmt::Arguments<'_>) -> Failure {
        Failure::own(HF_E_BAD_HANDLE, text)
    }

    pub(crate) fn null(parameter: &str) -> Failure {
        Failure::own(HF_E_NULL, format_args!("`{parameter}` is a null pointer: give a valid address"))
    }

    pub(crate) fn bad_struct(text: fmt::Arguments<'_>) -> Failure {
        Failure::own(HF_E_BAD_STRUCT, text)
    }

    pub(crate) fn bad_value(text: fmt::Arguments<'_>) -> Failure {
        Failure::own(HF_E_BAD_VALUE, text)
    }

    /// Like [`Failure::bad_value`], for a number that cannot be a descriptor.
    pub(crate) fn bad_descriptor(fd: c_int) -> Failure {
        Failure::new(HF_E_BAD_VALUE, libc::EBADF, format_args!("{fd} is no descriptor: give one that is open"))
    }

    pub(crate) fn panic(words: &str) -> Failure {
        let text = format_args!(
            "hugefork panicked: {words}; this is a defect of hugefork; report it with the output on stderr"
        );
        Failure::own(HF_E_PANIC, text)
    }

    pub(crate) fn heap_full(size: usize, len: usize) -> Failure {
        let text = format_args!("a heap of {len} bytes has no room for {size} more: free some, or make a longer one");
        Failure::own(-ErrorCode::OutOfMemory.number(), text)
    }

    /// An error of a system call that the binding itself made.
    pub(crate) fn system(call: &str, error: &std::io::Error) -> Failure {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Failure::new(-ErrorCode::System.number(), errno, format_args!("{call}: {error}"))
    }

    /// The engine's error for a range outside memory, for cases in which the engine is not called.
    pub(crate) fn out_of_range(range: &Range<usize>, len: usize) -> Failure {
        let text = format_args!("range {}..{} is not inside 0..{len}: take one that is", range.start, range.end);
        Failure::own(-ErrorCode::OutOfRange.number(), text)
    }

    /// The same failure of a call that had done this many bytes before.
    pub(crate) fn after(self, done: usize) -> Failure {
        Failure { done, ..self }
    }
}

/// Conversions of the engine's errors, each with the kernel's error that it may contain, and the bytes done before.
macro_rules! of_engine {
    ($($of:ty: $error:ident => $refused:expr, $done:expr;)*) => {$(
        impl From<$of> for Failure {
            fn from($error: $of) -> Failure {
                let refused: Option<&SystemError> = $refused;
                let errno = refused.map_or($error.code().errno(), |refused| refused.raw_os_error());
                Failure::new(-$error.code().number(), errno, format_args!("{}", $error)).after($done)
            }
        }
    )*};
}

of_engine! {
    SizeError: error => None, 0;
    SystemError: error => Some(&error), 0;
    BuildError: error => if let BuildError::System(refused) = &error { Some(refused) } else { None }, 0;
    RegionError: error => refused(&error), 0;
    ImportError: error => if let ImportError::System(refused) = &error { Some(refused) } else { None }, 0;
    ResetError: error => refused(&error.reason), error.done;
    TransferError: error => refused(&error.reason), error.done;
}

fn refused(error: &RegionError) -> Option<&SystemError> {
    if let RegionError::System(refused) = error { Some(refused) } else { None }
}

/// An error if a parameter is a null pointer.
pub(crate) fn check_not_null<T>(at: *const T, parameter: &str) -> Result<(), Failure> {
    if at.is_null() { Err(Failure::null(parameter)) } else { Ok(()) }
}

#[unsafe(no_mangle)]
extern "C" fn hf_error_name(code: c_int) -> *const c_char {
    let own = || OWN.iter().find(|(number, ..)| *number == code).map(|(_, name, _)| *name);
    let name = if code == 0 { Some(c"ok") } else { name_of_engine(code).or_else(own) };
    name.unwrap_or(c"unknown").as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn hf_errno(code: c_int) -> c_int {
    errno_of(code)
}

fn engine_code(code: c_int) -> Option<usize> {
    ErrorCode::ALL.iter().position(|known| Some(known.number()) == code.checked_neg())
}

fn errno_of(code: c_int) -> c_int {
    let own = || OWN.iter().find(|(number, ..)| *number == code).map(|(.., errno)| *errno);
    match engine_code(code) {
        Some(nth) => ErrorCode::ALL[nth].errno(),
        None if code == 0 => 0,
        None => own().unwrap_or(libc::EIO),
    }
}

/// The engine's name with a terminating zero byte for C.
fn name_of_engine(code: c_int) -> Option<&'static CStr> {
    const LONGEST: usize = 32;
    const NAMES: [[u8; LONGEST]; ErrorCode::ALL.len()] = {
        let mut names = [[0; LONGEST]; ErrorCode::ALL.len()];
        let mut nth = 0;
        while nth < names.len() {
            let name = ErrorCode::ALL[nth].as_str().as_bytes();
            assert!(name.len() < LONGEST);
            let (to, _) = names[nth].split_at_mut(name.len());
            to.copy_from_slice(name);
            nth += 1;
        }
        names
    };
    static STATIC: [[u8; LONGEST]; ErrorCode::ALL.len()] = NAMES;
    CStr::from_bytes_until_nul(&STATIC[engine_code(code)?]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(code: c_int) -> &'static str {
        // SAFETY: names are static and end with a zero byte.
        unsafe { CStr::from_ptr(hf_error_name(code)) }.to_str().unwrap()
    }

    #[test]
    fn every_code_has_a_name_and_an_errno() {
        for code in ErrorCode::ALL {
            assert_eq!((name(-code.number()), hf_errno(-code.number())), (code.as_str(), code.errno()));
        }
        for (code, own, errno) in OWN {
            assert_eq!((name(code), hf_errno(code)), (own.to_str().unwrap(), errno));
        }
        assert_eq!((name(0), hf_errno(0)), ("ok", 0));
        for unknown in [1, 1105, -1, -9999, c_int::MIN, c_int::MAX] {
            assert_eq!((name(unknown), hf_errno(unknown)), ("unknown", libc::EIO));
        }
    }
}
