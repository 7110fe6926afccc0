//! What is written for the user. A file is replaced as a whole, so that it is never half written, whenever the command
//! is stopped. A device, a pipe and standard output are written to as they are.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::anyhow;

use super::stdout::print_bytes;
use crate::failure::Failure;

/// A file that can be written.
#[derive(Debug)]
pub(crate) struct Sink {
    /// The option that names it.
    option: &'static str,
    /// As the user wrote it.
    named: PathBuf,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// Written beside the file, then renamed over it.
    Replace { target: PathBuf, beside: PathBuf },
    /// A device or a pipe: renaming would replace the device, and what was written stays written. It is open from the
    /// start, since the reader of a pipe may leave when the pipe is closed.
    Stream(File),
    /// The standard output of this process, whatever it is.
    Stdout,
}

impl Sink {
    /// Checks that `path`, which `option` names, can be written, before any work is done for it. An older file stays
    /// until there is a newer one. `-` is standard output.
    pub(crate) fn open(option: &'static str, path: &Path) -> Result<Sink, Failure> {
        // Through links, so that what they point at is replaced, and not the link.
        let target = canonical(path);
        let way = match fs::metadata(path) {
            _ if path == Path::new("-") => Way::Stdout,
            Ok(there) if there.is_dir() => {
                return Err(Failure::Usage(format!("{option} {}: is a directory; name a file", path.display())));
            }
            Ok(there) if !there.is_file() || leads_to_a_descriptor(path) => {
                // Appends, since it may be a file that a shell has opened.
                let open = || {
                    File::options()
                        .append(true)
                        .open(path)
                        .map_err(|error| Failure::usage(&refused(option, path, &error)))
                };
                if is_stdout(&there) { Way::Stdout } else { Way::Stream(open()?) }
            }
            _ => {
                let Some(name) = target.file_name().and_then(|name| name.to_str()) else {
                    return Err(Failure::Usage(format!("{option} {}: not a file name", path.display())));
                };
                let beside = target.with_file_name(format!(".{name}.{}", std::process::id()));
                Way::Replace { target, beside }
            }
        };
        if let Way::Replace { beside, .. } = &way {
            fs::write(beside, "").map_err(|error| Failure::usage(&refused(option, path, &error)))?;
            let _ = fs::remove_file(beside);
        }
        Ok(Sink { option, named: path.to_owned(), way })
    }

    /// Whether it is standard output. Nothing else belongs there then.
    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self.way, Way::Stdout)
    }

    /// As the user wrote it.
    pub(crate) fn named(&self) -> &Path {
        &self.named
    }

    /// Whether a later write takes the place of an earlier one.
    pub(crate) fn replaces(&self) -> bool {
        matches!(self.way, Way::Replace { .. })
    }

    /// Writes `contents`.
    pub(crate) fn write(&self, contents: &[u8]) -> anyhow::Result<()> {
        match &self.way {
            Way::Replace { target, beside } => {
                let written = fs::write(beside, contents).and_then(|()| fs::rename(beside, target));
                // Removed here, since after a signal the process ends next.
                written.inspect_err(|_| drop(fs::remove_file(beside)))
            }
            Way::Stream(stream) => (&*stream).write_all(contents),
            Way::Stdout => return print_bytes(contents),
        }
        .map_err(|error| refused(self.option, &self.named, &error))
    }
}

fn refused(option: &str, path: &Path, error: &io::Error) -> anyhow::Error {
    unwritable(&format!("{option} {}", path.display()), "file", error)
}

/// Says that `what` cannot be written, why, and what to do about it. It should be a `kind`, such as a file.
pub(crate) fn unwritable(what: &str, kind: &str, error: &io::Error) -> anyhow::Error {
    let mend = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => format!("name a {kind} in a directory that exists"),
        ErrorKind::PermissionDenied => format!("name a {kind} in a directory that is yours"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => format!("free space or name a {kind} elsewhere"),
        ErrorKind::ReadOnlyFilesystem => format!("name a {kind} elsewhere"),
        ErrorKind::AlreadyExists | ErrorKind::IsADirectory => format!("name a {kind}"),
        ErrorKind::InvalidFilename => "take a shorter name".to_owned(),
        _ => format!("name another {kind}"),
    };
    anyhow!("{what}: cannot be written: {error}; {mend}")
}

