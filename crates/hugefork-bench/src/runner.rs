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

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hugefork::ByteSize;

use crate::budget::{self, Budget};
use crate::cases::Case;
use crate::counters::{self, Counters};
use crate::curve::{self, Curve};
use crate::engine;
use crate::error::BenchError;
use crate::host::Host;
use crate::load;
use crate::plan::{CasePlan, Keep, Plan};
use crate::random::Random;
use crate::result::{Absent, CaseResult, CurveResult, Params, Report};
use crate::sample::{Entry, Measure, Metric, Work};
use crate::stats::Summary;

/// Samples that differ by more than this factor are told about.
const UNSTEADY: f64 = 2.0;

/// Where a run has got to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress<'a> {
    /// The case that runs.
    pub case: Case,
    /// Which one that is, from 1.
    pub place: usize,
    /// How many there are.
    pub cases: usize,
    /// The subject that was sampled last.
    pub subject: &'a str,
    /// The median of its [`Case::lead_metric`] so far; none before anything was counted.
    pub estimate: Option<f64>,
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
    let (mut load, loaded) = load::Watch::begin();
    for warning in plan.warnings.iter().chain(&loaded) {
        report.warn(warning.clone());
    }
    let counters = Counters::open().unwrap_or_else(|why| {
        report.counters = Some(why);
        Counters::none()
    });
    let ends = plan.time_budget.map(|total| (total, Instant::now() + total));
    let build = |case: &CasePlan| Case::entries(case, &host.cpu_numbers);
    let mut watch = Watch { stop, observer, build: &build, counters, place: 0, cases: plan.cases.len() };
    for (index, case) in plan.cases.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            report.interrupted = true;
            break;
        }
        watch.place = index + 1;
        let cases = (plan.cases.len() - index) as u32;
        match ends {
            Some((total, ends)) => fit_case(case, plan.runs, Budget { total, ends, cases }, report, &mut watch),
            None => run_case(case, plan.runs, report, &mut watch),
        }
        for warning in load.case_ended(case.case.name()) {
            report.warn(warning);
        }
        watch.observer.case_ended(case.case, report).map_err(BenchError::Results)?;
    }
    Ok(())
}

/// Who watches a run, and who may stop it.
struct Watch<'a> {
    stop: &'a AtomicBool,
    observer: &'a mut dyn Observer,
    /// Makes the subjects of a case.
    build: &'a dyn Fn(&CasePlan) -> Vec<Entry>,
    counters: Counters,
    place: usize,
    cases: usize,
}

fn run_case(plan: &CasePlan, runs: usize, report: &mut Report, watch: &mut Watch<'_>) {
    let mut run = CaseRun::new(plan, watch);
    run.rounds(0..=runs, runs, watch);
    run.report(report);
}

/// Runs as much of a case as `budget` allows, and says what was cut.
fn fit_case(plan: &CasePlan, runs: usize, budget: Budget, report: &mut Report, watch: &mut Watch<'_>) {
    let (name, allowed) = (plan.case, format!("--time-budget {}s", budget.total.as_secs_f64()));
    let smallest = plan.smaller.last().map_or_else(|| plan.clone(), |size| plan.cut_to(*size));
    let mut run = CaseRun::new(&smallest, watch);
    let share = budget.share();
    let mut round = if share.is_zero() { None } else { Some(run.warm_up(runs, watch)) };
    let sizes: Vec<usize> = [plan.size].into_iter().chain(plan.smaller.iter().copied()).collect();
    let size = round.map_or(smallest.size, |round| budget::size(&sizes, round, share, runs));
    let chosen = plan.cut_to(size);
    if size != smallest.size && !run.stopped {
        drop(run);
        run = CaseRun::new(&chosen, watch);
        round = Some(run.warm_up(runs, watch));
    }
    // Of what the warm-ups have left.
    let Some(fit) = round.and_then(|round| budget::rounds(round, budget.share(), budget.left(), runs)) else {
        let why = format!("{allowed}: {} rounds do not fit into what is left of it", budget::fewest(runs));
        return run.leave_out(&why, report);
    };
    if size < plan.size {
        report.warn(format!("{name}: {} instead of {} ({allowed})", ByteSize(size), ByteSize(plan.size)));
    }
    if fit < runs {
        report.warn(format!("{name}: {fit} rounds instead of {runs} ({allowed})"));
    }
    run.rounds(1..=fit, fit, watch);
    run.report(report);
}

/// A case on its way.
struct CaseRun<'a> {
    plan: &'a CasePlan,
    running: Vec<Running>,
    not_run: Vec<Absent>,
    stopped: bool,
}

