//! Handles: what C holds by address.
//!
//! Each is entered where open handles are known (live.rs) and has a mark of its kind. So a null pointer, a handle of
//! another kind, one that is closed and a pointer that never was one are errors and no crash.
//!
//! ```text
//!   C ─▶ Handle: mark, held ─▶ the value
//! ```
//! What is held goes when a handle is closed. The handle's own 16 bytes stay for a while, so that the next handle is
//! not at the same address.

use std::ptr;

use crate::boundary::run;
use crate::failure::Failure;
use crate::live::{self, KeptBack, Known};

/// What a handle may hold. Handles are used from any thread.
pub(crate) trait Held: Send + Sync {
    /// Eight letters that no other kind has.
    const MARK: u64;
    /// The type's name in C.
    const TYPE: &'static str;
}

/// What a pointer that C holds points to. Its layout is that of all kinds.
#[repr(C)]
pub(crate) struct Handle<T> {
    mark: u64,
    held: *mut T,
}

/// A handle whose value is gone.
type Closed = Handle<()>;

static CLOSED: KeptBack<Closed> = KeptBack::new();

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
    let held = Box::into_raw(Box::new(make()?));
    let handle = Box::into_raw(Box::new(Handle { mark: T::MARK, held }));
    live::enter(handle.addr());
    *out = handle;
    Ok(())
}

/// What is in a handle.
///
/// # Safety
/// Nobody closes `handle` meanwhile, if it is one.
pub(crate) unsafe fn get<'a, T: Held>(handle: *const Handle<T>) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { check(handle)? };
    // SAFETY: it is open and of this kind, and stays for as long as it is used.
    Ok(unsafe { &*(*handle).held })
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
        if !live::close(handle.addr()) {
            return bad::<T>("the handle is closed");
        }
        // SAFETY: it came from `give`, and nobody else has closed it.
        drop(unsafe { Box::from_raw((*handle).held) });
        let earlier = CLOSED.swap(handle.cast());
        if !earlier.is_null() {
            live::forget(earlier.addr());
            // SAFETY: it came from `give`, as a box of this layout, and nobody can find it any more.
            drop(unsafe { Box::from_raw(earlier) });
        }
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
    if handle.is_null() {
        return bad::<T>("the handle is a null pointer");
    }
    match live::look_up(handle.addr()) {
        Known::Open => {}
        Known::Closed => return bad::<T>("the handle is closed"),
        Known::Never => return bad::<T>("this is no handle, or one that was closed long ago"),
    }
    // SAFETY: it is one of some kind, all of which have their mark in the same place.
    if unsafe { (*handle).mark } == T::MARK { Ok(()) } else { bad::<T>("the handle is of another type") }
}

fn bad<T: Held>(what: &str) -> Result<(), Failure> {
    Err(Failure::bad_handle(format!("{what}: give one of type {} that is open", T::TYPE)))
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
        // SAFETY: as the functions ask for.
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
    fn what_failed_gives_a_null_pointer() {
        let mut handle = ptr::dangling_mut::<Handle<One>>();
        // SAFETY: it can be written to.
        unsafe { give(&raw mut handle, || Err(Failure::null("x"))).unwrap_err() };
        assert!(handle.is_null());
    }
}
