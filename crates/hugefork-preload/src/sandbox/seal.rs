//! Whether the library makes no system call of its own any more, since one that the program filters may end it: see
//! `sandbox`. Whoever opens something asks here first, and goes on as where the kernel refuses.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

static IS_SEALED: AtomicBool = AtomicBool::new(false);

/// Whether the library makes no calls of its own any more.
pub(crate) fn is_sealed() -> bool {
    IS_SEALED.load(Ordering::Acquire)
}

/// Whether the library may make calls of its own.
///
/// # Errors
/// It may not: as where the kernel refuses.
pub(crate) fn allows_calls() -> Result<(), Errno> {
    if is_sealed() { Err(Errno::PERM) } else { Ok(()) }
}

/// From now on, it is so.
pub(crate) fn set(is_sealed: bool) {
    IS_SEALED.store(is_sealed, Ordering::Release);
}
