//! The progress of a bench, on standard error: a line that vanishes on a terminal, one line a case elsewhere, nothing
//! with --quiet. When a case is over, the results are also written to their file.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hugefork_bench::runner::{Observer, Progress};
use hugefork_bench::{Case, Report};
use hugefork_report::figure;

use super::answer::{Detail, Look, render};
use crate::output::sink::Sink;
use crate::output::stdout::print;
use crate::output::terminal;

/// The columns of an output that is no terminal.
const PAPER: usize = 80;

/// Reports to the user, and writes the results.
pub(crate) struct Teller {
    json: Option<Sink>,
    to: Listener,
    detail: Detail,
    /// The time at which the case began, which is the end of the one before.
    began: Instant,
    taken: usize,
}

/// How a bench ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// After the last case, when files have everything already.
    Done,
    /// Before the last case was over.
    Stopped,
}

/// The reader of progress.
enum Listener {
    Terminal,
    File,
    Nobody,
}

impl Teller {
    pub(super) fn new(json: Option<Sink>, quiet: bool, detail: Detail) -> Self {
        let to = match (quiet, stderr().is_terminal()) {
            (true, _) => Listener::Nobody,
            (false, false) => Listener::File,
            (false, true) => Listener::Terminal,
        };
        Teller { json, to, detail, began: Instant::now(), taken: 0 }
    }

    /// The end of the run: progress vanishes, the answer is printed, and results are written where they are not yet.
    pub(crate) fn tell(&mut self, report: &Report, ending: Ending) -> anyhow::Result<()> {
        self.show("");
        let kept = self.keep(report, |sink| ending == Ending::Stopped || !sink.replaces());
        let is_beside = self.json.as_ref().is_some_and(Sink::is_stdout);
        let (columns, colours) = match is_beside {
            true => (terminal::columns_of(&stderr()), terminal::colours(&stderr())),
            false => (terminal::columns(), terminal::colours(&stdout())),
        };
        let look = Look { columns: columns.unwrap_or(PAPER), colours };
        let text = terminal::fitted_to(render(report, self.detail, look), columns) + &self.left_alone(report);
        if is_beside {
            // It is no failure if nobody reads it.
            let _ = stderr().write_all(text.as_bytes());
        } else {
            print(&text)?;
        }
        kept
    }

    /// Writes the results to the file, if it is `wanted`. Earlier results stay unless there are new ones.
    fn keep(&self, report: &Report, wanted: impl Fn(&Sink) -> bool) -> anyhow::Result<()> {
        match &self.json {
            Some(sink) if wanted(sink) && !(sink.replaces() && report.results.is_empty()) => {
                sink.write(report.to_json()?.as_bytes())
            }
            _ => Ok(()),
        }
    }

    /// Says that the file was not written because there is nothing to write.
    fn left_alone(&self, report: &Report) -> String {
        let left = self.json.as_ref().filter(|sink| sink.replaces() && report.results.is_empty());
        left.map_or(String::new(), |sink| {
            let state = if sink.named().exists() { "is left as it was" } else { "is not written" };
            format!("note: nothing was counted: {} {state}\n", sink.named().display())
        })
    }

    /// Replaces the line of progress on a terminal.
    fn show(&self, line: &str) {
        if let Listener::Terminal = self.to {
            let columns = terminal::columns_of(&stderr()).unwrap_or(PAPER);
            let line: String = line.chars().take(columns - 1).collect();
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

/// A [`Teller`] that two threads share.
#[derive(Clone)]
pub(crate) struct Telling(Arc<Mutex<Teller>>);

impl Telling {
    pub(crate) fn new(teller: Teller) -> Telling {
        Telling(Arc::new(Mutex::new(teller)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Teller> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Telling {
    fn sampled(&mut self, progress: Progress<'_>) {
        self.lock().sampled(progress);
    }

    fn case_ended(&mut self, case: &dyn Case, report: &Report) -> Result<(), String> {
        self.lock().case_ended(case, report)
    }
}

impl Teller {
    fn sampled(&mut self, progress: Progress<'_>) {
        self.taken += 1;
        self.show(&line(&progress));
    }

    fn case_ended(&mut self, case: &dyn Case, report: &Report) -> Result<(), String> {
        let seconds = self.began.elapsed().as_secs_f64();
        self.began = Instant::now();
        let taken = std::mem::take(&mut self.taken);
        self.show("");
        if let Listener::File = self.to {
            let _ = writeln!(stderr(), "{case}: {taken} samples in {seconds:.1} s");
        }
        // A stream gets the results once, at the end.
        self.keep(report, Sink::replaces).map_err(|error| format!("{error:#}"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use hugefork_bench::Host;
    use hugefork_bench::cases::clear_copy::CLEAR;
    use hugefork_bench::cases::first_touch::FirstTouch;

    use super::*;

    /// However the bench ends, a file with earlier results is not replaced by one without any.
    #[test]
    fn earlier_results_stay_until_something_was_counted() {
        let file = std::env::temp_dir().join(format!("hugefork-progress-{}.json", std::process::id()));
        fs::write(&file, "earlier results").unwrap();
        let mut teller = Teller::new(Some(Sink::open("--json", &file).unwrap()), true, Detail::Answer);
        let report = Report::new("hugefork bench".to_owned(), Host::read());
        let ended = teller.case_ended(&CLEAR, &report);
        let told = [Ending::Stopped, Ending::Done].map(|ending| teller.tell(&report, ending).is_ok());
        let (kept, left_alone) = (fs::read_to_string(&file).unwrap(), teller.left_alone(&report));
        fs::remove_file(&file).unwrap();
        let not_written = format!("note: nothing was counted: {} is not written\n", file.display());
        assert_eq!(teller.left_alone(&report), not_written, "it is not there");
        assert!(ended.is_ok() && told == [true, true]);
        assert_eq!(kept, "earlier results");
        assert_eq!(left_alone, format!("note: nothing was counted: {} is left as it was\n", file.display()));
    }

    #[test]
    fn progress_has_the_figure_of_the_leading_metric() {
        let mut progress =
            Progress { case: &FirstTouch, place: 3, cases: 8, subject: "kernel-thp", estimate: None, done: 2, of: 30 };
        assert_eq!(line(&progress), "first-touch (3 of 8), sample 2 of 30: kernel-thp warms up");
        progress.estimate = Some(81.94);
        assert_eq!(line(&progress), "first-touch (3 of 8), sample 2 of 30: kernel-thp pass 81.9 ms");
    }
}
