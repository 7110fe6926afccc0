//! The lock that a bench holds while it changes settings. The lock file stores the values to
//! restore.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::setting::Setting;

/// Number of attempts to get a held lock, and the pause between them.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// The locked file. The lock ends when this is dropped, or when the process ends.
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// The lock file of this machine.
    pub(crate) fn path() -> &'static Path {
        Path::new("/run/hugefork-tune.lock")
    }

    /// Locks the file, on behalf of `flag`.
    pub(crate) fn take(path: &Path, flag: &str) -> anyhow::Result<Lock> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("{flag}: opening {}", path.display()))?;
        let mut tries = TRIES;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                // The holder may be the guardian of a bench that has just ended; it is almost done.
                Err(Errno::WOULDBLOCK) if tries > 0 => {
                    tries -= 1;
                    thread::sleep(PAUSE);
                }
                Err(Errno::WOULDBLOCK) => bail!(
                    "{flag}: another `hugefork bench --tune` is at work (it holds {}); wait for it to end, or leave {flag} out",
                    path.display()
                ),
                Err(errno) => bail!("{flag}: locking {}: {errno}", path.display()),
            }
        }
        Ok(Lock { file, path: path.to_owned() })
    }

    /// The settings that a killed guardian could not restore.
    pub(super) fn left_over(&mut self) -> anyhow::Result<Vec<Setting>> {
        let mut text = String::new();
        self.file.read_to_string(&mut text).with_context(|| format!("reading {}", self.path.display()))?;
        let setting = |line: &str| {
            let (path, value) = line.split_once('\t')?;
            Some(Setting { path: path.into(), value: value.to_owned() })
        };
        Ok(text.lines().filter_map(setting).collect())
    }

    /// Replaces the contents of the file by `settings`.
    pub(super) fn note(&mut self, settings: &[Setting]) -> anyhow::Result<()> {
        let text: String =
            settings.iter().map(|setting| format!("{}\t{}\n", setting.path.display(), setting.value)).collect();
        let mut write = || {
            self.file.set_len(0)?;
            self.file.rewind()?;
            self.file.write_all(text.as_bytes())
        };
        write().with_context(|| format!("--tune: writing {}", self.path.display()))
    }
}
