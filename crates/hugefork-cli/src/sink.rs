//! A file that is written for the user: replaced as a whole, so that it is never half of anything, whenever the command is
//! stopped.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

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
    /// A device or a pipe: renaming would replace the device.
    Write,
}

impl Sink {
    /// Checks that `path`, which `option` names, can be written, before anything is done for it. An older file stays until
    /// there is a newer.
    pub(crate) fn open(option: &'static str, path: &Path) -> Result<Sink, Failure> {
        let named = path.to_owned();
        // Through links, so that what they point at is replaced, and not the link.
        let target = fs::canonicalize(path).unwrap_or_else(|_| named.clone());
        let way = match fs::metadata(&target) {
            Ok(there) if there.is_dir() => {
                return Err(Failure::Usage(format!("{option} {}: is a directory; name a file", path.display())));
            }
            Ok(there) if !there.is_file() => Way::Write,
            _ => {
                let Some(name) = target.file_name().and_then(|name| name.to_str()) else {
                    return Err(Failure::Usage(format!("{option} {}: not a file name", path.display())));
                };
                let beside = target.with_file_name(format!(".{name}.{}", std::process::id()));
                Way::Replace { target, beside }
            }
        };
        let sink = Sink { option, named, way };
        if let Way::Replace { beside, .. } = &sink.way {
            fs::write(beside, "").map_err(|error| Failure::Usage(format!("{}: {error}", sink.complaint())))?;
            let _ = fs::remove_file(beside);
        }
        Ok(sink)
    }

    /// Writes `contents`.
    pub(crate) fn write(&self, contents: &[u8]) -> anyhow::Result<()> {
        let written = match &self.way {
            Way::Replace { target, beside } => fs::write(beside, contents).and_then(|()| fs::rename(beside, target)),
            Way::Write => fs::write(&self.named, contents),
        };
        written.with_context(|| self.complaint())
    }

    fn complaint(&self) -> String {
        format!(
            "{} {}: cannot be written; name a file in a directory that exists and is yours",
            self.option,
            self.named.display()
        )
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Way::Replace { beside, .. } = &self.way {
            // Only there if a write broke off.
            let _ = fs::remove_file(beside);
        }
    }
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
    fn a_device_is_written_and_stays_a_device() {
        let sink = Sink::open("--json", Path::new("/dev/null")).unwrap();
        sink.write(b"new").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_link_stays_a_link() {
        let scratch = Scratch::new("link");
        let (file, link) = (scratch.0.join("file.json"), scratch.0.join("link.json"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        Sink::open("--json", &link).unwrap().write(b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    }
}
