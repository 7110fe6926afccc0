//! libc's `syscall`, by which programs make calls that libc has no function for, or go past it.
//!
//! What concerns somebody is made by him; libc makes all else. Programs sleep and wake by this function, so it costs a
//! few comparisons. The library's own calls by `libc::syscall` come here, too.

use std::ffi::c_long;
use std::mem;

use crate::pins::Libcs;
use crate::sandbox;

type Call = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

static LIBCS: Libcs = Libcs::new(c"syscall");

/// Looks for libc's function, so that none is looked for in a signal handler.
pub(crate) fn resolve() {
    LIBCS.find();
}

/// As libc's `syscall`. It has up to six arguments; those that the caller has not given are whatever the registers and
/// the stack hold.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(
    call: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let args = [a, b, c, d, e, f];
    if sandbox::is_concerned(call, &args) {
        // SAFETY: the caller's.
        return unsafe { sandbox::make(call, args) };
    }
    // SAFETY: libc's function takes these, and the rest is the caller's.
    unsafe { mem::transmute::<usize, Call>(LIBCS.find())(call, a, b, c, d, e, f) }
}
