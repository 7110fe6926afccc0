//! The boundary between C and Rust: errors become codes, and panics end here.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

use crate::failure::Failure;

/// Runs the body of a function that returns a code: 0, or the code of the error, which becomes the thread's last error.
pub(crate) fn run(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    number(|| body().map(|()| 0))
}

/// Runs the body of a function that returns another type than a code; returns `instead` after an error.
pub(crate) fn ask<T>(instead: T, body: impl FnOnce() -> Result<T, Failure>) -> T {
    caught(body).unwrap_or(instead)
}

/// Runs the body of a function that returns a number, or the code of its error.
pub(crate) fn number(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    caught(body).unwrap_or_else(|failure| failure.code)
}

/// The range as the Rust API takes it. An end beyond `usize::MAX` becomes `usize::MAX`, which lies outside any region.
pub(crate) fn range(offset: usize, len: usize) -> Range<usize> {
    offset..offset.saturating_add(len)
}

/// The `len` bytes at `to` as a slice, to be filled from `offset` on with bytes of an object of `of` bytes.
///
/// # Safety
/// `to` is null or points to `len` bytes, which need not be initialised, and which no other code uses.
pub(crate) unsafe fn to_fill<'a>(
    to: *mut c_void,
    offset: usize,
    len: usize,
    of: usize,
) -> Result<&'a mut [u8], Failure> {
    if to.is_null() && len != 0 {
        return Err(Failure::null("to"));
    }
    let asked = range(offset, len);
    if asked.end > of {
        return Err(Failure::out_of_range(&asked, of));
    }
    let to = if len == 0 { ptr::dangling_mut() } else { to.cast::<u8>() };
    // SAFETY: the caller vouches for the bytes. `len` is at most the object's size, so a slice may have it.
    Ok(unsafe { slice::from_raw_parts_mut(to, len) })
}

fn caught<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // A panic may leave an operation half done, but the engine's types remain usable for other threads.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(Failure::panic(words(&*panic))))
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{HF_E_NULL, HF_E_PANIC};
    use crate::last::last_text;

    #[test]
    fn a_panic_is_an_error() {
        let number = String::from("7");
        assert_eq!(run(|| panic!("number {number}")), HF_E_PANIC);
        assert!(last_text().starts_with("hugefork panicked: number 7"), "{}", last_text());
        assert_eq!(ask(3, || panic!("plain")), 3);
        assert!(last_text().starts_with("hugefork panicked: plain"));
        assert_eq!(super::number(|| std::panic::panic_any(1)), HF_E_PANIC);
        assert!(last_text().starts_with("hugefork panicked: no words"));
    }

    #[test]
    fn an_error_returns_its_code_and_success_preserves_the_last_error() {
        assert_eq!(run(|| Err(Failure::null("to"))), HF_E_NULL);
        assert_eq!((run(|| Ok(())), ask(1, || Ok(2)), super::number(|| Ok(3))), (0, 2, 3));
        assert!(last_text().starts_with("`to` is a null pointer"));
    }
}
