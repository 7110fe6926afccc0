//! Runs a plan: subjects interleaved, round by round.
//!
//! ```text
//! round 0   A B C D    not counted: memory, caches and the host's pages warm up
//! round 1   B C D A    counted
//! round 2   C D A B    counted …
//! ```
//!
//! Each round runs every subject once, so that whatever else the machine does falls on all alike; it starts with another
//! subject each time, so that nobody always runs in somebody's wake. What has been counted is [kept](Kept) where another
//! thread finds it at any time, in the midst of a sample too. Results are handed out after every case.

use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};
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
use crate::metric::{Measure, Metric};
use crate::plan::{CasePlan, Keep, Plan};
use crate::random::Random;
use crate::result::{Absent, CaseResult, CurveResult, Params, Report, TIME_BUDGET};
use crate::sample::{Entry, Work};
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

/// What has been found so far.
#[derive(Debug)]
pub struct Kept {
    /// Of the cases that are over.
    report: Report,
    /// Of the one that is not.
    going: Option<Tallies>,
}

impl Kept {
    /// Nothing yet; results will be added to `report`.
    pub fn new(report: Report) -> Mutex<Kept> {
        Mutex::new(Kept { report, going: None })
    }

    /// All of it, with what has been counted of the case that runs.
    pub fn report(&self) -> Report {
        let mut report = self.report.clone();
        if let Some(tallies) = &self.going {
            tallies.report(&mut report);
        }
        report
    }

    fn is_over(&mut self) {
        if let Some(tallies) = self.going.take() {
            tallies.report(&mut self.report);
        }
    }
}

/// What is kept is whole between any two lines that hold it.
fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `plan` and adds its results to `kept`.
///
/// # Errors
/// [`BenchError::Results`] if the observer fails. A subject that fails is noted in the report, and the others go on.
pub fn run(plan: &Plan, host: &Host, kept: &Mutex<Kept>, observer: &mut dyn Observer) -> Result<(), BenchError> {
    let (mut load, loaded) = load::Watch::begin();
    for warning in plan.warnings.iter().chain(&loaded) {
        lock(kept).report.warn(warning.clone());
    }
    let counters = Counters::open().unwrap_or_else(|why| {
        lock(kept).report.counters = Some(why);
        Counters::none()
    });
    let ends = plan.time_budget.map(|total| (total, Instant::now() + total));
    let build = |case: &CasePlan| Case::entries(case, &host.cpu_numbers);
    let mut watch =
        Watch { kept, observer, build: &build, clock: &Instant::now, counters, place: 0, cases: plan.cases.len() };
    for (index, case) in plan.cases.iter().enumerate() {
        watch.place = index + 1;
        let cases = (plan.cases.len() - index) as u32;
        match ends {
            Some((total, ends)) => fit_case(case, plan.runs, Budget { total, ends, cases }, &mut watch),
            None => run_case(case, plan.runs, &mut watch),
        }
        for warning in load.case_ended(case.case.name()) {
            lock(kept).report.warn(warning);
        }
        let report = lock(kept).report.clone();
        watch.observer.case_ended(case.case, &report).map_err(BenchError::Results)?;
    }
    Ok(())
}

/// Who watches a run.
struct Watch<'a> {
    kept: &'a Mutex<Kept>,
    observer: &'a mut dyn Observer,
    /// Makes the subjects of a case.
    build: &'a dyn Fn(&CasePlan) -> Vec<Entry>,
    clock: &'a dyn Fn() -> Instant,
    counters: Counters,
    place: usize,
    cases: usize,
}

fn run_case(plan: &CasePlan, runs: usize, watch: &mut Watch<'_>) {
    let mut run = CaseRun::new(plan, watch);
    run.rounds(0..=runs, runs, watch);
    lock(watch.kept).is_over();
}

