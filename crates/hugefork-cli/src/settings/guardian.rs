//! The guardian: a separate process that restores kernel settings, however the bench that changed
//! them ends.
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
//! The guardian reads the values itself, under the lock, so that a bench never mistakes another's
//! changes for the original values. The pipe closes when the bench ends, even by `SIGKILL`: its
//! forked children die with it, and no other process has the other end. If the guardian is killed
//! too, the next guardian finds the values in the file. The file lies in `/run`, which is emptied
//! at boot, when the settings are reset as well.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::{Lock, Setting};
use crate::failure::Failure;

/// The name of the command, which is followed by the lock file and the settings to restore.
pub(crate) const COMMAND: &str = "tune-guardian";

/// The line that the guardian prints when the settings may be changed.
pub(super) const READY: &str = "ready";

/// Runs the guardian: returns when its standard input has ended and the settings are restored. If it cannot start, it
/// prints the reason to standard output instead of [`READY`], and the bench reports that as its own error.
pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let (mut lock, settings) = arm(words).unwrap_or_else(|error| {
        println!("{error:#}");
        std::process::exit(1)
    });
    println!("{READY}");
    io::stdout().flush().context("telling the bench to go on")?;
    // No data arrives; the read ends with the input.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    let failed: Vec<anyhow::Error> = settings.iter().rev().filter_map(|setting| setting.restore().err()).collect();
    match failed.into_iter().next() {
        // The values remain in the file, so the next guardian can try.
        Some(error) => Err(error.into()),
        None => Ok(lock.note(&[])?),
    }
}

/// Locks the file, restores the settings of an earlier run, and stores the present values.
fn arm(words: &[String]) -> anyhow::Result<(Lock, Vec<Setting>)> {
    be_deaf();
    // Separates the process from the terminal and the shell. This fails only for a process-group leader, such as a
    // guardian started by hand in a terminal. It then remains in the session.
    let _ = rustix::process::setsid();
    let (lock, settings) = words.split_first().context("--tune: the guardian needs a lock file")?;
    let mut lock = Lock::take(Path::new(lock), "--tune")?;
    for left in lock.left_over().context("--tune: reading the settings of an earlier run")? {
        left.restore().context("--tune: an earlier run")?;
        eprintln!("note: restored {} to {}, which an earlier run had changed", left.path.display(), left.value);
    }
    let read = |path: &String| Setting::read(Path::new(path)).with_context(|| format!("--tune: reading {path}"));
    let settings = settings.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    lock.note(&settings).context("--tune: noting the settings")?;
    Ok((lock, settings))
}

/// Keeps Ctrl-C and its relatives from ending this process. Unlike an ignored signal, a handler is not inherited by
/// other programs.
pub(crate) fn be_deaf() {
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        // No code reads the flag.
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
}
