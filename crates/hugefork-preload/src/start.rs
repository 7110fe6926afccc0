//! The beginning and the end of the program: the constructor reads what is wanted, the destructor prints the line.
//!
//! The constructor is all that most programs ever pay, since they inherit the library and have nothing big: a few
//! variables, and three calls that change nothing.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::{self, Config};
use crate::line::Line;
use crate::stats::own as stats;
use crate::{entry, fork, pins};

#[used]
#[cfg_attr(hugefork_interposed, unsafe(link_section = ".init_array"))]
static START: extern "C" fn() = start;

#[used]
#[cfg_attr(hugefork_interposed, unsafe(link_section = ".fini_array"))]
static END: extern "C" fn() = end;

extern "C" fn start() {
    let config = match Config::of_this_process() {
        Ok(Some(config)) => config,
        Ok(None) => return,
        Err(variable) => {
            let text =
                format_args!("hugefork: {variable} cannot be read, so nothing is done; let `hugefork run` set it");
            return Line::new(text).write_to(libc::STDERR_FILENO);
        }
    };
    if !config::is_meant() {
        return;
    }
    if config.at_exit || config.signal.is_some() {
        stats::remember_stderr();
    }
    if let Some(signal) = config.signal {
        answer(signal);
    }
    entry::resolve();
    pins::resolve();
    follow_forks();
    // Last: from here on, something is done.
    config.set();
}

/// Whether the handlers of forks are there.
static ARE_FORKS_FOLLOWED: AtomicBool = AtomicBool::new(false);

/// Has libc call the handlers of forks, before anybody else has it call his own. `prepare` is called last then: who
/// takes a lock there has it already, and nobody else waits for us with it.
pub(crate) fn follow_forks() {
    if !ARE_FORKS_FOLLOWED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handlers do what handlers may do.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
}

// Other libraries begin before this one, so the handlers may be there before it is known what is wanted.

unsafe extern "C" fn prepare() {
    if config::mode().is_some() {
        fork::prepare();
    }
}

unsafe extern "C" fn parent() {
    if config::mode().is_some() {
        fork::parent();
    }
}

unsafe extern "C" fn child() {
    if config::mode().is_some() {
        fork::child();
    }
}

extern "C" fn end() {
    if config::at_exit() {
        stats::print();
    }
}

/// Prints the line at a signal, unless the program has another use for it.
fn answer(signal: c_int) {
    // SAFETY: a `sigaction` of zeros is the default action.
    let mut was: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = on_signal as *const () as usize;
    ours.sa_flags = libc::SA_RESTART;
    // SAFETY: live values. A number that is no signal is refused.
    unsafe {
        if libc::sigaction(signal, ptr::null(), &mut was) == 0 && was.sa_sigaction == libc::SIG_DFL {
            libc::sigaction(signal, &ours, ptr::null_mut());
        }
    }
}

/// Prints the line; allocates nothing, and leaves `errno` alone.
extern "C" fn on_signal(_: c_int) {
    stats::print();
}
