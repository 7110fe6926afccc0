//! Observers: `hf_observer`.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use hugefork::Observer;

use crate::boundary::run;
use crate::failure::Failure;
use crate::handle;
use crate::kinds::hf_region;
use crate::versioned::{self, Versioned};

#[derive(Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types)]
pub(crate) struct hf_observer {
    size: usize,
    user: *mut c_void,
    invalidate_start: Option<unsafe extern "C" fn(offset: usize, len: usize, user: *mut c_void)>,
    invalidate_end: Option<unsafe extern "C" fn(offset: usize, len: usize, user: *mut c_void)>,
    release: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

// SAFETY: `repr(C)`, begins with its size; fields of the size of a pointer, which may all be null.
unsafe impl Versioned for hf_observer {
    const TYPE: &'static str = "hf_observer";
    const FIRST: usize = 40;
}

/// An observer that a region has, or is offered.
struct Told {
    by: hf_observer,
}

// SAFETY: the header says that its functions are called on any thread, with its pointer.
unsafe impl Send for Told {}
// SAFETY: as above.
unsafe impl Sync for Told {}

impl Observer for Told {
    fn invalidate_start(&self, range: Range<usize>) {
        if let Some(tell) = self.by.invalidate_start {
            // SAFETY: the promise of who handed it in, which holds until it is released.
            unsafe { tell(range.start, range.len(), self.by.user) };
        }
    }

    fn invalidate_end(&self, range: Range<usize>) {
        if let Some(tell) = self.by.invalidate_end {
            // SAFETY: as above.
            unsafe { tell(range.start, range.len(), self.by.user) };
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(release) = self.by.release {
            // SAFETY: as above; nobody else has the observer any more.
            unsafe { release(self.by.user) };
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_observe(region: *mut hf_region, observer: *const hf_observer) -> c_int {
    run(|| {
        // SAFETY: the caller's promise.
        let region = unsafe { handle::get(region)? };
        if observer.is_null() {
            return Err(Failure::null("observer"));
        }
        // SAFETY: the caller's promise.
        let told = Arc::new(Told { by: unsafe { versioned::read(observer)? } });
        let result = region.observe(told.clone());
        // What the region did not take stays the program's, and is not released.
        if let Ok(mut refused) = Arc::try_unwrap(told) {
            refused.by.release = None;
        }
        Ok(result?)
    })
}
