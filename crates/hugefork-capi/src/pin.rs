//! Pins: `hf_pin`.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::boundary::{ask, range, run};
use crate::handle;
use crate::kinds::{hf_pin, hf_region};

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_pin(region: *mut hf_region, offset: usize, len: usize, out: *mut *mut hf_pin) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, || Ok(handle::get(region)?.pin_owned(range(offset, len))?)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pin_close(pin: *mut hf_pin) {
    // SAFETY: the caller vouches for the arguments.
    unsafe { handle::close(pin) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pin_address(pin: *const hf_pin) -> *mut c_void {
    // SAFETY: the caller vouches for the arguments.
    ask(ptr::null_mut(), || Ok(unsafe { handle::get(pin)? }.as_non_null().as_ptr().cast()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pin_offset(pin: *const hf_pin) -> usize {
    // SAFETY: the caller vouches for the arguments.
    ask(0, || Ok(unsafe { handle::get(pin)? }.range().start))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_pin_len(pin: *const hf_pin) -> usize {
    // SAFETY: the caller vouches for the arguments.
    ask(0, || Ok(unsafe { handle::get(pin)? }.range().len()))
}
