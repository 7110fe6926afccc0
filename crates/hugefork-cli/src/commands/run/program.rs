//! The file to run, found as `execvp(3)` finds it, and the image that runs in the end. The command
//! executes the file with the signal actions that it was started with.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Access, access};

use crate::failure::Failure;

/// The directories that `execvp(3)` searches without `PATH`.
const NO_PATH: &str = "/bin:/usr/bin";

/// Exit statuses for a program that cannot be run, and for one that does not exist.
const NOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The program to run.
#[derive(Debug)]
pub(super) struct Program {
    /// The name on the command line, which becomes the program's `argv[0]`.
    asked: OsString,
    /// The file to execute.
    pub(super) path: PathBuf,
    /// The image that runs: the file itself, or its interpreter.
    pub(super) image: PathBuf,
}

impl Program {
    /// Finds the program with that name.
    pub(super) fn find(asked: &OsStr) -> Result<Program, Failure> {
        let path = find(asked)?;
        let image = image(&path);
        if !image.exists() {
            let why = format!("{}: its interpreter {} is not there; install it", path.display(), image.display());
            return Err(Failure(NOT_FOUND, why));
        }
        Ok(Program { asked: asked.to_owned(), path, image })
    }

    /// Its name for messages.
    pub(super) fn name(&self) -> String {
        self.asked.to_string_lossy().into_owned()
    }

    /// Becomes the program. Returns only after a failure.
    pub(super) fn execute(&self, arguments: &[OsString], environment: &[OsString]) -> Failure {
        let owned = |word: &OsString| CString::new(word.as_bytes()).expect("the words of a process have no zero byte");
        let words: Vec<CString> = [&self.asked].into_iter().chain(arguments).map(owned).collect();
        let variables: Vec<CString> = environment.iter().map(owned).collect();
        let file = owned(&self.path.clone().into());
        let pointers = |list: &[CString]| list.iter().map(|one| one.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>();
        if !IGNORED_PIPE.load(Ordering::Relaxed) {
            // SAFETY: sets the default action of a signal.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        }
        // A shell runs a file of unknown kind. SAFETY: zero-terminated strings, in null-terminated lists.
        unsafe { libc::execvpe(file.as_ptr(), pointers(&words).as_ptr(), pointers(&variables).as_ptr()) };
        let error = io::Error::last_os_error();
        let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN };
        Failure(status, format!("{}: cannot be run: {error}", self.path.display()))
    }
}

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

fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    let is_path = name.as_bytes().contains(&b'/');
    let path = env::var_os("PATH").unwrap_or_else(|| NO_PATH.into());
    // An empty part means the working directory.
    let file = |directory: PathBuf| Path::new(".").join(directory).join(name);
    let files: Vec<PathBuf> = if is_path {
        vec![name.into()]
    } else {
        env::split_paths(&path).map(file).filter(|_| !name.is_empty()).collect()
    };
    if let Some(file) = files.iter().find(|file| file.is_file() && access(*file, Access::EXEC_OK).is_ok()) {
        return Ok(file.clone());
    }
    let (status, file, why) = match files.iter().find(|file| file.exists()) {
        Some(file) if file.is_dir() => (NOT_RUN, file.as_path(), "is a directory; name a program"),
        Some(file) => (NOT_RUN, file.as_path(), "may not be run; chmod +x it, or run this as its user"),
        None if is_path => (NOT_FOUND, Path::new(name), "is not there; name a program"),
        None => (NOT_FOUND, Path::new(name), "is in no directory of PATH; name its path"),
    };
    Err(Failure(status, format!("{}: {why}", file.display())))
}

/// The file itself, the interpreter that a script names, or the shell for a file of unknown kind.
fn image(file: &Path) -> PathBuf {
    let mut begin = Vec::new();
    // The part of a file that the kernel examines. The file may be executable but not readable.
    let is_hidden = File::open(file).and_then(|file| file.take(256).read_to_end(&mut begin)).is_err();
    match begin.strip_prefix(b"#!") {
        Some(line) => {
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
            let interpreter = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
            OsStr::from_bytes(interpreter).into()
        }
        None if is_hidden || begin.starts_with(b"\x7fELF") => file.to_owned(),
        None => "/bin/sh".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_of_a_program_is_found() {
        let sh = Program::find(OsStr::new("sh")).unwrap();
        assert_eq!(sh.name(), "sh");
        assert!(sh.path.is_absolute() && sh.image == sh.path);
        let status = |name: &str| Program::find(OsStr::new(name)).unwrap_err().0;
        assert_eq!(status("no-such-program"), NOT_FOUND);
        assert_eq!(status(""), NOT_FOUND);
        assert_eq!(status("/no/such/program"), NOT_FOUND);
        assert_eq!(status("/etc"), NOT_RUN);
        assert_eq!(status("/etc/passwd"), NOT_RUN);
    }
}
