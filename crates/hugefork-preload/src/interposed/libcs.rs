//! Pointers to libc's own functions, which the interposed functions call.

use std::ffi::CStr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The address of a libc function; 0 before it was resolved.
pub(crate) struct Libcs {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Libcs {
    pub(crate) const fn new(name: &'static CStr) -> Libcs {
        Libcs { name, address: AtomicUsize::new(0) }
    }

    /// The function; `None` if this libc lacks it.
    pub(crate) fn resolve(&self) -> Option<NonZeroUsize> {
        if self.address.load(Ordering::Relaxed) == 0 {
            // SAFETY: a zero-terminated name.
            let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
            self.address.store(found, Ordering::Relaxed);
        }
        NonZeroUsize::new(self.address.load(Ordering::Relaxed))
    }

    pub(crate) fn find(&self) -> usize {
        self.resolve().expect("libc has all that it had when the program was linked").get()
    }
}
