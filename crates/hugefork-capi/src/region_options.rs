//! Options of a region, fork or snapshot: `hf_region_options`.

use std::ffi::c_int;

use hugefork::RegionOptions;

use crate::choices::chosen;
use crate::failure::Failure;
use crate::versioned::{self, Versioned};

#[derive(Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types)]
pub(crate) struct hf_region_options {
    size: usize,
    reserve: c_int,
    copy_grain: c_int,
    calls_wait: c_int,
    unused: c_int,
    max_cow_bytes: usize,
}

// SAFETY: `repr(C)`, begins with its size; an even number of `c_int` leaves no padding; all fields are numbers.
unsafe impl Versioned for hf_region_options {
    const TYPE: &'static str = "hf_region_options";
    const FIRST_SIZE: usize = 32;
}

/// The program's options; the defaults for a null pointer.
///
/// # Safety
/// `options` is null or points to as many bytes as its first field says.
pub(crate) unsafe fn read(options: *const hf_region_options) -> Result<RegionOptions, Failure> {
    // SAFETY: the caller vouches for the arguments.
    let asked = unsafe { versioned::read(options)? };
    let options = RegionOptions::new().reserve(chosen(asked.reserve)?).copy_grain(chosen(asked.copy_grain)?);
    let options = match asked.calls_wait {
        0 | 1 => options.calls_wait(asked.calls_wait == 1),
        other => return Err(Failure::bad_value(format_args!("`calls_wait` is {other}: set it to 0 or 1"))),
    };
    if asked.unused != 0 {
        return Err(Failure::bad_value(format_args!("`unused` is {}: set it to 0", asked.unused)));
    }
    Ok(if asked.max_cow_bytes > 0 { options.max_cow_bytes(asked.max_cow_bytes) } else { options })
}
