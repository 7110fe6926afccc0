//! Ctrl-C and its relatives: the first ends the bench, which keeps its results so far; the second ends the process at
//! once. The guardian puts settings back in both cases.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator;

/// Signals that are caught, and not yet acted on.
#[derive(Debug)]
pub(crate) struct Signals(iterator::Signals);

impl Signals {
    pub(crate) fn install() -> anyhow::Result<Signals> {
        let signals = [SIGINT, SIGTERM, SIGHUP];
        let once = Arc::<AtomicBool>::default();
        for signal in signals {
            let install = || {
                // In this order, since the shutdown has to look at the flag before the same signal sets it.
                flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&once))?;
                flag::register(signal, Arc::clone(&once))
            };
            install().with_context(|| format!("handling signal {signal}"))?;
        }
        Ok(Signals(iterator::Signals::new(signals).context("waiting for signals")?))
    }

    /// At the first signal calls `act` with the exit status that it asks for, on a thread of its own: a sample may take
    /// seconds, and the thread that measures is busy with it.
    pub(crate) fn at_the_first(mut self, act: impl FnOnce(i32) + Send + 'static) -> anyhow::Result<()> {
        let wait = move || {
            if let Some(signal) = self.0.forever().next() {
                act(128 + signal);
            }
        };
        thread::Builder::new().name("hugefork-signal".to_owned()).spawn(wait).context("waiting for signals")?;
        Ok(())
    }
}