/// Whether both name the same file, however they are spelled, and whether it exists or not.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let is_stdout = |path| path == Path::new("-");
    one == other || !is_stdout(one) && !is_stdout(other) && canonical(one) == canonical(other)
}

/// The file that `path` leads to through links. It need not be there yet.
fn canonical(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // As many links as the kernel follows.
    for _ in 0..40 {
        match fs::read_link(&path) {
            Ok(next) => path = directory(&path).join(next),
            Err(_) => break,
        }
    }
    let to_be = || Some(fs::canonicalize(directory(&path)).ok()?.join(path.file_name()?));
    fs::canonicalize(&path).ok().or_else(to_be).unwrap_or(path)
}

/// The directory of `path`.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether `path` is a name of an open file, such as `/dev/stdout`, or a link to one. Such a name must not be replaced
/// by a new file.
fn leads_to_a_descriptor(path: &Path) -> bool {
    let mut path = path.to_owned();
    // As many links as the kernel follows.
    for _ in 0..40 {
        let Ok(directory) = fs::canonicalize(directory(&path)) else { return false };
        if directory.starts_with("/proc") {
            return true;
        }
        let Ok(next) = fs::read_link(&path) else { return false };
        path = directory.join(next);
    }
    false
}

fn is_stdout(there: &Metadata) -> bool {
    let ours = rustix::fs::fstat(io::stdout());
    ours.is_ok_and(|ours| (ours.st_dev, ours.st_ino) == (there.dev(), there.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of this test's own, removed at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("hugefork-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_old_file_stays_until_there_is_a_result_and_nothing_is_left_beside_it() {
        let scratch = Scratch::new("sink");
        let path = scratch.0.join("out.json");
        fs::write(&path, "old").unwrap();
        let sink = Sink::open("--json", &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        sink.write(b"new").unwrap();
        sink.write(b"newer").unwrap();
        drop(sink);
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_said_first() {
        let error = Sink::open("--csv", Path::new("/nonexistent/out.csv")).unwrap_err();
        assert!(error.to_string().starts_with("--csv /nonexistent/out.csv: cannot be written"));
        let error = Sink::open("--json", Path::new("/")).unwrap_err();
        assert!(error.to_string().contains("is a directory"));
    }

    #[test]
    fn what_was_not_written_is_said_with_advice_that_fits() {
        let error = Sink::open("--json", Path::new("/dev/full")).unwrap().write(b"new").unwrap_err();
        let line = "--json /dev/full: cannot be written: No space left on device (os error 28); free space or name a file elsewhere";
        assert_eq!(format!("{error:#}"), line);
    }

    #[test]
    fn a_device_is_written_and_stays_a_device() {
        let sink = Sink::open("--json", Path::new("/dev/null")).unwrap();
        sink.write(b"new").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn names_of_open_files_are_told_from_files() {
        let scratch = Scratch::new("descriptor");
        let (file, link) = (scratch.0.join("file"), scratch.0.join("link"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("/dev/fd/0", &link).unwrap();
        for path in ["/dev/stdout", "/dev/fd/0", "/proc/self/fd/2", link.to_str().unwrap()] {
            assert!(leads_to_a_descriptor(Path::new(path)), "{path}");
        }
        for path in ["file", "/dev/shm/file", "/nonexistent/file", file.to_str().unwrap()] {
            assert!(!leads_to_a_descriptor(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn one_file_is_known_by_every_spelling() {
        let scratch = Scratch::new("spelling");
        let (file, link) = (scratch.0.join("out.json"), scratch.0.join("link.json"));
        let name = scratch.0.file_name().unwrap();
        let other = scratch.0.join("..").join(name).join("./out.json");
        assert!(is_same(&file, &other), "not there yet");
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(is_same(&file, &other) && is_same(&file, &link));
        assert!(!is_same(&file, &scratch.0.join("out.csv")));
        assert!(is_same(Path::new("-"), Path::new("-")) && !is_same(Path::new("-"), Path::new("./-")));
    }

    #[test]
    fn a_link_stays_a_link() {
        let scratch = Scratch::new("link");
        let (file, link) = (scratch.0.join("file.json"), scratch.0.join("link.json"));
        std::os::unix::fs::symlink("file.json", &link).unwrap();
        for text in ["there was no file", "there was one"] {
            Sink::open("--json", &link).unwrap().write(text.as_bytes()).unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
    }
}
