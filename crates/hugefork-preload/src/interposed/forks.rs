//! The functions of libc that fork, or register handlers of forks. They call libc's.
//!
//! | function | what is done beside libc's work |
//! |---|---|
//! | `fork` | afterwards, in the parent, the worker is started if it is needed |
//! | `_Fork` | the handlers are called, in mode `pool` |
//! | `__register_atfork` (`pthread_atfork`) | the library's own handlers come before all others |

use std::ffi::{c_int, c_void};
use std::mem;

use crate::interposed::kernel::{failed, quietly};
use crate::interposed::libcs::Libcs;
use crate::sandbox::withdrawn;
use crate::{Mode, config, fork};

type ForkFunction = unsafe extern "C" fn() -> libc::pid_t;

static FORK: Libcs = Libcs::new(c"fork");
static BARE_FORK: Libcs = Libcs::new(c"_Fork");
static REGISTER: Libcs = Libcs::new(c"__register_atfork");

/// What `pthread_atfork` and its like call.
type RegisterAtfork = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
type Handler = Option<unsafe extern "C" fn()>;

/// As libc's `__register_atfork`. The first call, whoever makes it, comes after the library's own handlers were
/// registered: an allocator may hold a lock while it waits for the library, which waits for a fork, and take that lock
/// in a handler.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    library: *mut c_void,
) -> c_int {
    fork::follow();
    // SAFETY: libc's function has this type, and the rest is the caller's.
    REGISTER.look().map_or(libc::ENOMEM, |libcs| unsafe {
        mem::transmute::<usize, RegisterAtfork>(libcs.get())(prepare, parent, child, library)
    })
}

/// As libc's `_Fork`, which calls no handlers. Without ours, the child would not have the memory of mode `pool`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
#[allow(non_snake_case)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let is_ours = config::mode() == Some(Mode::Pool) && !withdrawn::is_withdrawn();
    // Before glibc 2.34, there is none.
    let Some(libcs) = BARE_FORK.look() else { return failed(libc::ENOSYS) };
    if is_ours {
        fork::prepare();
    }
    // SAFETY: libc's function has this type, and the rest is the caller's.
    let child = unsafe { mem::transmute::<usize, ForkFunction>(libcs.get())() };
    // Nobody withdraws in the middle of a fork.
    if is_ours && !withdrawn::is_withdrawn() {
        quietly(|| if child == 0 { fork::child() } else { fork::parent() });
    }
    child
}

/// Looks for libc's `fork`, so that it is not looked for in a signal handler.
pub(crate) fn resolve() {
    FORK.find();
}

/// As libc's `fork`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    // SAFETY: libc's `fork` has this type, and the rest is the caller's.
    let child = unsafe { mem::transmute::<usize, ForkFunction>(FORK.find())() };
    // Also if it has failed: what was prepared for it is to be taken back.
    if child != 0 {
        quietly(fork::afterwards);
    }
    child
}
