//! A kernel setting: a file below `/proc` or `/sys`, and what is written to it.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io, thread};

use anyhow::{Context, bail};
use hugefork_bench::thp::chosen_word;
use serde::Serialize;

/// How often a value is written again that the kernel did not take, and after which pause. Pages of the hugetlb pool
/// come free only when the last child of a killed bench is gone.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// A kernel setting, and the value that it has or should have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    pub(crate) path: PathBuf,
    pub(crate) value: String,
}

impl Setting {
    /// The setting with the value that it has now.
    pub(super) fn read(path: &Path) -> anyhow::Result<Setting> {
        Ok(Setting { path: path.to_owned(), value: read(path)? })
    }

    /// The command that gives it this value.
    pub(crate) fn command(&self) -> String {
        format!("echo {} > {}", self.value, self.path.display())
    }

    /// Gives it this value again.
    pub(super) fn restore(&self) -> anyhow::Result<()> {
        for attempt in 0..TRIES {
            if attempt > 0 {
                thread::sleep(PAUSE);
            }
            if read(&self.path)? == self.value {
                return Ok(());
            }
            fs::write(&self.path, &self.value)
                .with_context(|| format!("restoring {} to {}", self.path.display(), self.value))?;
        }
        match read(&self.path)? {
            value if value == self.value => Ok(()),
            value => bail!(
                "{} stays {value} and would not go back to {}; write it yourself: {}",
                self.path.display(),
                self.value,
                self.command()
            ),
        }
    }
}

/// The value of a setting as it would be written: the word in brackets where there is a choice of words, else all of
/// the file.
pub(crate) fn value(path: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    Ok(chosen_word(&text).unwrap_or(text.trim()).to_owned())
}

/// As [`value`], for `--tune`.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    value(path).with_context(|| format!("--tune: reading {}", path.display()))
}