/// Runs as much of a case as `budget` allows, and says what was cut.
fn fit_case(plan: &CasePlan, runs: usize, budget: Budget, watch: &mut Watch<'_>) {
    let (name, allowed) = (plan.case, format!("{} {}s", TIME_BUDGET, budget.total.as_secs_f64()));
    let clock = watch.clock;
    let smallest = plan.smaller.last().map_or_else(|| plan.clone(), |size| plan.cut_to(*size));
    let mut run = CaseRun::new(&smallest, watch);
    let share = budget.share(clock());
    let mut round = if share.is_zero() { None } else { Some(run.warm_up(runs, watch)) };
    let sizes: Vec<usize> = [plan.size].into_iter().chain(plan.smaller.iter().copied()).collect();
    let size = round.map_or(smallest.size, |round| budget::size(&sizes, round, share, runs));
    let chosen = plan.cut_to(size);
    if size != smallest.size {
        drop(run);
        run = CaseRun::new(&chosen, watch);
        round = Some(run.warm_up(runs, watch));
    }
    // Of what the warm-ups have left.
    let fit = |round| budget::rounds(round, budget.share(clock()), budget.left(clock()), runs);
    let Some(fit) = round.and_then(fit) else {
        let why = format!("{allowed}: {} rounds do not fit into what is left of it", budget::fewest(runs));
        let mut kept = lock(watch.kept);
        kept.going.iter_mut().for_each(|tallies| tallies.leave_out(&why));
        return kept.is_over();
    };
    if size < plan.size {
        lock(watch.kept).report.warn(format!(
            "{name}: {} instead of {} ({allowed})",
            ByteSize(size),
            ByteSize(plan.size)
        ));
    }
    if fit < runs {
        lock(watch.kept).report.warn(format!("{name}: {fit} rounds instead of {runs} ({allowed})"));
    }
    run.rounds(1..=fit, fit, watch);
    lock(watch.kept).is_over();
}

/// A case on its way; what comes of it is in [`Kept::going`], in the same order.
struct CaseRun<'a> {
    plan: &'a CasePlan,
    running: Vec<Running>,
}

impl<'a> CaseRun<'a> {
    /// Takes the place of the case before in what is kept.
    fn new(plan: &'a CasePlan, watch: &Watch<'_>) -> CaseRun<'a> {
        let mut run = CaseRun { plan, running: Vec::new() };
        let mut tallies = Tallies { case: plan.case, list: Vec::new(), not_run: Vec::new() };
        for Entry { subject, params, keep, work } in (watch.build)(plan) {
            match work {
                Ok(work) => {
                    run.running.push(Running { keep, work, has_ended: false });
                    tallies.list.push(Tally::new(subject.to_string(), params));
                }
                Err(why) => tallies.not_run.push(absent(plan.case, subject.to_string(), why)),
            }
        }
        lock(watch.kept).going = Some(tallies);
        run
    }

    /// Takes the round that does not count, of as many as will, and tells how long it took.
    fn warm_up(&mut self, runs: usize, watch: &mut Watch<'_>) -> Duration {
        let start = (watch.clock)();
        self.rounds(0..=0, runs, watch);
        (watch.clock)().saturating_duration_since(start)
    }

    /// Takes rounds `which` out of a warm-up and `runs`.
    fn rounds(&mut self, which: RangeInclusive<usize>, runs: usize, watch: &mut Watch<'_>) {
        let subjects = self.running.len();
        for round in which {
            for turn in 0..subjects {
                let place = (round + turn) % subjects;
                let subject = &mut self.running[place];
                if subject.has_ended {
                    continue;
                }
                let taken = subject.take(self.plan, round, &mut watch.counters);
                let (name, estimate) = {
                    let mut kept = lock(watch.kept);
                    let tallies = kept.going.as_mut().expect("put there with this run");
                    let tally = &mut tallies.list[place];
                    tally.add(taken);
                    (tally.name.clone(), tally.estimate(self.plan.case))
                };
                watch.observer.sampled(Progress {
                    case: self.plan.case,
                    place: watch.place,
                    cases: watch.cases,
                    subject: &name,
                    estimate,
                    done: round * subjects + turn + 1,
                    of: subjects * (runs + 1),
                });
            }
        }
    }
}

/// A subject as the runner sees it.
struct Running {
    keep: Keep,
    work: Box<dyn Work>,
    has_ended: bool,
}

/// What came of a sample.
enum Taken {
    /// Of the first round, which does not count: what the work stands on, and what to keep in mind.
    WarmUp {
        params: Params,
        caveat: Option<String>,
    },
    Counted(Vec<Measure>, Vec<Curve>),
    Ended(BenchError),
}

