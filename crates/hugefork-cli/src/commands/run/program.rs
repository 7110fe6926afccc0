//! Finds the file to run, as `execvp(3)` does, and the image that runs in the end: a script names
//! an interpreter, which may be a script again.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::failure::Failure;

/// The directories that `execvp(3)` searches without `PATH`.
const NO_PATH: &str = "/bin:/usr/bin";

/// The shell for a file that is neither an image nor a script with an interpreter.
const SHELL: &str = "/bin/sh";

/// The kernel's maximum number of nested scripts.
const SCRIPTS: usize = 5;

/// Exit statuses for a program that cannot be run, and for one that does not exist.
pub(super) const NOT_RUN: u8 = 126;
pub(super) const NOT_FOUND: u8 = 127;

/// The program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    /// The name on the command line, which becomes the program's `argv[0]`.
    pub(super) asked: OsString,
    /// The file to execute.
    pub(super) path: PathBuf,
    /// The image that runs: the file itself, or its interpreter.
    pub(super) image: PathBuf,
    /// Whether the shell has to run the file.
    pub(super) needs_shell: bool,
}

impl Program {
    /// Finds the program with that name.
    pub(super) fn find(asked: &OsStr) -> Result<Program, Failure> {
        let path = find(asked)?;
        let kind = kind(&path);
        let needs_shell = matches!(kind, Kind::Other);
        let image = image(&path, kind, SCRIPTS)?;
        Ok(Program { asked: asked.to_owned(), path, image, needs_shell })
    }

    /// Its name for messages.
    pub(super) fn name(&self) -> String {
        self.asked.to_string_lossy().into_owned()
    }
}

fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    let text = name.to_string_lossy();
    if name.as_bytes().contains(&b'/') {
        return match runs(Path::new(name)) {
            Ok(()) => Ok(name.into()),
            Err(Hindrance::Missing) => Err(Failure::Status(NOT_FOUND, format!("{text}: is not there; name a program"))),
            Err(other) => Err(Failure::Status(NOT_RUN, format!("{text}: {}", other.in_words()))),
        };
    }
    let path = env::var_os("PATH").unwrap_or_else(|| NO_PATH.into());
    let mut hindrance = None;
    for directory in env::split_paths(&path).filter(|_| !name.is_empty()) {
        // An empty part means the working directory.
        let file = if directory.as_os_str().is_empty() { Path::new(".").join(name) } else { directory.join(name) };
        match runs(&file) {
            Ok(()) => return Ok(file),
            Err(Hindrance::Missing) => {}
            Err(other) => hindrance = hindrance.or(Some((file, other))),
        }
    }
    Err(match hindrance {
        Some((file, why)) => Failure::Status(NOT_RUN, format!("{}: {}", file.display(), why.in_words())),
        None => Failure::Status(NOT_FOUND, format!("{text}: is in no directory of PATH; name its path")),
    })
}

/// The reason why a file cannot be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hindrance {
    Missing,
    Directory,
    Rights,
}

impl Hindrance {
    fn in_words(self) -> &'static str {
        match self {
            Hindrance::Missing => "is not there",
            Hindrance::Directory => "is a directory; name a program",
            Hindrance::Rights => "may not be run; chmod +x it, or run this as its user",
        }
    }
}

fn runs(file: &Path) -> Result<(), Hindrance> {
    let there = fs::metadata(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Hindrance::Rights,
        _ => Hindrance::Missing,
    })?;
    if there.is_dir() {
        return Err(Hindrance::Directory);
    }
    access(file, Access::EXEC_OK).map_err(|_| Hindrance::Rights)
}

/// The kind of a file, by its first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Image,
    /// A script: its interpreter, and the rest of the line.
    Script(PathBuf, String),
    /// Executable but not readable.
    Hidden,
    Other,
}

fn kind(file: &Path) -> Kind {
    let mut begin = Vec::new();
    // The part of a file that the kernel examines.
    if File::open(file).and_then(|file| file.take(256).read_to_end(&mut begin)).is_err() {
        return Kind::Hidden;
    }
    if begin.starts_with(b"\x7fELF") {
        return Kind::Image;
    }
    begin.strip_prefix(b"#!").map_or(Kind::Other, script)
}

/// The first line of a script, after `#!`.
fn script(line: &[u8]) -> Kind {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let (interpreter, rest) = line.split_at(end);
    if interpreter.is_empty() {
        return Kind::Other;
    }
    let rest = String::from_utf8_lossy(rest.trim_ascii()).into_owned();
    Kind::Script(OsString::from_vec(interpreter.to_vec()).into(), rest)
}

fn image(file: &Path, kind: Kind, scripts: usize) -> Result<PathBuf, Failure> {
    let next = match kind {
        Kind::Image | Kind::Hidden => return Ok(file.to_owned()),
        Kind::Other => SHELL.into(),
        Kind::Script(..) if scripts == 0 => {
            let why = "is a script of a script of a script; name the program that runs it";
            return Err(Failure::Status(NOT_RUN, format!("{}: {why}", file.display())));
        }
        // `env` becomes the program in its arguments.
        Kind::Script(interpreter, rest) if interpreter.ends_with("env") => {
            match rest.split_whitespace().find(is_name) {
                Some(name) => find(OsStr::new(name))?,
                None => interpreter,
            }
        }
        Kind::Script(interpreter, _) => interpreter,
    };
    if let Err(why) = runs(&next) {
        let named = format!("{}: its interpreter {} {}", file.display(), next.display(), why.in_words());
        return Err(Failure::Status(if why == Hindrance::Missing { NOT_FOUND } else { NOT_RUN }, named));
    }
    let kind = self::kind(&next);
    image(&next, kind, scripts.saturating_sub(1))
}

/// Whether a word after `env` is a program rather than an option or variable.
fn is_name(word: &&str) -> bool {
    !word.starts_with('-') && !word.contains('=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lines_name_interpreters() {
        let script = |line: &[u8]| script(line);
        let named = |path: &str, rest: &str| Kind::Script(path.into(), rest.to_owned());
        assert_eq!(script(b"/bin/sh\necho"), named("/bin/sh", ""));
        assert_eq!(script(b" /usr/bin/env -S python3 -u \n"), named("/usr/bin/env", "-S python3 -u"));
        assert_eq!(script(b"/bin/bash -e"), named("/bin/bash", "-e"));
        assert_eq!(script(b"\n"), Kind::Other);
        assert_eq!("-S X=1 python3 -u".split_whitespace().find(is_name), Some("python3"));
    }

    #[test]
    fn the_image_of_a_program_is_found() {
        let sh = Program::find(OsStr::new("sh")).unwrap();
        assert_eq!(sh.name(), "sh");
        assert!(sh.path.is_absolute() && sh.image == sh.path && !sh.needs_shell);
        let status = |name: &str| match Program::find(OsStr::new(name)) {
            Err(Failure::Status(status, _)) => status,
            other => panic!("{other:?}"),
        };
        assert_eq!(status("no-such-program"), NOT_FOUND);
        assert_eq!(status(""), NOT_FOUND);
        assert_eq!(status("/no/such/program"), NOT_FOUND);
        assert_eq!(status("/etc"), NOT_RUN);
        assert_eq!(status("/etc/passwd"), NOT_RUN);
    }
}
