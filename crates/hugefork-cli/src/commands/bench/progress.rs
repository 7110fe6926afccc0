//! Tells how far the bench has got, on standard error: a bar that vanishes on a terminal, one line a case elsewhere,
//! nothing with --quiet. As soon as a case is over it also writes the results to their files.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hugefork_bench::runner::{Observer, Progress};
use hugefork_bench::{Case, Report};
use hugefork_report::figure;
use indicatif::{ProgressBar, ProgressStyle};

use super::table::{self, Detail, Look};
use crate::output::sink::Sink;
use crate::output::stdout::print;
use crate::output::terminal;

/// The case, how far it is, how long it will take, and its figure so far.
const BAR: &str = "{prefix} {bar:24} sample {pos} of {len}, {eta} left in it  {wide_msg}";

/// Where [`BAR`] would leave no room for the figure.
const SHORT_BAR: &str = "{prefix}, sample {pos} of {len}  {wide_msg}";
const SHORT: usize = 120;

/// The columns of what is no terminal.
const PAPER: usize = 100;

/// Tells the user, and writes the results.
pub(crate) struct Teller {
    json: Option<Sink>,
    csv: Option<Sink>,
    to: Listener,
    detail: Detail,
    /// When the case began, which is when the one before it ended.
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

/// Who is told how far the bench has got.
enum Listener {
    Terminal(ProgressBar),
    File,
    Nobody,
}

impl Teller {
    pub(crate) fn new(json: Option<Sink>, csv: Option<Sink>, quiet: bool, detail: Detail) -> Self {
        let to = match (quiet, stderr().is_terminal()) {
            (true, _) => Listener::Nobody,
            (false, false) => Listener::File,
            (false, true) => Listener::Terminal(ProgressBar::hidden()),
        };
        Teller { json, csv, to, detail, began: Instant::now(), taken: 0 }
    }

    /// The last word: the bar vanishes, the tables are printed, and results are written where they are not yet.
    pub(crate) fn tell(&mut self, report: &Report, ending: Ending) -> anyhow::Result<()> {
        if let Listener::Terminal(bar) = &self.to {
            bar.finish_and_clear();
        }
        let kept = self.keep(report, |sink| ending == Ending::Stopped || !sink.replaces());
        let is_beside = [&self.json, &self.csv].into_iter().flatten().any(Sink::is_stdout);
        let (columns, colours) = match is_beside {
            true => (terminal::columns_of(&stderr()), terminal::colours(&stderr())),
            false => (terminal::columns(), terminal::colours(&stdout())),
        };
        let look = Look { columns: columns.unwrap_or(PAPER), colours };
        let told = table::render(report, self.detail, look) + &self.left_alone(report);
        let told = terminal::fitted_to(told, columns);
        if is_beside {
            // It is no failure if nobody reads it.
            let _ = stderr().write_all(told.as_bytes());
        } else {
            print(&told)?;
        }
        kept
    }

    /// Writes the results to those sinks that are `wanted`. Earlier results stay unless there are new ones.
    fn keep(&self, report: &Report, wanted: impl Fn(&Sink) -> bool) -> anyhow::Result<()> {
        let wanted = |sink: &Sink| wanted(sink) && !(sink.replaces() && report.results.is_empty());
        if let Some(sink) = self.json.as_ref().filter(|sink| wanted(sink)) {
            sink.write(report.to_json()?.as_bytes())?;
        }
        self.csv.as_ref().filter(|sink| wanted(sink)).map_or(Ok(()), |sink| sink.write(&report.to_csv()?))
    }

    /// Says which files were not written because there is nothing to write, and what became of them.
    fn left_alone(&self, report: &Report) -> String {
        let left = |sink: &&Sink| sink.replaces() && report.results.is_empty();
        let files = [&self.json, &self.csv].into_iter().flatten().filter(left);
        let (there, missing): (Vec<&Sink>, Vec<&Sink>) = files.partition(|sink| sink.named().exists());
        let line = |files: Vec<&Sink>, one: &str, many: &str| {
            let names: Vec<String> = files.iter().map(|sink| sink.named().display().to_string()).collect();
            let what = if names.len() == 1 { one } else { many };
            if names.is_empty() {
                String::new()
            } else {
                format!("note: nothing was counted: {} {what}\n", names.join(" and "))
            }
        };
        line(there, "is left as it was", "are left as they were") + &line(missing, "is not written", "are not written")
    }
}

/// The bar of a case that began `elapsed` ago.
fn bar(progress: &Progress<'_>, elapsed: Duration) -> ProgressBar {
    let template = if terminal::columns_of(&stderr()).is_some_and(|columns| columns < SHORT) { SHORT_BAR } else { BAR };
    let style = ProgressStyle::with_template(template).expect("the templates are constants that tests parse");
    ProgressBar::new(progress.of as u64)
        .with_style(style)
        .with_prefix(format!("case {} of {}: {}", progress.place, progress.cases, progress.case))
        .with_message(estimate(progress))
        .with_elapsed(elapsed)
}

/// The subject and its figure so far.
fn estimate(progress: &Progress<'_>) -> String {
    let metric = progress.case.lead_metric();
    match progress.estimate {
        Some(median) => format!("{} {} {} {}", progress.subject, metric.name(), figure(median), metric.unit()),
        None => format!("{} warms up", progress.subject),
    }
}

/// A [`Teller`] that one thread uses until another takes it away.
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
        if let Listener::Terminal(shown) = &mut self.to {
            // Another case, or the same one with more rounds, after it tried how many would fit.
            if self.taken == 1 || shown.length() != Some(progress.of as u64) {
                *shown = bar(&progress, self.began.elapsed());
            }
            shown.set_message(estimate(&progress));
            shown.set_position(progress.done as u64);
        }
    }

    fn case_ended(&mut self, case: &dyn Case, report: &Report) -> Result<(), String> {
        let seconds = self.began.elapsed().as_secs_f64();
        self.began = Instant::now();
        let taken = std::mem::take(&mut self.taken);
        match &self.to {
            Listener::Terminal(bar) => bar.finish_and_clear(),
            // That nobody reads it is no reason to stop measuring.
            Listener::File => drop(writeln!(stderr(), "{case}: {taken} samples in {seconds:.1} s")),
            Listener::Nobody => {}
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
    use hugefork_bench::cases::zero_fault::ZeroFault;

    use super::*;

    /// However it ends: a file with earlier results is not replaced by one without any.
    #[test]
    fn earlier_results_stay_until_something_was_counted() {
        let file = std::env::temp_dir().join(format!("hugefork-progress-{}.json", std::process::id()));
        fs::write(&file, "earlier results").unwrap();
        let mut teller = Teller::new(Some(Sink::open("--json", &file).unwrap()), None, true, Detail::Brief);
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
    fn the_estimate_is_the_figure_that_the_case_is_about() {
        let mut progress =
            Progress { case: &ZeroFault, place: 3, cases: 8, subject: "kernel-thp", estimate: None, done: 2, of: 30 };
        assert_eq!(estimate(&progress), "kernel-thp warms up");
        progress.estimate = Some(81.94);
        assert_eq!(estimate(&progress), "kernel-thp latency 81.9 us");
        assert_eq!(bar(&progress, Duration::ZERO).prefix(), "case 3 of 8: zero-fault");
        assert!([BAR, SHORT_BAR].into_iter().all(|template| ProgressStyle::with_template(template).is_ok()));
    }
}
