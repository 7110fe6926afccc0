//! Output files. A file is replaced as a whole, so that it is never half written, even if the
//! command is stopped. Devices, pipes and standard output are written directly.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::anyhow;

use super::stdout::print_bytes;
use crate::failure::Failure;

/// A writable file.
#[derive(Debug)]
pub(crate) struct Sink {
    /// The option that names it.
    option: &'static str,
    /// The path as the user wrote it.
    named: PathBuf,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// Written beside the file, then renamed over it.
    Replace { target: PathBuf, beside: PathBuf },
    /// A device or a pipe: it must not be renamed over, and its output cannot be replaced. It is opened at the start,
    /// because the reader of a pipe may exit when the pipe is closed.
    Stream(File),
    /// The standard output of this process, of any kind.
    Stdout,
}

impl Sink {
    /// Checks before any work that `path`, the value of `option`, is writable. An older file is not touched until the
    /// new one is complete. `-` is standard output.
    pub(crate) fn open(option: &'static str, path: &Path) -> Result<Sink, Failure> {
        // Follows links, so that the target of a link is replaced, not the link.
        let target = canonical(path);
        let way = match fs::metadata(path) {
            _ if path == Path::new("-") => Way::Stdout,
            Ok(there) if there.is_dir() => {
                return Err(Failure::Usage(format!("{option} {}: is a directory; name a file", path.display())));
            }
            Ok(there) if !there.is_file() || leads_to_a_descriptor(path) => {
                // Opens to append, because a shell may have the file open.
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

    /// Whether it is standard output. Nothing else may be printed there then.
    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self.way, Way::Stdout)
    }

    /// The path as the user wrote it.
    pub(crate) fn named(&self) -> &Path {
        &self.named
    }

    /// Whether a later write replaces an earlier one.
    pub(crate) fn replaces(&self) -> bool {
        matches!(self.way, Way::Replace { .. })
    }

    /// Writes `contents`.
    pub(crate) fn write(&self, contents: &[u8]) -> anyhow::Result<()> {
        match &self.way {
            Way::Replace { target, beside } => {
                let written = fs::write(beside, contents).and_then(|()| fs::rename(beside, target));
                // Removed here, because after a signal the process exits next.
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

/// An error that `what` cannot be written, with the reason and a remedy. It should be a `kind`, such as a file.
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

/// Whether both paths lead to the same file, which need not exist.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let is_stdout = |path| path == Path::new("-");
    one == other || !is_stdout(one) && !is_stdout(other) && canonical(one) == canonical(other)
}

/// The file that `path` leads to through links. It need not exist.
fn canonical(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // The kernel's maximum number of links.
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

/// Whether `path` names an open file, such as `/dev/stdout`, or is a link to such a name. It must not be replaced by a
/// new file.
fn leads_to_a_descriptor(path: &Path) -> bool {
    let mut path = path.to_owned();
    // The kernel's maximum number of links.
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

    /// A temporary directory of this test, removed at its end.
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
    fn an_old_file_exists_until_the_result_and_no_temporary_file_remains() {
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
    fn an_unwritable_file_is_reported_before_any_work() {
        let error = Sink::open("--csv", Path::new("/nonexistent/out.csv")).unwrap_err();
        assert!(error.to_string().starts_with("--csv /nonexistent/out.csv: cannot be written"));
        let error = Sink::open("--json", Path::new("/")).unwrap_err();
        assert!(error.to_string().contains("is a directory"));
    }

    #[test]
    fn a_failed_write_is_reported_with_a_matching_remedy() {
        let error = Sink::open("--json", Path::new("/dev/full")).unwrap().write(b"new").unwrap_err();
        let line = "--json /dev/full: cannot be written: No space left on device (os error 28); free space or name a file elsewhere";
        assert_eq!(format!("{error:#}"), line);
    }

    #[test]
    fn a_device_is_written_and_not_replaced() {
        let sink = Sink::open("--json", Path::new("/dev/null")).unwrap();
        sink.write(b"new").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn names_of_open_files_are_distinguished_from_files() {
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
    fn one_file_is_recognised_by_every_spelling() {
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
    fn a_link_is_followed_and_not_replaced() {
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
