//! Changes and restores kernel settings, for `bench --tune` and `doctor --fix`. A setting is a file
//! below `/proc` or `/sys`, and a value for it.

pub(crate) mod guardian;
pub(crate) mod tune;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use hugefork_bench::thp::chosen_word;
use serde::Serialize;

/// Number of attempts to get a held lock, or to write a value that the kernel does not accept, and the pause between
/// them. Pages of the hugetlb pool become free only when the last child of a killed bench has ended.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// The lock file of this machine.
pub(crate) const LOCK: &str = "/run/hugefork-tune.lock";

/// A kernel setting, and its present or wanted value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    pub(crate) path: PathBuf,
    pub(crate) value: String,
}

impl Setting {
    /// The setting with its present value.
    pub(crate) fn read(path: &Path) -> io::Result<Setting> {
        Ok(Setting { path: path.to_owned(), value: value(path)? })
    }

    /// The shell command that sets the value.
    pub(crate) fn command(&self) -> String {
        format!("echo {} > {}", self.value, self.path.display())
    }

    /// Writes the value to the kernel.
    fn restore(&self) -> anyhow::Result<()> {
        let failed = || format!("restoring {} to {}", self.path.display(), self.value);
        for _ in 0..TRIES {
            if value(&self.path).with_context(failed)? == self.value {
                return Ok(());
            }
            fs::write(&self.path, &self.value).with_context(failed)?;
            thread::sleep(PAUSE);
        }
        bail!("{} could not be restored to {}; run this yourself: {}", self.path.display(), self.value, self.command())
    }
}

/// The value of a setting in writable form: the word in brackets if the file lists several words, otherwise the whole
/// file.
pub(crate) fn value(path: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    Ok(chosen_word(&text).unwrap_or(text.trim()).to_owned())
}

/// The lock that a bench holds while it changes settings. The lock file stores the values to restore. The lock ends
/// when this is dropped, or when the process ends.
pub(crate) struct Lock(File);

impl Lock {
    /// Locks the file, on behalf of `flag`.
    pub(crate) fn take(path: &Path, flag: &str) -> anyhow::Result<Lock> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("{flag}: opening {}", path.display()))?;
        for _ in 0..TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(Lock(file)),
                // The holder may be the guardian of a bench that has just ended; it is almost done.
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
                Err(TryLockError::Error(error)) => bail!("{flag}: locking {}: {error}", path.display()),
            }
        }
        bail!(
            "{flag}: another `hugefork bench --tune` is at work (it holds {}); wait for it to end, or leave {flag} out",
            path.display()
        )
    }

    /// The settings that a killed guardian could not restore.
    fn left_over(&mut self) -> io::Result<Vec<Setting>> {
        let mut text = String::new();
        self.0.read_to_string(&mut text)?;
        let settings = text.lines().filter_map(|line| line.split_once('\t'));
        Ok(settings.map(|(path, value)| Setting { path: path.into(), value: value.to_owned() }).collect())
    }

    /// Replaces the contents of the file by `settings`.
    fn note(&mut self, settings: &[Setting]) -> io::Result<()> {
        let line = |setting: &Setting| format!("{}\t{}\n", setting.path.display(), setting.value);
        self.0.set_len(0)?;
        self.0.rewind()?;
        self.0.write_all(settings.iter().map(line).collect::<String>().as_bytes())
    }
}
