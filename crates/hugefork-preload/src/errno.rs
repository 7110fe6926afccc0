//! What the program's thread finds in `errno` after the library has been at work in it.

/// Does `work`, and leaves `errno` as it was.
pub(crate) fn quietly<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let done = work();
    // SAFETY: as above.
    unsafe { *errno = before };
    done
}
