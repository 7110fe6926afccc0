//! Functions of libc's own, which the library calls where it stands in for them.

use std::ffi::CStr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function of libc's, by its address; 0 before it was looked for.
pub(crate) struct Libcs {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Libcs {
    pub(crate) const fn new(name: &'static CStr) -> Libcs {
        Libcs { name, address: AtomicUsize::new(0) }
    }

    /// None if this libc has no such function.
    pub(crate) fn look(&self) -> Option<NonZeroUsize> {
        if self.address.load(Ordering::Relaxed) == 0 {
            // SAFETY: a name that ends.
            let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
            self.address.store(found, Ordering::Relaxed);
        }
        NonZeroUsize::new(self.address.load(Ordering::Relaxed))
    }

    pub(crate) fn find(&self) -> usize {
        self.look().expect("libc has all that it had when the program was linked").get()
    }
}
