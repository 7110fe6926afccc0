//! The guardian: a process of its own that puts kernel settings back, however the bench that changed them ends.
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
//! machine's own. The pipe closes when the bench ends, even by `SIGKILL`: its forked children die with it, and nobody
//! else holds the other end. If the guardian is killed too, the next one finds the values in the file. The file lies in
//! `/run`, which a boot empties; the settings are then those of the boot.

use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::lock::Lock;
use super::setting::Setting;
use crate::args::guardian::GuardianArgs;
use crate::failure::Failure;

/// What the guardian prints once the settings are safe to change.
pub(crate) const READY: &str = "ready";

/// Runs the guardian: returns when its standard input has ended and the settings are back. If something keeps it from
/// guarding, it prints that to standard output in place of [`READY`], and the bench reports it as its own error.
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
    // Nothing comes; only the end is waited for.
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

/// Takes the process out of reach of the terminal and the shell.
fn detach() -> anyhow::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        // A flag that nobody reads. Unlike an ignored signal, a handler is not inherited by other programs.
        signal_hook::flag::register(signal, Arc::default()).context("turning deaf to signals")?;
    }
    // Fails only for a process that leads its group, as when it is started by hand in a terminal. Then it stays there.
    let _ = rustix::process::setsid();
    Ok(())
}
