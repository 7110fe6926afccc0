//! The functions of libc that fork. They call libc's own.
//!
//! | function | addition to libc's work |
//! |---|---|
//! | `fork`, `__fork` | afterwards, the parent starts the worker if it is needed |
//! | `_Fork` | calls the fork handlers |

use std::mem;

use crate::interposed::kernel::{errno, failed, quietly};
use crate::interposed::libcs::Libcs;
use crate::pool::{self, Zeros};
use crate::threads::worker;
use crate::{fork, switch, withdrawal};

type ForkFunction = unsafe extern "C" fn() -> libc::pid_t;

static FORK: Libcs = Libcs::new(c"fork");
static BARE_FORK: Libcs = Libcs::new(c"_Fork");

/// Like libc's `_Fork`, which calls no handlers. Without ours, the child would not have the pool's memory.
///
/// # Safety
/// As for libc's function.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
#[allow(non_snake_case)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let is_ours = switch::is_on();
    // glibc before 2.34 has no such function.
    let Some(libcs) = BARE_FORK.resolve() else { return failed(libc::ENOSYS) };
    if is_ours {
        fork::prepare();
    }
    // SAFETY: libc's function has this type, and the caller vouches for the call.
    let child = unsafe { mem::transmute::<usize, ForkFunction>(libcs.get())() };
    // No thread withdraws during a fork, but one may have withdrawn just before it.
    if is_ours && switch::is_on() {
        quietly(|| if child == 0 { fork::child() } else { fork::parent() });
    }
    child
}

/// Resolves libc's `fork` early, so that no signal handler has to.
pub(crate) fn resolve() {
    FORK.find();
}

/// Runs in the parent after a fork and all handlers. Does nothing if a signal has interrupted another call of this
/// thread into the library.
fn afterwards() {
    if switch::is_on() && !worker::is_there() && pool::has_descendants() && !worker::start() {
        // Without a worker, memory held by children would never be released.
        withdrawal::withdraw(Zeros::Copied);
    }
}

/// Like libc's `fork`.
///
/// # Safety
/// As for libc's function.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    // SAFETY: libc's `fork` has this type, and the caller vouches for the call.
    let real = || unsafe { mem::transmute::<usize, ForkFunction>(FORK.find())() };
    let mut child = real();
    if child == -1 && errno() == libc::EAGAIN && worker::is_there() {
        // The worker may occupy the last place for a thread.
        quietly(afterwards);
        withdrawal::withdraw(Zeros::Copied);
        child = real();
    }
    // The preparation is also undone after a failed fork.
    if child != 0 {
        quietly(afterwards);
    }
    child
}

/// Like libc's `__fork`.
///
/// # Safety
/// As for libc's function.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn __fork() -> libc::pid_t {
    // SAFETY: the caller vouches for the call.
    unsafe { fork() }
}
