//! The beginning and the end of the program: the constructor reads what is wanted, the destructor prints the line.
//!
//! The constructor is all that most programs ever pay, since they inherit the library and have nothing big: a few
//! variables, and three calls that change nothing.

use std::ffi::c_int;
use std::ptr;

use crate::config::{self, Config};
use crate::fork;
use crate::fork::origin;
use crate::interposed::{forks, pins};
use crate::line::Line;
use crate::stats::own as stats;
use crate::threads::affinity;

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
    forks::resolve();
    pins::resolve();
    origin::note_this();
    affinity::note();
    hugefork::seam::note_filter();
    fork::follow();
    // Last: from here on, something is done.
    config.set();
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
