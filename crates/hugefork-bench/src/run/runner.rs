//! Runs a plan: subjects interleaved, round by round.
//!
//! ```text
//! round 0   A B C D    not counted: memory, caches and the host's pages warm up
//! round 1   B C D A    counted
//! round 2   C D A B    counted …
//! ```
//!
//! Each round runs every subject once, so that whatever else the machine does hits all alike. It starts with another
//! subject each time, so that none always runs after the same other one. What has been counted is [kept](Kept) where
//! another thread can read it at any time. The observer gets the results after every case.

use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hugefork::ByteSize;

use crate::case::Case;
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::random::Random;
use crate::memory::engine;
use crate::plan::budget::{self, Budget};
use crate::plan::job::Keep;
use crate::plan::{CasePlan, Plan};
use crate::results::result::{Report, TIME_BUDGET};
use crate::run::counters::{self, Counters};
use crate::run::load;
use crate::run::sample::{Entry, Work};
pub use crate::run::tally::Kept;
use crate::run::tally::{Taken, Tallies, lock};

/// How far a run has got.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress<'a> {
    /// The case that runs.
    pub case: &'static dyn Case,
    /// The number of that case, from 1.
    pub place: usize,
    /// How many cases there are.
    pub cases: usize,
    /// The subject that was sampled last.
    pub subject: &'a str,
    /// The median of its [`Case::lead_metric`] so far; none before anything was counted.
    pub estimate: Option<f64>,
    /// Samples taken in this case, including the warm-up's.
    pub done: usize,
    /// Samples that this case will take.
    pub of: usize,
}

/// Somebody who is told how a run goes.
pub trait Observer {
    /// A sample was taken.
    fn sampled(&mut self, progress: Progress<'_>);

    /// A case is over, or was stopped; `report` holds its results.
    ///
    /// # Errors
    /// An error ends the run: results that cannot be kept are not worth measuring.
    fn case_ended(&mut self, case: &dyn Case, report: &Report) -> Result<(), String>;
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
    let build = |plan: &CasePlan| plan.case.entries(&plan.job, &plan.subjects, host);
    let mut context =
        RunContext { kept, observer, build: &build, clock: &Instant::now, counters, place: 0, cases: plan.cases.len() };
    for (index, case) in plan.cases.iter().enumerate() {
        context.place = index + 1;
        let cases = (plan.cases.len() - index) as u32;
        match ends {
            Some((total, ends)) => fit_case(case, plan.runs, Budget { total, ends, cases }, &mut context),
            None => run_case(case, plan.runs, &mut context),
        }
        for warning in load.case_ended(case.case.name()) {
            lock(kept).report.warn(warning);
        }
        let report = lock(kept).report.clone();
        context.observer.case_ended(case.case, &report).map_err(BenchError::Results)?;
    }
    Ok(())
}

/// What a run has besides its plan: where results go, who is told, the clock and the counters.
struct RunContext<'a> {
    kept: &'a Mutex<Kept>,
    observer: &'a mut dyn Observer,
    /// Makes the subjects of a case.
    build: &'a dyn Fn(&CasePlan) -> Vec<Entry>,
    clock: &'a dyn Fn() -> Instant,
    counters: Counters,
    place: usize,
    cases: usize,
}

fn run_case(plan: &CasePlan, runs: usize, context: &mut RunContext<'_>) {
    let mut run = CaseRun::new(plan, context);
    run.rounds(0..=runs, runs, context);
    lock(context.kept).is_over();
}

/// Runs as much of a case as `budget` allows, and says what was cut.
fn fit_case(plan: &CasePlan, runs: usize, budget: Budget, context: &mut RunContext<'_>) {
    let (name, allowed) = (plan.case, format!("{} {}s", TIME_BUDGET, budget.total.as_secs_f64()));
    let clock = context.clock;
    let smallest = plan.smaller.last().map_or_else(|| plan.clone(), |size| plan.cut_to(*size));
    let mut run = CaseRun::new(&smallest, context);
    let share = budget.share(clock());
    let mut round = if share.is_zero() { None } else { Some(run.warm_up(runs, context)) };
    let sizes: Vec<usize> = [plan.job.size].into_iter().chain(plan.smaller.iter().copied()).collect();
    let size = round.map_or(smallest.job.size, |round| budget::size(&sizes, round, share, runs));
    let chosen = plan.cut_to(size);
    if size != smallest.job.size {
        drop(run);
        run = CaseRun::new(&chosen, context);
        round = Some(run.warm_up(runs, context));
    }
    // In the time that the warm-ups have left.
    let fit = |round| budget::rounds(round, budget.share(clock()), budget.left(clock()), runs);
    let Some(fit) = round.and_then(fit) else {
        let why = format!("{allowed}: {} rounds do not fit into what is left of it", budget::fewest(runs));
        let mut kept = lock(context.kept);
        kept.going.iter_mut().for_each(|tallies| tallies.leave_out(&why));
        return kept.is_over();
    };
    if size < plan.job.size {
        lock(context.kept).report.warn(format!(
            "{name}: {} instead of {} ({allowed})",
            ByteSize(size),
            ByteSize(plan.job.size)
        ));
    }
    if fit < runs {
        lock(context.kept).report.warn(format!("{name}: {fit} rounds instead of {runs} ({allowed})"));
    }
    run.rounds(1..=fit, fit, context);
    lock(context.kept).is_over();
}

/// A case that runs. Its samples are in [`Kept::going`], with its subjects in the same order.
struct CaseRun<'a> {
    plan: &'a CasePlan,
    running: Vec<Running>,
}

impl<'a> CaseRun<'a> {
    /// Makes the case the one that runs, in what is kept.
    fn new(plan: &'a CasePlan, context: &RunContext<'_>) -> CaseRun<'a> {
        let mut run = CaseRun { plan, running: Vec::new() };
        let mut tallies = Tallies::new(plan.case);
        for Entry { subject, params, keep, work } in (context.build)(plan) {
            match work {
                Ok(work) => {
                    run.running.push(Running { keep, work, has_ended: false });
                    tallies.enter(subject.to_string(), params);
                }
                Err(why) => tallies.cannot_run(subject.to_string(), why),
            }
        }
        lock(context.kept).going = Some(tallies);
        run
    }

    /// Takes the round that does not count and gives the time that it took.
    fn warm_up(&mut self, runs: usize, context: &mut RunContext<'_>) -> Duration {
        let start = (context.clock)();
        self.rounds(0..=0, runs, context);
        (context.clock)().saturating_duration_since(start)
    }

    /// Takes the rounds `which`, where 0 is the warm-up and `runs` is the last.
    fn rounds(&mut self, which: RangeInclusive<usize>, runs: usize, context: &mut RunContext<'_>) {
        let subjects = self.running.len();
        for round in which {
            for turn in 0..subjects {
                let place = (round + turn) % subjects;
                let subject = &mut self.running[place];
                if subject.has_ended {
                    continue;
                }
                let taken = subject.take(self.plan, round, &mut context.counters);
                let (name, estimate) =
                    lock(context.kept).going.as_mut().expect("put there with this run").add(place, taken);
                context.observer.sampled(Progress {
                    case: self.plan.case,
                    place: context.place,
                    cases: context.cases,
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
        // The seed is of case and round only: in a round, every subject gets the same targets.
        let mut targets = Random::of(plan.case.name(), round);
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

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
