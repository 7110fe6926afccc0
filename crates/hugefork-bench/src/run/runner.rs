//! Runs a plan: subjects interleaved, round by round.
//!
//! ```text
//! round 0   A B C D    not counted: memory, caches and the host's pages warm up
//! round 1   B C D A    counted
//! round 2   C D A B    counted …
//! ```
//!
//! Each round runs every subject once, so that other activity on the machine affects all subjects alike. Each round
//! starts with another subject, so that no subject takes the first place in every round. The runner calls the
//! observer after each sample, when the observer may stop the run, and gives it the results after every case.

use std::ops::ControlFlow;

use crate::case::Case;
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::random::Random;
use crate::plan::{CasePlan, Plan};
use crate::results::result::Report;
use crate::run::load;
use crate::run::sample::{Entry, Sample, Work};
use crate::run::tally::Tallies;

/// The progress of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress<'a> {
    /// The case that runs.
    pub case: &'static dyn Case,
    /// The number of that case, from 1.
    pub place: usize,
    /// The number of cases.
    pub cases: usize,
    /// The subject that was sampled last.
    pub subject: &'a str,
    /// The median so far of that subject's [`Case::lead_metric`]; `None` before the first counted sample.
    pub estimate: Option<f64>,
    /// Samples taken in this case, including the warm-up's.
    pub done: usize,
    /// Samples that this case will take.
    pub of: usize,
}

/// Follows a run.
pub trait Observer {
    /// A sample was taken. `Break` ends the run: the report then has the samples so far.
    fn sampled(&mut self, progress: Progress<'_>) -> ControlFlow<()>;

    /// A case is over, or was stopped; `report` holds its results.
    ///
    /// # Errors
    /// An error of the observer, such as results that it cannot save. The error ends the run.
    fn case_ended(&mut self, case: &dyn Case, report: &Report) -> Result<(), String>;
}

/// Runs `plan` and adds its results to `report`.
///
/// # Errors
/// [`BenchError::Results`] if the observer fails. If a subject fails, the report notes it, and the other subjects
/// continue.
pub fn run(plan: &Plan, host: &Host, report: &mut Report, observer: &mut dyn Observer) -> Result<(), BenchError> {
    let (mut load, loaded) = load::Watch::begin();
    for warning in plan.warnings.iter().chain(&loaded) {
        report.warn(warning.clone());
    }
    for (index, case) in plan.cases.iter().enumerate() {
        let entries = case.case.entries(&case.job, &case.subjects, host);
        let place = Place { nth: index + 1, of: plan.cases.len() };
        let (tallies, flow) = run_case(case, entries, plan.runs, place, observer);
        tallies.report(report);
        for warning in load.case_ended(case.case.name()) {
            report.warn(warning);
        }
        observer.case_ended(case.case, report).map_err(BenchError::Results)?;
        if flow.is_break() {
            break;
        }
    }
    Ok(())
}

/// The place of a case among all cases.
#[derive(Clone, Copy)]
struct Place {
    nth: usize,
    of: usize,
}

/// Runs the rounds of a case: the warm-up and then `runs` counted rounds, unless the observer ends the run.
fn run_case(
    plan: &CasePlan,
    entries: Vec<Entry>,
    runs: usize,
    place: Place,
    observer: &mut dyn Observer,
) -> (Tallies, ControlFlow<()>) {
    let mut tallies = Tallies::new(plan.case);
    let mut running: Vec<Option<Work>> = Vec::new();
    for Entry { subject, params, work } in entries {
        match work {
            Ok(work) => {
                running.push(Some(work));
                tallies.enter(subject.to_string(), params);
            }
            Err(why) => tallies.cannot_run(subject.to_string(), why),
        }
    }
    let subjects = running.len();
    for round in 0..=runs {
        for turn in 0..subjects {
            let nth = (round + turn) % subjects;
            let Some(work) = &mut running[nth] else { continue };
            let taken = sample(work, plan.case, round);
            if taken.is_err() {
                running[nth] = None;
            }
            let (name, estimate) = tallies.add(nth, round == 0, taken);
            let flow = observer.sampled(Progress {
                case: plan.case,
                place: place.nth,
                cases: place.of,
                subject: &name,
                estimate,
                done: round * subjects + turn + 1,
                of: subjects * (runs + 1),
            });
            if flow.is_break() {
                return (tallies, flow);
            }
        }
    }
    (tallies, ControlFlow::Continue(()))
}

/// Takes a sample. The seed depends on the case and the round only, so that every subject of a round gets the same
/// targets.
fn sample(work: &mut Work, case: &dyn Case, round: usize) -> Result<Sample, BenchError> {
    work(&mut Random::of(case.name(), round))
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
