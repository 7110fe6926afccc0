//! Handles: the objects that C holds by address.
//!
//! Each handle is recorded as open (live.rs) and carries a mark of its kind. So a null pointer, a
//! handle of another kind, a closed handle and a pointer that never was a handle give errors and
//! not crashes.
//!
//! ```text
//!   C ─▶ Handle: mark, held ─▶ the value
//! ```
//! Closing a handle frees the value in it. The handle's own 16 bytes are freed later, so that the
//! next handle gets another address.

use std::ptr;

use crate::boundary::run;
use crate::failure::Failure;
use crate::live::{self, ClosedHandles, Known};

/// A value that a handle may hold. Any thread may use a handle.
pub(crate) trait Held: Send + Sync {
    /// Eight letters that identify the kind.
    const MARK: u64;
    /// The type's name in C.
    const TYPE: &'static str;
}

/// The object behind a pointer that C holds. All kinds have the same layout.
#[repr(C)]
pub(crate) struct Handle<T> {
    mark: u64,
    held: *mut T,
}

/// A handle whose value has been freed.
type Closed = Handle<()>;

static CLOSED: ClosedHandles<Closed> = ClosedHandles::new();

/// Creates a handle at `out`.
///
/// # Safety
/// `out` is null or writable.
pub(crate) unsafe fn give<T: Held>(
    out: *mut *mut Handle<T>,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller vouches for the arguments.
    let out = unsafe { out.as_mut() }.ok_or_else(|| Failure::null("out"))?;
    *out = ptr::null_mut();
    let held = Box::into_raw(Box::new(make()?));
    let handle = Box::into_raw(Box::new(Handle { mark: T::MARK, held }));
    live::enter(handle.addr());
    *out = handle;
    Ok(())
}

/// The value in a handle.
///
/// # Safety
/// No other thread closes `handle` meanwhile, if it is a handle.
pub(crate) unsafe fn get<'a, T: Held>(handle: *const Handle<T>) -> Result<&'a T, Failure> {
    // SAFETY: the caller vouches for the arguments.
    unsafe { check(handle)? };
    // SAFETY: it is open and of this kind, and the caller does not close it while the reference is used.
    Ok(unsafe { &*(*handle).held })
}

/// Closes a handle; does nothing for a null pointer.
///
/// # Safety
/// As for [`get`]; and no other thread uses the handle any more.
pub(crate) unsafe fn close<T: Held>(handle: *mut Handle<T>) {
    run(|| {
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: the caller vouches for the arguments.
        unsafe { check(handle)? };
        if !live::close(handle.addr()) {
            return bad::<T>("the handle is closed");
        }
        // SAFETY: `give` created it, and this thread alone has closed it.
        drop(unsafe { Box::from_raw((*handle).held) });
        let earlier = CLOSED.swap(handle.cast());
        if !earlier.is_null() {
            live::forget(earlier.addr());
            // SAFETY: `give` created it as a box of this layout, and no thread can find it any more.
            drop(unsafe { Box::from_raw(earlier) });
        }
        Ok(())
    });
}

/// Stores the result of a call at `out`, unless that is null; after a failure, the bytes done before.
///
/// # Safety
/// `out` is null or writable.
pub(crate) unsafe fn store(out: *mut usize, call: impl FnOnce() -> Result<usize, Failure>) -> Result<(), Failure> {
    let mut nowhere = 0;
    // SAFETY: the caller vouches for the arguments.
    let out = unsafe { out.as_mut() }.unwrap_or(&mut nowhere);
    *out = 0;
    let result = call();
    *out = result.as_ref().map_or_else(|failure| failure.done, |count| *count);
    result.map(|_| ())
}

/// # Safety
/// As for [`get`].
unsafe fn check<T: Held>(handle: *const Handle<T>) -> Result<(), Failure> {
    if handle.is_null() {
        return bad::<T>("the handle is a null pointer");
    }
    match live::look_up(handle.addr()) {
        Known::Open => {}
        Known::Closed => return bad::<T>("the handle is closed"),
        Known::Never => return bad::<T>("this is no handle, or one that was closed long ago"),
    }
    // SAFETY: it is an open handle of some kind, and all kinds have their mark in the same place.
    if unsafe { (*handle).mark } == T::MARK { Ok(()) } else { bad::<T>("the handle is of another type") }
}

fn bad<T: Held>(what: &str) -> Result<(), Failure> {
    Err(Failure::bad_handle(format_args!("{what}: give one of type {} that is open", T::TYPE)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::last::last_text;

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
    fn only_an_open_handle_of_the_kind_is_accepted() {
        let mut handle = ptr::null_mut();
        // SAFETY: the arguments fulfil the contracts of the functions.
        unsafe {
            give(&raw mut handle, || Ok(One(7))).unwrap();
            assert_eq!(get(handle).unwrap().0, 7);
            assert!(get(handle.cast::<Handle<Other>>()).is_err());
            assert!(get(handle.cast::<u8>().wrapping_add(1).cast::<Handle<One>>()).is_err());
            assert!(get(ptr::null::<Handle<One>>()).is_err());
            close(handle.cast::<Handle<Other>>());
            assert_eq!(last_text(), "the handle is of another type: give one of type other that is open");
            close(handle);
            for _ in 0..2 {
                assert!(get(handle).is_err());
                close(handle);
                assert_eq!(last_text(), "the handle is closed: give one of type one that is open");
                close(handle.cast::<Handle<Other>>());
                assert_eq!(last_text(), "the handle is closed: give one of type other that is open");
            }
            close(ptr::null_mut::<Handle<One>>());
            assert!(give(ptr::null_mut(), || Ok(Other)).is_err());
        }
    }

    #[test]
    fn a_failed_creation_stores_a_null_pointer() {
        let mut handle = ptr::dangling_mut::<Handle<One>>();
        // SAFETY: the pointer is writable.
        unsafe { give(&raw mut handle, || Err(Failure::null("x"))).unwrap_err() };
        assert!(handle.is_null());
    }
}
