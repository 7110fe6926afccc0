//! The functions of libc that fork. They call libc's.
//!
//! | function | what is done beside libc's work |
//! |---|---|
//! | `fork`, `__fork` | afterwards, in the parent, the worker is started if it is needed |
//! | `_Fork` | the handlers are called |

use std::mem;

use crate::interposed::kernel::{errno, failed, quietly};
use crate::interposed::libcs::Libcs;
use crate::pool::Zeros;
use crate::threads::worker;
use crate::{fork, switch, withdrawal};

type ForkFunction = unsafe extern "C" fn() -> libc::pid_t;

static FORK: Libcs = Libcs::new(c"fork");
static BARE_FORK: Libcs = Libcs::new(c"_Fork");

/// As libc's `_Fork`, which calls no handlers. Without ours, the child would not have the pool's memory.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
#[allow(non_snake_case)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let is_ours = switch::is_on();
    // Before glibc 2.34, there is none.
    let Some(libcs) = BARE_FORK.look() else { return failed(libc::ENOSYS) };
    if is_ours {
        fork::prepare();
    }
    // SAFETY: libc's function has this type, and the rest is the caller's.
    let child = unsafe { mem::transmute::<usize, ForkFunction>(libcs.get())() };
    // Nobody steps aside in the middle of a fork, but perhaps just before.
    if is_ours && switch::is_on() {
        quietly(|| if child == 0 { fork::child() } else { fork::parent() });
    }
    child
}

/// Looks for libc's `fork`, so that it is not looked for in a signal handler.
pub(crate) fn resolve() {
    FORK.find();
}

/// After a fork, in the parent, when all handlers are through: in the middle of another call of this thread, which a
/// signal interrupted, nothing is done.
fn afterwards() {
    if switch::is_on() && fork::wants_worker() && !worker::start() {
        // What children hold would never come back.
        withdrawal::withdraw(Zeros::Copied);
    }
}

/// As libc's `fork`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    // SAFETY: libc's `fork` has this type, and the rest is the caller's.
    let real = || unsafe { mem::transmute::<usize, ForkFunction>(FORK.find())() };
    let mut child = real();
    if child == -1 && errno() == libc::EAGAIN && worker::is_there() {
        // The worker may have taken the last place.
        quietly(afterwards);
        withdrawal::withdraw(Zeros::Copied);
        child = real();
    }
    // Also if it has failed: what was prepared for it is to be taken back.
    if child != 0 {
        quietly(afterwards);
    }
    child
}

/// As libc's `__fork`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn __fork() -> libc::pid_t {
    // SAFETY: the caller's.
    unsafe { fork() }
}
