//! How far the bench has got, on standard error: one line that is overwritten and vanishes on a terminal, one line a case
//! elsewhere. And results to their file, as soon as a case is over.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use hugefork_bench::runner::{Observer, Progress};
use hugefork_bench::{Case, Report};

use crate::sink::Sink;

/// Clears the line it stands on.
const CLEAR: &str = "\r\x1b[2K";

/// Tells the user, and keeps the results.
pub(crate) struct Teller<'a> {
    sink: Option<&'a Sink>,
    terminal: bool,
    /// When the case began, which is when the one before it ended.
    began: Instant,
    taken: usize,
}

impl<'a> Teller<'a> {
    pub(crate) fn new(sink: Option<&'a Sink>) -> Self {
        Teller { sink, terminal: std::io::stderr().is_terminal(), began: Instant::now(), taken: 0 }
    }
}

impl Observer for Teller<'_> {
    fn sampled(&mut self, progress: Progress<'_>) {
        self.taken += 1;
        if self.terminal {
            let Progress { case, subject, done, of } = progress;
            // Nobody to tell is no reason to stop measuring.
            let mut stderr = std::io::stderr();
            let _ = write!(stderr, "{CLEAR}{case}  {done}/{of}  {subject}").and_then(|()| stderr.flush());
        }
    }

    fn case_ended(&mut self, case: Case, report: &Report) -> Result<(), String> {
        let seconds = self.began.elapsed().as_secs_f64();
        self.began = Instant::now();
        let taken = std::mem::take(&mut self.taken);
        let mut stderr = std::io::stderr();
        let _ = if self.terminal {
            write!(stderr, "{CLEAR}").and_then(|()| stderr.flush())
        } else {
            writeln!(stderr, "{case}: {taken} samples in {seconds:.1} s")
        };
        match self.sink {
            Some(sink) => sink.write(report).map_err(|error| format!("{error:#}")),
            None => Ok(()),
        }
    }
}
