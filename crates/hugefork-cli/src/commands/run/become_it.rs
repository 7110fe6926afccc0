//! Executes the program in this process, with the signal mask and signal actions that the command
//! was started with.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::environment::Environment;
use super::program::{NOT_FOUND, NOT_RUN, Program};
use crate::failure::Failure;

/// Whether `SIGPIPE` was ignored when this process began. Rust ignores it before `main`, and the program would inherit
/// that.
static IGNORED_PIPE: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: a zeroed `sigaction` is valid, and the call only reads the action.
    let was = unsafe {
        let mut was: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, ptr::null(), &mut was);
        was.sa_sigaction
    };
    IGNORED_PIPE.store(was == libc::SIG_IGN, Ordering::Relaxed);
}

/// Executes the program. Returns only after a failure.
pub(super) fn execute(program: &Program, arguments: &[OsString], environment: Environment) -> Failure {
    let failed = |status, why: &str| Failure::Status(status, format!("{}: {why}", program.path.display()));
    let mut words: Vec<&OsStr> = vec![&program.asked];
    let mut file = program.path.as_os_str();
    if program.needs_shell {
        words = vec![OsStr::new("sh"), &program.path.as_os_str()];
        file = program.image.as_os_str();
    }
    words.extend(arguments.iter().map(OsString::as_os_str));
    let variables = environment.variables().map(|variable| CString::new(variable.as_bytes()));
    let words = words.into_iter().map(|word| CString::new(word.as_bytes()));
    let (Ok(file), Ok(words), Ok(variables)) =
        (CString::new(file.as_bytes()), words.collect::<Result<Vec<_>, _>>(), variables.collect::<Result<Vec<_>, _>>())
    else {
        return failed(NOT_RUN, "an argument has a zero byte; leave it out");
    };
    let pointers = |list: &[CString]| list.iter().map(|one| one.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>();
    let (words, variables) = (pointers(&words), pointers(&variables));
    if !IGNORED_PIPE.load(Ordering::Relaxed) {
        // SAFETY: sets the default action of a signal.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    // SAFETY: zero-terminated strings, in null-terminated lists.
    unsafe { libc::execve(file.as_ptr(), words.as_ptr(), variables.as_ptr()) };
    let error = io::Error::last_os_error();
    let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN };
    failed(status, &format!("cannot be run: {error}"))
}
