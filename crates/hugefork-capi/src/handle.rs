//! Handles: boxes that C holds by address.
//!
//! Each begins with a mark of its kind, so that a null pointer, a handle of another kind and mostly a closed one are an
//! error and no crash. To use a closed handle is the program's mistake all the same, as it is with `free`.

use std::ptr;

use crate::boundary::run;
use crate::failure::Failure;

/// What a handle may hold. Handles are used from any thread.
pub(crate) trait Held: Send + Sync {
    /// Eight letters that no other kind has.
    const MARK: u64;
    /// The type's name in C.
    const TYPE: &'static str;
}

/// What a pointer that C holds points to.
#[repr(C)]
pub(crate) struct Handle<T> {
    mark: u64,
    held: T,
}

const CLOSED: u64 = u64::from_ne_bytes(*b"hfclosed");

/// Gives out a handle at `out`.
///
/// # Safety
/// `out` is null or can be written to.
pub(crate) unsafe fn give<T: Held>(
    out: *mut *mut Handle<T>,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let out = unsafe { out.as_mut() }.ok_or_else(|| Failure::null("out"))?;
    *out = ptr::null_mut();
    *out = Box::into_raw(Box::new(Handle { mark: T::MARK, held: make()? }));
    Ok(())
}

/// What is in a handle.
///
/// # Safety
/// `handle` is null, or points to a handle of any kind that nobody closes meanwhile.
pub(crate) unsafe fn get<'a, T: Held>(handle: *const Handle<T>) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { check(handle)? };
    // SAFETY: the mark says that it is of this kind, and it stays for as long as it is used.
    Ok(unsafe { &(*handle).held })
}

/// Closes a handle; a null pointer is none.
///
/// # Safety
/// As [`get`]; and nobody uses the handle any more.
pub(crate) unsafe fn close<T: Held>(handle: *mut Handle<T>) {
    run(|| {
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { check(handle)? };
        // SAFETY: the mark says that it is of this kind. The mark is memory that goes away, so nothing less than a
        // volatile write would be made.
        unsafe { ptr::write_volatile(&raw mut (*handle).mark, CLOSED) };
        // SAFETY: it came from `give`, and the mark has shown that it was not closed before.
        drop(unsafe { Box::from_raw(handle) });
        Ok(())
    });
}

/// Tells the result of a call at `out`, if the program wants it; 0 if the call fails.
///
/// # Safety
/// `out` is null or can be written to.
pub(crate) unsafe fn tell(out: *mut usize, call: impl FnOnce() -> Result<usize, Failure>) -> Result<(), Failure> {
    let result = call();
    // SAFETY: the caller's promise.
    if let Some(out) = unsafe { out.as_mut() } {
        *out = *result.as_ref().unwrap_or(&0);
    }
    result.map(|_| ())
}

/// # Safety
/// As [`get`].
unsafe fn check<T: Held>(handle: *const Handle<T>) -> Result<(), Failure> {
    let bad = |what: &str| Err(Failure::bad_handle(format!("{what}: give one of type {} that is open", T::TYPE)));
    if handle.is_null() {
        return bad("the handle is a null pointer");
    }
    if !handle.is_aligned() {
        return bad("this is no handle");
    }
    // SAFETY: handles of all kinds begin with a mark, so as many bytes can be read.
    match unsafe { ptr::read_volatile(handle.cast::<u64>()) } {
        mark if mark == T::MARK => Ok(()),
        CLOSED => bad("the handle is closed"),
        _ => bad("the handle is of another type"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::last_text;

    struct One(#[allow(dead_code)] u8);
    struct Other;

    impl Held for One {
        const MARK: u64 = 1;
        const TYPE: &'static str = "one";
    }

    impl Held for Other {
        const MARK: u64 = 2;
        const TYPE: &'static str = "other";
    }

    #[test]
    fn only_an_open_handle_of_the_kind_is_one() {
        let mut handle = ptr::null_mut();
        // SAFETY: as the functions ask for; what was closed is not looked at.
        unsafe {
            give(&raw mut handle, || Ok(One(7))).unwrap();
            assert_eq!(get(handle).unwrap().0, 7);
            assert!(get(handle.cast::<Handle<Other>>()).is_err());
            assert!(get(handle.cast::<u8>().wrapping_add(1).cast::<Handle<One>>()).is_err());
            assert!(get(ptr::null::<Handle<One>>()).is_err());
            close(handle.cast::<Handle<Other>>());
            assert_eq!(last_text(), "the handle is of another type: give one of type other that is open");
            close(handle);
            close(ptr::null_mut::<Handle<One>>());
            assert!(give(ptr::null_mut(), || Ok(Other)).is_err());
        }
    }

    #[test]
    fn what_failed_gives_a_null_pointer() {
        let mut handle = ptr::dangling_mut::<Handle<One>>();
        // SAFETY: it can be written to.
        unsafe { give(&raw mut handle, || Err(Failure::null("x"))).unwrap_err() };
        assert!(handle.is_null());
    }
}
