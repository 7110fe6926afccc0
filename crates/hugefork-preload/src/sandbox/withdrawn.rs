//! Whether the library has withdrawn: it makes no system call of its own any more but `mmap`, since one that the
//! program filters may end it (see `sandbox`). Whoever opens something asks here first, and goes on as where the kernel
//! refuses.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

static IS_WITHDRAWN: AtomicBool = AtomicBool::new(false);

/// Whether the library makes no calls of its own any more.
pub(crate) fn is_withdrawn() -> bool {
    IS_WITHDRAWN.load(Ordering::Acquire)
}

/// Whether the library may make calls of its own.
///
/// # Errors
/// It may not: as where the kernel refuses.
pub(crate) fn allows_calls() -> Result<(), Errno> {
    if is_withdrawn() { Err(Errno::PERM) } else { Ok(()) }
}

/// From now on, it is so.
pub(crate) fn set(is_withdrawn: bool) {
    IS_WITHDRAWN.store(is_withdrawn, Ordering::Release);
}
