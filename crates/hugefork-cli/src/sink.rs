//! Where `--json` goes: replaced as a whole after every case, so that the file is never half a result, whenever the bench
//! is stopped.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use hugefork_bench::Report;

/// A file that takes reports.
#[derive(Debug)]
pub(crate) struct Sink {
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
    /// Checks that `path` can be written, before anything is measured for it. An older file stays until there is a result.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Sink> {
        let named = path.to_owned();
        // Through links, so that what they point at is replaced, and not the link.
        let target = fs::canonicalize(path).unwrap_or_else(|_| named.clone());
        let way = match fs::metadata(&target) {
            Ok(there) if there.is_dir() => {
                return Err(anyhow!("--json {}: is a directory; name a file", path.display()));
            }
            Ok(there) if !there.is_file() => Way::Write,
            _ => {
                let Some(name) = target.file_name().and_then(|name| name.to_str()) else {
                    return Err(anyhow!("--json {}: not a file name", path.display()));
                };
                let beside = target.with_file_name(format!(".{name}.{}", std::process::id()));
                Way::Replace { target, beside }
            }
        };
        let sink = Sink { named, way };
        if let Way::Replace { beside, .. } = &sink.way {
            fs::write(beside, "").with_context(|| sink.complaint())?;
            let _ = fs::remove_file(beside);
        }
        Ok(sink)
    }

    /// Writes `report`.
    pub(crate) fn write(&self, report: &Report) -> anyhow::Result<()> {
        let text = report.to_json()?;
        let written = match &self.way {
            Way::Replace { target, beside } => fs::write(beside, text).and_then(|()| fs::rename(beside, target)),
            Way::Write => fs::write(&self.named, text),
        };
        written.with_context(|| self.complaint())
    }

    fn complaint(&self) -> String {
        format!(
            "--json {}: cannot be written; name a file in a directory that exists and is yours",
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
    use hugefork_bench::Host;

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
        let sink = Sink::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        let report = Report::new("test".to_owned(), Host::default());
        sink.write(&report).unwrap();
        sink.write(&report).unwrap();
        drop(sink);
        let back: Report = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(back, report);
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_said_first() {
        let error = Sink::open(Path::new("/nonexistent/out.json")).unwrap_err();
        assert!(format!("{error:#}").starts_with("--json /nonexistent/out.json: cannot be written"));
        let error = Sink::open(Path::new("/")).unwrap_err();
        assert!(error.to_string().contains("is a directory"));
    }

    #[test]
    fn a_device_is_written_and_stays_a_device() {
        let sink = Sink::open(Path::new("/dev/null")).unwrap();
        sink.write(&Report::new(String::new(), Host::default())).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_link_stays_a_link() {
        let scratch = Scratch::new("link");
        let (file, link) = (scratch.0.join("file.json"), scratch.0.join("link.json"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        Sink::open(&link).unwrap().write(&Report::new(String::new(), Host::default())).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::read_to_string(&file).unwrap().contains("\"schema\""));
    }
}