impl<'a> CaseRun<'a> {
    fn new(plan: &'a CasePlan, watch: &Watch<'_>) -> CaseRun<'a> {
        let mut run = CaseRun { plan, running: Vec::new(), not_run: Vec::new(), stopped: false };
        for Entry { subject, params, keep, work } in (watch.build)(plan) {
            match work {
                Ok(work) => run.running.push(Running {
                    name: subject.to_string(),
                    params,
                    keep,
                    work,
                    samples: Vec::new(),
                    curves: Vec::new(),
                    caveat: None,
                    ended: None,
                }),
                Err(why) => run.not_run.push(absent(plan.case, subject.to_string(), why)),
            }
        }
        run
    }

    /// Takes the round that does not count, of as many as will, and tells how long it took.
    fn warm_up(&mut self, runs: usize, watch: &mut Watch<'_>) -> Duration {
        let start = Instant::now();
        self.rounds(0..=0, runs, watch);
        start.elapsed()
    }

    /// Takes rounds `which` out of a warm-up and `runs`.
    fn rounds(&mut self, which: RangeInclusive<usize>, runs: usize, watch: &mut Watch<'_>) {
        let subjects = self.running.len();
        for round in which {
            for turn in 0..subjects {
                self.stopped |= watch.stop.load(Ordering::Relaxed);
                if self.stopped {
                    return;
                }
                let subject = &mut self.running[(round + turn) % subjects];
                if subject.ended.is_some() {
                    continue;
                }
                subject.take(self.plan, round, &mut watch.counters);
                watch.observer.sampled(Progress {
                    case: self.plan.case,
                    place: watch.place,
                    cases: watch.cases,
                    subject: &subject.name,
                    estimate: subject.estimate(self.plan.case),
                    done: round * subjects + turn + 1,
                    of: subjects * (runs + 1),
                });
            }
        }
    }

    /// Adds what was found to `report`.
    fn report(self, report: &mut Report) {
        report.interrupted |= self.stopped;
        report.not_run.extend(self.not_run);
        for subject in self.running {
            subject.report(self.plan.case, report);
        }
    }

    /// Adds to `report` only that nobody ran.
    fn leave_out(mut self, why: &str, report: &mut Report) {
        let left = self.running.drain(..).map(|subject| absent(self.plan.case, subject.name, why.to_owned()));
        self.not_run.extend(left);
        self.report(report);
    }
}

/// A subject as the runner sees it.
struct Running {
    name: String,
    params: Params,
    keep: Keep,
    work: Box<dyn Work>,
    samples: Vec<(Metric, Vec<f64>)>,
    /// Each with the rounds that were counted.
    curves: Vec<Vec<Curve>>,
    caveat: Option<String>,
    ended: Option<BenchError>,
}

fn absent(case: Case, subject: String, why: String) -> Absent {
    Absent { case: case.name().to_owned(), subject, why }
}

impl Running {
    /// Takes a sample; round 0 warms up and does not count.
    fn take(&mut self, plan: &CasePlan, round: usize, counters: &mut Counters) {
        match self.sample(plan, round, counters) {
            Ok(measures) if round > 0 => {
                self.count(measures);
                self.count_curves();
            }
            Ok(_) => {}
            Err(error) => {
                self.work.release();
                self.ended = Some(error);
            }
        }
    }

    fn sample(&mut self, plan: &CasePlan, round: usize, counters: &mut Counters) -> Result<Vec<Measure>, BenchError> {
        self.work.prepare()?;
        if round == 0 {
            self.params.extend(self.work.pool().into_iter().flat_map(|(pool, kernel)| engine::granted(pool, kernel)));
            self.caveat = self.work.caveat();
        }
        // Of case and round only: in a round, every subject gets the same targets.
        let mut targets = Random::new(((plan.case as u64) << 32) + round as u64);
        let before = counters.read();
        let mut measures = self.work.sample(&mut targets)?;
        measures.extend(counters::between(&before, &counters.read()));
        if self.keep == Keep::Freed {
            self.work.release();
        }
        Ok(measures)
    }

    /// The median so far of what the case is about.
    fn estimate(&self, case: Case) -> Option<f64> {
        let (_, samples) = self.samples.iter().find(|(metric, _)| *metric == case.lead_metric())?;
        Summary::of(samples).map(|summary| summary.median)
    }

    fn count(&mut self, measures: Vec<Measure>) {
        for Measure { metric, value } in measures {
            let value = tidy(value);
            match self.samples.iter_mut().find(|(known, _)| *known == metric) {
                Some((_, samples)) => samples.push(value),
                None => self.samples.push((metric, vec![value])),
            }
        }
    }

    fn count_curves(&mut self) {
        for curve in self.work.curves() {
            let same = |rounds: &&mut Vec<Curve>| (rounds[0].metric, rounds[0].over) == (curve.metric, curve.over);
            match self.curves.iter_mut().find(same) {
                Some(rounds) => rounds.push(curve),
                None => self.curves.push(vec![curve]),
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
        for rounds in self.curves {
            let (at, median) = curve::medians(&rounds).into_iter().map(|(at, value)| (at, tidy(value))).unzip();
            report.curves.push(CurveResult {
                case: case.name().to_owned(),
                subject: self.name.clone(),
                params: self.params.clone(),
                metric: rounds[0].metric.to_owned(),
                unit: rounds[0].unit.to_owned(),
                over: rounds[0].over.name().to_owned(),
                rounds: rounds.len(),
                at,
                median,
            });
        }
    }
}

/// To the nanosecond or better, whatever the unit: the digits behind that are the arithmetic's.
fn tidy(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
