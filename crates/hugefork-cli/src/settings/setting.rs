//! A kernel setting: a file below `/proc` or `/sys`, and a value for it.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io, thread};

use anyhow::{Context, bail};
use hugefork_bench::thp::chosen_word;
use serde::Serialize;

/// Number of attempts to write a value that the kernel does not accept, and the pause between them. Pages of the
/// hugetlb pool become free only when the last child of a killed bench has ended.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// A kernel setting, and its present or wanted value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    pub(crate) path: PathBuf,
    pub(crate) value: String,
}

impl Setting {
    /// The setting with its present value.
    pub(super) fn read(path: &Path) -> anyhow::Result<Setting> {
        Ok(Setting { path: path.to_owned(), value: read(path)? })
    }

    /// The shell command that sets the value.
    pub(crate) fn command(&self) -> String {
        format!("echo {} > {}", self.value, self.path.display())
    }

    /// Writes the value to the kernel.
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
                "{} is still {value} and could not be restored to {}; run this yourself: {}",
                self.path.display(),
                self.value,
                self.command()
            ),
        }
    }
}

/// The value of a setting in writable form: the word in brackets if the file lists several words, otherwise the whole
/// file.
pub(crate) fn value(path: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    Ok(chosen_word(&text).unwrap_or(text.trim()).to_owned())
}

/// Like [`value`], with an error message for `--tune`.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    value(path).with_context(|| format!("--tune: reading {}", path.display()))
}
