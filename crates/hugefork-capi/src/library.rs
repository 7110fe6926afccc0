//! Functions for the library as a whole.

use std::ffi::{CStr, c_char, c_int};

use crate::boundary::run;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no zero byte"),
};

#[unsafe(no_mangle)]
extern "C" fn hf_version() -> *const c_char {
    VERSION.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn hf_reinstall_handler() -> c_int {
    run(|| Ok(hugefork::reinstall_fault_handler()?))
}
