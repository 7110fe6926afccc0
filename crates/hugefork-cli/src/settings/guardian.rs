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
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::lock::Lock;
use super::setting::Setting;
use crate::args::guardian::GuardianArgs;
use crate::failure::Failure;

/// The line that the guardian prints when the settings may be changed.
pub(crate) const READY: &str = "ready";

/// Runs the guardian: returns when its standard input has ended and the settings are restored. If it cannot start, it
/// prints the reason to standard output instead of [`READY`], and the bench reports that as its own error.
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
    // No data arrives; the read ends with the input.
    let mut nothing = Vec::new();
    let _ = io::stdin().read_to_end(&mut nothing);

    let mut failed = None;
    for setting in settings.iter().rev() {
        if let Err(error) = setting.restore() {
            failed.get_or_insert(error);
        }
    }
    match failed {
        // The values remain in the file, so the next guardian can try.
        Some(error) => Err(error.into()),
        None => {
            lock.note(&[])?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Locks the file, restores the settings of an earlier run, and stores the present values.
fn arm(args: &GuardianArgs) -> anyhow::Result<(Lock, Vec<Setting>)> {
    detach()?;
    let mut lock = Lock::take(&args.lock, "--tune")?;
    for left in lock.left_over()? {
        left.restore().context("--tune: restoring the settings of an earlier run")?;
        let _ = writeln!(
            io::stderr(),
            "note: restored {} to {}, which an earlier run had changed",
            left.path.display(),
            left.value
        );
    }
    let settings = args.settings.iter().map(|path| Setting::read(path)).collect::<anyhow::Result<Vec<_>>>()?;
    lock.note(&settings)?;
    Ok((lock, settings))
}

/// Separates the process from the terminal and the shell.
fn detach() -> anyhow::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        // No code reads the flag. Unlike an ignored signal, a handler is not inherited by other programs.
        signal_hook::flag::register(signal, Arc::default()).context("turning deaf to signals")?;
    }
    // Fails only for a process-group leader, such as a guardian started by hand in a terminal. It then remains in the
    // session.
    let _ = rustix::process::setsid();
    Ok(())
}