fn absent(case: Case, subject: String, why: String) -> Absent {
    Absent { case: case.name().to_owned(), subject, why }
}

impl Running {
    /// Takes a sample; round 0 warms up and does not count.
    fn take(&mut self, plan: &CasePlan, round: usize, counters: &mut Counters) -> Taken {
        self.sample(plan, round, counters).unwrap_or_else(|error| {
            self.work.release();
            self.has_ended = true;
            Taken::Ended(error)
        })
    }

    fn sample(&mut self, plan: &CasePlan, round: usize, counters: &mut Counters) -> Result<Taken, BenchError> {
        self.work.prepare()?;
        let stands_on = (round == 0).then(|| {
            let pool = self.work.pool().into_iter();
            (pool.flat_map(|(pool, kernel)| engine::granted(pool, kernel)).collect(), self.work.caveat())
        });
        // Of case and round only: in a round, every subject gets the same targets.
        let mut targets = Random::new(((plan.case as u64) << 32) + round as u64);
        let before = counters.read();
        let mut measures = self.work.sample(&mut targets)?;
        measures.extend(counters::between(&before, &counters.read()));
        if self.keep == Keep::Freed {
            self.work.release();
        }
        Ok(match stands_on {
            Some((params, caveat)) => Taken::WarmUp { params, caveat },
            None => Taken::Counted(measures, self.work.curves()),
        })
    }
}

/// What came of the subjects of a case.
#[derive(Debug)]
struct Tallies {
    case: Case,
    list: Vec<Tally>,
    not_run: Vec<Absent>,
}

impl Tallies {
    /// Leaves only that nobody ran.
    fn leave_out(&mut self, why: &str) {
        let left = self.list.drain(..).map(|tally| absent(self.case, tally.name, why.to_owned()));
        self.not_run.extend(left);
    }

    /// Adds what was found to `report`.
    fn report(&self, report: &mut Report) {
        report.not_run.extend(self.not_run.iter().cloned());
        for tally in &self.list {
            tally.report(self.case, report);
        }
    }
}

/// What came of one subject.
#[derive(Debug)]
struct Tally {
    name: String,
    params: Params,
    samples: Vec<(Metric, Vec<f64>)>,
    /// Each with the rounds that were counted.
    curves: Vec<Vec<Curve>>,
    caveat: Option<String>,
    ended: Option<BenchError>,
}

impl Tally {
    fn new(name: String, params: Params) -> Tally {
        Tally { name, params, samples: Vec::new(), curves: Vec::new(), caveat: None, ended: None }
    }

    fn add(&mut self, taken: Taken) {
        match taken {
            Taken::WarmUp { params, caveat } => {
                self.params.extend(params);
                self.caveat = caveat;
            }
            Taken::Counted(measures, curves) => {
                self.count(measures);
                self.count_curves(curves);
            }
            Taken::Ended(error) => self.ended = Some(error),
        }
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

    fn count_curves(&mut self, curves: Vec<Curve>) {
        for curve in curves {
            let same = |rounds: &&mut Vec<Curve>| (rounds[0].metric, rounds[0].over) == (curve.metric, curve.over);
            match self.curves.iter_mut().find(same) {
                Some(rounds) => rounds.push(curve),
                None => self.curves.push(vec![curve]),
            }
        }
    }

    fn report(&self, case: Case, report: &mut Report) {
        if let Some(error) = &self.ended {
            // Half a subject is not a figure; it is listed by its error alone.
            let list = if error.is_lack() { &mut report.not_run } else { &mut report.failed };
            list.push(absent(case, self.name.clone(), error.to_string()));
            return;
        }
        if let Some(caveat) = &self.caveat {
            report.warn(caveat.clone());
        }
        for (metric, samples) in &self.samples {
            let Some(summary) = Summary::of(samples) else { continue };
            if *metric == case.lead_metric() && summary.max > summary.min * UNSTEADY {
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
                samples: samples.clone(),
                median: summary.median,
            });
        }
        for rounds in &self.curves {
            let (at, median) = curve::medians(rounds).into_iter().map(|(at, value)| (at, tidy(value))).unzip();
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
