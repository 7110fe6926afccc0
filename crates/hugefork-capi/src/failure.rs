//! Error codes, and the last error of a thread.
//!
//! The engine's codes are the negated numbers of its `ErrorCode`s. Errors that occur only in the C
//! binding have numbers from 2001 on.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ops::Range;

use hugefork::{BuildError, ErrorCode, ImportError, RegionError, ResetError, SizeError, SystemError, TransferError};

use crate::words::in_words_of_c;

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

/// The reason why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    code: c_int,
    errno: c_int,
    text: String,
    /// Bytes that a call had done before.
    pub(crate) done: usize,
}

impl Failure {
    fn own(code: c_int, text: String) -> Failure {
        Failure { code, errno: errno_of(code), text, done: 0 }
    }

    pub(crate) fn bad_handle(text: String) -> Failure {
        Failure::own(HF_E_BAD_HANDLE, text)
    }

    pub(crate) fn null(parameter: &str) -> Failure {
        Failure::own(HF_E_NULL, format!("`{parameter}` is a null pointer: give a valid address"))
    }

    pub(crate) fn bad_struct(text: String) -> Failure {
        Failure::own(HF_E_BAD_STRUCT, text)
    }

    pub(crate) fn bad_value(text: impl Into<String>) -> Failure {
        Failure::own(HF_E_BAD_VALUE, text.into())
    }

    /// Like [`Failure::bad_value`], for a number that cannot be a descriptor.
    pub(crate) fn bad_descriptor(fd: c_int) -> Failure {
        let text = format!("{fd} is no descriptor: give one that is open");
        Failure { errno: libc::EBADF, ..Failure::bad_value(text) }
    }

    pub(crate) fn panic(words: &str) -> Failure {
        let text =
            format!("hugefork panicked: {words}; this is a defect of hugefork; report it with the output on stderr");
        Failure::own(HF_E_PANIC, text)
    }

    pub(crate) fn heap_full(size: usize, len: usize) -> Failure {
        let text = format!("a heap of {len} bytes has no room for {size} more: free some, or make a longer one");
        Failure::own(-ErrorCode::OutOfMemory.number(), text)
    }

    /// An error of a system call that the binding itself made.
    pub(crate) fn system(call: &str, error: &std::io::Error) -> Failure {
        let (code, errno) = (-ErrorCode::System.number(), error.raw_os_error().unwrap_or(libc::EIO));
        Failure { code, errno, text: format!("{call}: {error}"), done: 0 }
    }

    /// The engine's error for a range outside memory, for cases in which the engine is not called.
    pub(crate) fn out_of_range(range: &Range<usize>, len: usize) -> Failure {
        let text = format!("range {}..{} is not inside 0..{len}: take one that is", range.start, range.end);
        Failure::of_engine(ErrorCode::OutOfRange, None, text)
    }

    fn of_engine(code: ErrorCode, refused: Option<&SystemError>, text: String) -> Failure {
        let errno = refused.map_or(code.errno(), |refused| refused.raw_os_error());
        Failure { code: -code.number(), errno, text: in_words_of_c(&text), done: 0 }
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
                Failure::of_engine($error.code(), $refused, $error.to_string()).after($done)
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

/// The last error of a thread.
struct Last {
    text: Cow<'static, CStr>,
    errno: c_int,
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { text: Cow::Borrowed(c""), errno: 0 }) };
}

/// Makes `failure` the thread's last error and returns its code.
pub(crate) fn keep(failure: Failure) -> c_int {
    let Failure { code, errno, text, .. } = failure;
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    // A thread that is ending no longer has a last error.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Last { text: Cow::Owned(text), errno });
    code
}

#[unsafe(no_mangle)]
extern "C" fn hf_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn hf_last_errno() -> c_int {
    LAST.try_with(|last| last.borrow().errno).unwrap_or(0)
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
pub(crate) fn last_text() -> String {
    LAST.with(|last| last.borrow().text.to_string_lossy().into_owned())
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

    #[test]
    fn a_text_with_a_zero_byte_is_not_cut() {
        keep(Failure::bad_value("a\0b".to_owned()));
        assert_eq!(last_text(), "a?b");
    }
}
