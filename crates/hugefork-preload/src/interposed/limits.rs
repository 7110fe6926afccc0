//! The limits of the process (`RLIMIT_…`), and the functions of libc that set them.
//!
//! | limit | what mode `pool` has to do with it |
//! |---|---|
//! | `RLIMIT_AS` | the pool keeps many more addresses than the program uses |
//! | `RLIMIT_DATA` | the pool's memory is a file's, and does not count |
//! | `RLIMIT_NOFILE` | the pool needs a descriptor for each fork of which something lives |
//!
//! So there is no pool under such a limit. When one of the first two comes later, all memory becomes the kernel's
//! before, which counts it as any program's. The third is in the way only when there is no descriptor for a fork
//! (fork).

use std::ffi::{c_int, c_uint};

use rustix::process::getpid;

use crate::environment::Mode;
use crate::fork::origin::{self, Who};
use crate::interposed::kernel::{is_readable, kernel, quietly};
use crate::sandbox::withdrawn;
use crate::{config, modes};

/// Whether a pool does not go with a limit.
fn is_in_the_way(which: c_uint, most: libc::rlim64_t) -> bool {
    match which as libc::__rlimit_resource_t {
        libc::RLIMIT_AS | libc::RLIMIT_DATA => most != libc::RLIM64_INFINITY,
        _ => false,
    }
}

/// Before this process limits itself.
///
/// # Safety
/// `new` is null, or a limit that the program names.
unsafe fn heed(which: c_uint, new: *const libc::rlimit64) {
    let is_ours = config::mode() == Some(Mode::Pool) && !withdrawn::is_withdrawn() && !new.is_null();
    if !is_ours || !is_readable(new as usize, size_of::<libc::rlimit64>()) {
        return;
    }
    // SAFETY: it can be read.
    let most = unsafe { new.read_unaligned() }.rlim_cur;
    // A child that borrows its parent's memory limits only itself.
    if is_in_the_way(which, most) && origin::who() == Who::Known {
        quietly(modes::heed_limits);
    }
}

/// As libc's `prlimit`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn prlimit(
    process: libc::pid_t,
    which: c_uint,
    new: *const libc::rlimit64,
    old: *mut libc::rlimit64,
) -> c_int {
    if process == 0 || process == getpid().as_raw_nonzero().get() {
        // SAFETY: the caller's.
        unsafe { heed(which, new) };
    }
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_prlimit64, process, which, new, old) as c_int }
}

/// As libc's `setrlimit`, which makes this call.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn setrlimit(which: c_uint, new: *const libc::rlimit64) -> c_int {
    // SAFETY: the caller's.
    unsafe { prlimit(0, which, new, std::ptr::null_mut()) }
}
