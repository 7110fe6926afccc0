//! The guardian: a process of its own that puts kernel settings back, whatever becomes of the bench that changed them.
//!
//! ```text
//! bench                                   guardian
//!   spawns ───────────────────────────────▶ setsid, deaf to INT TERM HUP QUIT
//!                                           locks the lock file, or says who is in the way
//!                                           restores what a killed guardian left in it
//!                                           notes the present values in it
//!   reads a line  ◀──────────────────────── "ready"
//!   changes the settings, measures
//!   ends, in whatever way ── pipe closes ─▶ puts the values back, empties the file, leaves
//! ```
//!
//! The guardian reads the values itself, under the lock, so that two benches can never note each other's changes as the
//! machine's own. The pipe closes when the bench ends, also by `SIGKILL`: its forked children die with it, and nobody else
//! holds the other end. Should the guardian be killed too, the next one finds the values in the file; that lies in `/run`,
//! which is empty after a boot, as the settings are then the boot's.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use hugefork_bench::thp::chosen_word;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::args::GuardianArgs;
use crate::failure::Failure;

/// What it prints once the settings are safe to change.
pub(crate) const READY: &str = "ready";

/// How often, and after which pause, a lock is tried again that is held, and a setting written again that the kernel did not
/// take: pages of the hugetlb pool come free only when the last child of a killed bench is gone.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Runs the guardian: returns when its standard input has ended and the settings are back. What keeps it from guarding goes
/// to standard output in place of [`READY`], for the bench to report as its own error.
pub(crate) fn run(args: &GuardianArgs) -> Result<ExitCode, Failure> {
    let (mut lock, settings) = match arm(args) {
        Ok(armed) => armed,
        Err(error) => {
            println!("{error:#}");
            return Ok(ExitCode::FAILURE);
        }
    };
    println!("{READY}");
    io::stdout().flush().context("telling the bench to go on")?;
    // Its end is all that is waited for.
    let mut nothing = Vec::new();
    let _ = io::stdin().read_to_end(&mut nothing);

    let mut failed = None;
    for setting in settings.iter().rev() {
        if let Err(error) = setting.restore() {
            failed.get_or_insert(error);
        }
    }
    match failed {
        // The values stay in the file, for the next one to try.
        Some(error) => Err(error.into()),
        None => {
            lock.note(&[])?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Locks, restores what was left over, and notes the present values.
fn arm(args: &GuardianArgs) -> anyhow::Result<(Lock, Vec<Setting>)> {
    detach()?;
    let mut lock = Lock::take(&args.lock, "--tune")?;
    for left in lock.left_over()? {
        left.restore().context("--tune: restoring what an earlier run left behind")?;
        let _ = writeln!(
            io::stderr(),
            "note: restored {} to {}, which an earlier run had left changed",
            left.path.display(),
            left.value
        );
    }
    let settings = args.settings.iter().map(|path| Setting::read(path)).collect::<anyhow::Result<Vec<_>>>()?;
    lock.note(&settings)?;
    Ok((lock, settings))
}

/// Out of the terminal's and the shell's reach.
fn detach() -> anyhow::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        // A flag that nobody reads: unlike an ignored signal, that is not inherited by anything.
        signal_hook::flag::register(signal, Arc::default()).context("turning deaf to signals")?;
    }
    // Fails only for a process that leads its group, as when it is started by hand in a terminal; then it stays where it is.
    let _ = rustix::process::setsid();
    Ok(())
}

/// A kernel setting and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    path: PathBuf,
    value: String,
}

impl Setting {
    fn read(path: &Path) -> anyhow::Result<Setting> {
        Ok(Setting { path: path.to_owned(), value: value_of(path)? })
    }

    fn restore(&self) -> anyhow::Result<()> {
        for attempt in 0..TRIES {
            if attempt > 0 {
                thread::sleep(PAUSE);
            }
            if value_of(&self.path)? == self.value {
                return Ok(());
            }
            fs::write(&self.path, &self.value)
                .with_context(|| format!("restoring {} to {}", self.path.display(), self.value))?;
        }
        match value_of(&self.path)? {
            value if value == self.value => Ok(()),
            value => bail!(
                "{} stays {value} and would not go back to {}; write it yourself: echo {} > {}",
                self.path.display(),
                self.value,
                self.value,
                self.path.display()
            ),
        }
    }
}

/// The value of a setting: the word in brackets where there is a choice of words, else all of it.
pub(crate) fn value_of(path: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("--tune: reading {}", path.display()))?;
    Ok(chosen_word(&text).unwrap_or(text.trim()).to_owned())
}

/// The lock file, locked. The lock goes with the file, when this is dropped or its process ends.
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
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
                // It may be the guardian of a bench that has just ended, about to be done.
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

    /// What a guardian that was killed could not put back.
    fn left_over(&mut self) -> anyhow::Result<Vec<Setting>> {
        let mut text = String::new();
        self.file.read_to_string(&mut text).with_context(|| format!("reading {}", self.path.display()))?;
        let setting = |line: &str| {
            let (path, value) = line.split_once('\t')?;
            Some(Setting { path: path.into(), value: value.to_owned() })
        };
        Ok(text.lines().filter_map(setting).collect())
    }

    /// Makes `settings` all that is in the file.
    fn note(&mut self, settings: &[Setting]) -> anyhow::Result<()> {
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
