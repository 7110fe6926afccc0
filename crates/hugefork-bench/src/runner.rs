//! Runs a plan: subjects interleaved, round by round.
//!
//! ```text
//! round 0   A B C D    not counted: memory, caches and the host's pages warm up
//! round 1   B C D A    counted
//! round 2   C D A B    counted …
//! ```
//!
//! Each round runs every subject once, so that whatever else the machine does falls on all alike; it starts with another
//! subject each time, so that nobody always runs in somebody's wake. The stop flag is looked at before every sample; what
//! has been counted by then is kept. Results are handed out after every case.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::cases::Case;
use crate::engine;
use crate::error::BenchError;
use crate::host::Host;
use crate::plan::{CasePlan, Keep, Plan};
use crate::random::Random;
use crate::result::{Absent, CaseResult, Params, Report};
use crate::sample::{Entry, Measure, Metric, Work};
use crate::stats::Summary;

/// Samples that differ by more than this factor are told about.
const UNSTEADY: f64 = 2.0;

/// Where a run has got to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The case that runs.
    pub case: Case,
    /// The subject that was sampled last.
    pub subject: &'a str,
    /// Samples taken in this case, the warm-up's included.
    pub done: usize,
    /// Samples that this case will take.
    pub of: usize,
}

/// Who is told how it goes.
pub trait Observer {
    /// A sample was taken.
    fn sampled(&mut self, progress: Progress<'_>);

    /// A case is over, or was stopped; `report` holds its results.
    ///
    /// # Errors
    /// Ends the run: results that cannot be kept are not worth measuring.
    fn case_ended(&mut self, case: Case, report: &Report) -> Result<(), String>;
}

/// Runs `plan` and adds its results to `report`, until it is done or `stop` is set.
///
/// # Errors
/// [`BenchError::Results`] if the observer fails. A subject that fails is noted in the report, and the others go on.
pub fn run(
    plan: &Plan,
    host: &Host,
    report: &mut Report,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<(), BenchError> {
    for warning in &plan.warnings {
        report.warn(warning.clone());
    }
    for case in &plan.cases {
        if stop.load(Ordering::Relaxed) {
            report.interrupted = true;
            break;
        }
        let entries = Case::entries(case, &host.cpu_numbers);
        run_case(case, entries, plan.runs, report, &mut Watch { stop, observer: &mut *observer });
        observer.case_ended(case.case, report).map_err(BenchError::Results)?;
    }
    Ok(())
}

/// A subject as the runner sees it.
struct Running {
    name: String,
    params: Params,
    keep: Keep,
    work: Box<dyn Work>,
    samples: Vec<(Metric, Vec<f64>)>,
    caveat: Option<String>,
    ended: Option<BenchError>,
}

/// Who watches a run, and who may stop it.
struct Watch<'a> {
    stop: &'a AtomicBool,
    observer: &'a mut dyn Observer,
}

fn run_case(plan: &CasePlan, entries: Vec<Entry>, runs: usize, report: &mut Report, watch: &mut Watch<'_>) {
    let mut running = Vec::new();
    for Entry { subject, params, keep, work } in entries {
        match work {
            Ok(work) => running.push(Running {
                name: subject.to_string(),
                params,
                keep,
                work,
                samples: Vec::new(),
                caveat: None,
                ended: None,
            }),
            Err(why) => report.not_run.push(absent(plan.case, subject.to_string(), why)),
        }
    }
    let of = running.len() * (runs + 1);
    let mut done = 0;
    'rounds: for round in 0..=runs {
        for turn in 0..running.len() {
            if watch.stop.load(Ordering::Relaxed) {
                report.interrupted = true;
                break 'rounds;
            }
            let index = (round + turn) % running.len();
            let subject = &mut running[index];
            done += 1;
            if subject.ended.is_some() {
                continue;
            }
            match subject.take(plan, round) {
                Ok(measures) if round > 0 => subject.count(measures),
                // The warm-up round.
                Ok(_) => {}
                Err(error) => {
                    subject.work.release();
                    subject.ended = Some(error);
                }
            }
            watch.observer.sampled(Progress { case: plan.case, subject: &subject.name, done, of });
        }
    }
    for subject in running {
        subject.report(plan.case, report);
    }
}

fn absent(case: Case, subject: String, why: String) -> Absent {
    Absent { case: case.name().to_owned(), subject, why }
}

impl Running {
    fn take(&mut self, plan: &CasePlan, round: usize) -> Result<Vec<Measure>, BenchError> {
        self.work.prepare()?;
        if round == 0 {
            self.params.extend(self.work.pool().into_iter().flat_map(|(pool, kernel)| engine::granted(pool, kernel)));
            self.caveat = self.work.caveat();
        }
        // Of case and round only: in a round, every subject gets the same targets.
        let mut targets = Random::new(((plan.case as u64) << 32) + round as u64);
        let measures = self.work.sample(&mut targets)?;
        if self.keep == Keep::Freed {
            self.work.release();
        }
        Ok(measures)
    }

    fn count(&mut self, measures: Vec<Measure>) {
        for Measure { metric, value } in measures {
            // To the nanosecond or better, whatever the unit: the digits behind that are the arithmetic's.
            let value = (value * 1e6).round() / 1e6;
            match self.samples.iter_mut().find(|(known, _)| *known == metric) {
                Some((_, samples)) => samples.push(value),
                None => self.samples.push((metric, vec![value])),
            }
        }
    }

    fn report(self, case: Case, report: &mut Report) {
        if let Some(error) = self.ended {
            // Half a subject is not a figure; it is listed by its error alone.
            let list = if error.is_lack() { &mut report.not_run } else { &mut report.failed };
            list.push(absent(case, self.name, error.to_string()));
            return;
        }
        if let Some(caveat) = self.caveat {
            report.warn(caveat);
        }
        for (metric, samples) in self.samples {
            let Some(summary) = Summary::of(&samples) else { continue };
            if metric == case.lead_metric() && summary.max > summary.min * UNSTEADY {
                report.warn(format!(
                    "{case} {}: {metric} varies {:.1}-fold from round to round; something else is at work on this machine, \
                     take more --runs",
                    self.name,
                    summary.max / summary.min,
                    metric = metric.name(),
                ));
            }
            report.results.push(CaseResult {
                case: case.name().to_owned(),
                subject: self.name.clone(),
                params: self.params.clone(),
                metric: metric.name().to_owned(),
                unit: metric.unit().to_owned(),
                samples,
                median: summary.median,
            });
        }
    }
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
