//! The constructor: it reads what the command asks for, and takes the library out of the environment. What the program
//! starts is as without it.
//!
//! It is all that a program without big memory ever pays: one variable, and three calls that change nothing.

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

/// Parts of the names of preloaded libraries that do not go with this one: `valgrind` works on what the program maps,
/// and `faketime` has locks in the functions that tell the time.
const OTHERS: [&[u8]; 2] = [b"vgpreload", b"faketime"];

unsafe extern "C" {
    /// The variables, which are `main`'s third argument, too.
    static mut environ: *mut *mut c_char;

    /// As `getenv`, but for processes with more rights than their caller: those find nothing.
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
    // SAFETY: before `main`, nobody else looks at the environment.
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
    // Last: from here on, something is done.
    switch::set(asked);
}

/// A variable of this process's environment; empty if there is none.
fn value(name: &CStr) -> &'static [u8] {
    // SAFETY: a string that ends, and nobody changes the environment before `main`. A process with more rights than its
    // caller takes nothing from him.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: the environment of the start lies in the process's first stack, and stays there.
    if value.is_null() { b"" } else { unsafe { CStr::from_ptr(value) }.to_bytes() }
}

/// Takes the variable out, and the library out of `LD_PRELOAD`, where they lie: nothing is allocated.
///
/// # Safety
/// Nobody else looks at the environment.
unsafe fn leave_the_environment() {
    // SAFETY: a list of strings that ends with null; those lie in the process's first stack, and can be written.
    unsafe {
        let (mut from, mut to) = (environ, environ);
        while !from.is_null() && !(*from).is_null() {
            let variable = *from;
            let is_kept = match CStr::from_ptr(variable).to_bytes() {
                text if text.starts_with(VARIABLE.as_bytes()) => false,
                // The command has put it last.
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
