//! The progress of a bench, on standard error: a line that vanishes on a terminal, one line a case elsewhere, nothing
//! with --quiet. When a case is over, the results are also written to their file.
//!
//! The first Ctrl-C, SIGTERM or SIGHUP ends the bench after the sample, and the results so far are kept. The second
//! ends the process at once. The guardian puts settings back in both cases.

use std::io::{IsTerminal, Write, stderr};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use hugefork_bench::runner::{Observer, Progress};
use hugefork_bench::{Case, Report};
use hugefork_report::figure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::Failure;
use crate::output::{Sink, columns};

/// Shows progress, writes the results, and stops the bench at a signal.
pub(super) struct Watcher {
    pub(super) json: Option<Sink>,
    is_quiet: bool,
    /// The time at which the case began, which is the end of the one before.
    began: Instant,
    taken: usize,
    /// The first signal; 0 before one.
    signal: Arc<AtomicUsize>,
}

impl Watcher {
    pub(super) fn new(json: Option<Sink>, is_quiet: bool) -> Result<Self, Failure> {
        let (signal, is_second) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        for number in [SIGINT, SIGTERM, SIGHUP] {
            // The order matters: the first handler checks the flag, and the second sets it for the next signal.
            flag::register_conditional_shutdown(number, 128 + number, Arc::clone(&is_second))?;
            flag::register(number, Arc::clone(&is_second))?;
            flag::register_usize(number, Arc::clone(&signal), number as usize)?;
        }
        Ok(Watcher { json, is_quiet, began: Instant::now(), taken: 0, signal })
    }

    /// The signal that has ended the bench.
    pub(super) fn signal(&self) -> Option<u8> {
        u8::try_from(self.signal.load(Ordering::Relaxed)).ok().filter(|signal| *signal > 0)
    }

    /// The end of the run: results are written.
    pub(super) fn end(&self, report: &Report) -> Result<(), Failure> {
        let Some(sink) = &self.json else { return Ok(()) };
        if !sink.replaces() || !report.results.is_empty() {
            return sink.write(&report.to_json()?);
        }
        // Earlier results stay unless there are new ones.
        eprintln!("note: nothing was counted: {} is not written", sink.named.display());
        Ok(())
    }

    /// Replaces the line of progress on a terminal.
    fn show(&self, line: &str) {
        if !self.is_quiet && stderr().is_terminal() {
            let line: String = line.chars().take(columns(&stderr()) - 1).collect();
            // Progress that cannot be shown is no reason to stop measuring.
            let _ = write!(stderr(), "\r\x1b[K{line}");
        }
    }
}

/// The line of progress: the case, how far it is, and the subject's figure so far.
fn line(progress: &Progress<'_>) -> String {
    let Progress { case, place, cases, subject, estimate, done, of } = progress;
    let metric = case.lead_metric();
    let figure = match estimate {
        Some(median) => format!("{} {} {}", metric.name(), figure(*median), metric.unit()),
        None => "warms up".to_owned(),
    };
    format!("{case} ({place} of {cases}), sample {done} of {of}: {subject} {figure}")
}

impl Observer for Watcher {
    fn sampled(&mut self, progress: Progress<'_>) -> ControlFlow<()> {
        self.taken += 1;
        self.show(&line(&progress));
        if self.signal().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn case_ended(&mut self, case: &dyn Case, report: &Report) -> Result<(), String> {
        let seconds = self.began.elapsed().as_secs_f64();
        self.began = Instant::now();
        let taken = std::mem::take(&mut self.taken);
        self.show("");
        if !self.is_quiet && !stderr().is_terminal() {
            let _ = writeln!(stderr(), "{case}: {taken} samples in {seconds:.1} s");
        }
        match &self.json {
            // A stream gets the results once, at the end.
            Some(sink) if sink.replaces() && !report.results.is_empty() => {
                let text = report.to_json().map_err(|error| error.to_string())?;
                sink.write(&text).map_err(|Failure(_, why)| why)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use hugefork_bench::cases::first_touch::FirstTouch;

    use super::*;

    #[test]
    fn progress_has_the_figure_of_the_leading_metric() {
        let mut progress =
            Progress { case: &FirstTouch, place: 3, cases: 8, subject: "kernel-thp", estimate: None, done: 2, of: 30 };
        assert_eq!(line(&progress), "first-touch (3 of 8), sample 2 of 30: kernel-thp warms up");
        progress.estimate = Some(81.94);
        assert_eq!(line(&progress), "first-touch (3 of 8), sample 2 of 30: kernel-thp pass 81.9 ms");
    }
}
