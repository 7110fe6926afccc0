//! Operations: `hf_operations`.

use std::ffi::c_int;
use std::time::Duration;

use hugefork::Operations;

use crate::boundary::run;
use crate::failure::Failure;
use crate::handle;
use crate::kinds::{hf_operations, hf_region};

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_operations_create(patience_ns: u64, out: *mut *mut hf_operations) -> c_int {
    let make = || match patience_ns {
        0 => Operations::new(),
        u64::MAX => Operations::with_patience(Duration::MAX),
        patience => Operations::with_patience(Duration::from_nanos(patience)),
    };
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, || Ok(make())) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_operations_close(operations: *mut hf_operations) {
    // SAFETY: the caller vouches for the arguments.
    unsafe { handle::close(operations) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_region_set_operations(region: *mut hf_region, operations: *mut hf_operations) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { Ok(handle::get(region)?.set_operations(handle::get(operations)?)?) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_operations_enter(operations: *mut hf_operations) -> c_int {
    run(|| {
        // SAFETY: the caller vouches for the arguments.
        let operations = unsafe { handle::get(operations)? };
        std::mem::forget(operations.enter());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_operations_leave(operations: *mut hf_operations) -> c_int {
    run(|| {
        // SAFETY: the caller vouches for the arguments.
        match unsafe { handle::get(operations)? }.leave() {
            true => Ok(()),
            false => {
                Err(Failure::bad_value(format_args!("this thread is inside of no such operation: enter one first")))
            }
        }
    })
}
