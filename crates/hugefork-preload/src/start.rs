//! The constructor: it reads the command's variable, and removes the library from the environment,
//! so that programs started by this one run without it.
//!
//! A program without big memory pays only for this: one variable, and three calls without effect.

use std::ffi::{CStr, c_char};

use crate::fork::{self, origin};
#[cfg(target_arch = "x86_64")]
use crate::interposed::dlopen;
use crate::interposed::{forks, wrapped};
use crate::switch::{self, ON, ON_FOR_SMALL};
use crate::threads::worker;
use crate::{ALL, BIG, VARIABLE};

#[used]
#[cfg_attr(hugefork_interposed, unsafe(link_section = ".init_array"))]
static START: extern "C" fn() = start;

/// Parts of the names of incompatible preloaded libraries: `valgrind` replaces the program's mappings, and `faketime`
/// takes locks in its time functions.
const OTHERS: [&[u8]; 2] = [b"vgpreload", b"faketime"];

unsafe extern "C" {
    /// The environment, which is also `main`'s third argument.
    static mut environ: *mut *mut c_char;

    /// Like `getenv`, but returns null in a process with more rights than its caller.
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

extern "C" fn start() {
    let asked = match value(c"HUGEFORK_POOL") {
        text if text == BIG.as_bytes() => ON,
        text if text == ALL.as_bytes() => ON_FOR_SMALL,
        _ => return,
    };
    let preloaded = value(c"LD_PRELOAD");
    let has_others = OTHERS.iter().any(|name| preloaded.windows(name.len()).any(|part| part == *name));
    close_file(preloaded);
    // SAFETY: before `main`, no other code uses the environment.
    unsafe { leave_the_environment() };
    if has_others {
        return;
    }
    forks::resolve();
    wrapped::resolve();
    #[cfg(target_arch = "x86_64")]
    dlopen::resolve();
    origin::note_this();
    worker::note_first();
    fork::follow();
    // Last: from here on the library is active.
    switch::set(asked);
}

/// A variable of this process's environment; empty if there is none.
fn value(name: &CStr) -> &'static [u8] {
    // SAFETY: a zero-terminated string, and no code changes the environment before `main`. (A process with more rights
    // than its caller gets null.)
    let value = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: the initial environment lies on the process's first stack, which is never unmapped.
    if value.is_null() { b"" } else { unsafe { CStr::from_ptr(value) }.to_bytes() }
}

/// Closes the descriptor of the library's file, which the command has added to `LD_PRELOAD` as `/proc/PID/fd/NUMBER`.
/// The loader has mapped the library by now.
fn close_file(preloaded: &[u8]) {
    let path = preloaded.rsplit(|byte| *byte == b':').next().unwrap_or_default();
    let number = path.strip_prefix(b"/proc/").and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    if let Some(number) = number.and_then(|number| str::from_utf8(number).ok()?.parse().ok()) {
        // SAFETY: the command has opened the descriptor for this library, and no other code knows it.
        unsafe { rustix::io::close(number) };
    }
}

/// Removes the variable, and the library from `LD_PRELOAD`, in place and without allocation.
///
/// # Safety
/// No other code uses the environment.
unsafe fn leave_the_environment() {
    // SAFETY: a null-terminated list of strings, which lie on the process's first stack and are writable.
    unsafe {
        let (mut from, mut to) = (environ, environ);
        while !from.is_null() && !(*from).is_null() {
            let variable = *from;
            let is_kept = match CStr::from_ptr(variable).to_bytes() {
                text if text.starts_with(VARIABLE.as_bytes()) => false,
                // The command has added the library at the end.
                text if text.starts_with(b"LD_PRELOAD=") => match text.iter().rposition(|byte| *byte == b':') {
                    Some(end) => {
                        *variable.add(end) = 0;
                        true
                    }
                    None => false,
                },
                _ => true,
            };
            *to = variable;
            to = to.add(usize::from(is_kept));
            from = from.add(1);
        }
        if !to.is_null() {
            *to = std::ptr::null_mut();
        }
    }
}
