//! Ctrl-C and its relatives: the first asks the bench to stop after the sample it is at, the second leaves at once (settings
//! are put back all the same, by the guardian).

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// What has been signalled.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Set by any of them.
    pub(crate) stop: Arc<AtomicBool>,
    which: Arc<AtomicUsize>,
}

impl Signals {
    pub(crate) fn install() -> anyhow::Result<Signals> {
        let signals = Signals { stop: Arc::default(), which: Arc::default() };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let install = || {
                // In this order: the shutdown looks at the flag before the same signal sets it.
                flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&signals.stop))?;
                flag::register(signal, Arc::clone(&signals.stop))?;
                flag::register_usize(signal, Arc::clone(&signals.which), signal as usize)
            };
            install().with_context(|| format!("handling signal {signal}"))?;
        }
        Ok(signals)
    }

    /// The exit status that a signal asks for, if there was one.
    pub(crate) fn status(&self) -> Option<ExitCode> {
        match self.which.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(ExitCode::from(128 + signal as u8)),
        }
    }
}
