//! Observers: `hf_observer`.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use hugefork::Observer;

use crate::boundary::run;
use crate::failure::check_not_null;
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

// SAFETY: `repr(C)`, begins with its size; all fields have the size of a pointer, and all may be null.
unsafe impl Versioned for hf_observer {
    const TYPE: &'static str = "hf_observer";
    const FIRST_SIZE: usize = 40;
}

/// The observer of a region, or one that is offered to it.
struct CObserver {
    by: hf_observer,
}

// SAFETY: the header says that any thread may call its functions with its pointer.
unsafe impl Send for CObserver {}
// SAFETY: as above.
unsafe impl Sync for CObserver {}

impl Observer for CObserver {
    fn invalidate_start(&self, range: Range<usize>) {
        if let Some(callback) = self.by.invalidate_start {
            // SAFETY: the program vouches for the function and the pointer until the observer is released.
            unsafe { callback(range.start, range.len(), self.by.user) };
        }
    }

    fn invalidate_end(&self, range: Range<usize>) {
        if let Some(callback) = self.by.invalidate_end {
            // SAFETY: as above.
            unsafe { callback(range.start, range.len(), self.by.user) };
        }
    }
}

impl Drop for CObserver {
    fn drop(&mut self) {
        if let Some(release) = self.by.release {
            // SAFETY: as above; no other code has the observer any more.
            unsafe { release(self.by.user) };
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_observe(region: *mut hf_region, observer: *const hf_observer) -> c_int {
    run(|| {
        // SAFETY: the caller vouches for the arguments.
        let region = unsafe { handle::get(region)? };
        check_not_null(observer, "observer")?;
        // SAFETY: the caller vouches for the arguments.
        let offered = Arc::new(CObserver { by: unsafe { versioned::read(observer)? } });
        let result = region.observe(offered.clone());
        // An observer that the region refused still belongs to the program, and is not released.
        if let Ok(mut refused) = Arc::try_unwrap(offered) {
            refused.by.release = None;
        }
        Ok(result?)
    })
}
