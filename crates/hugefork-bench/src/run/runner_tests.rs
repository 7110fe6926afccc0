//! Tests of the order of samples, of what counts, and of what becomes of a subject that fails.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use hugefork::Backing;

use super::*;
use crate::cases::snapshot::Snapshot;
use crate::plan::job::Scope;
use crate::plan::options::Options;
use crate::plan::writes::AskedWrites;
use crate::results::curve::{self, Curve};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params};
use crate::subject::Subject;

type Log = Rc<RefCell<Vec<String>>>;

/// Logs its calls; its sample's value is the number of samples before it.
struct Fake {
    name: &'static str,
    log: Log,
    taken: usize,
    fails_at: Option<usize>,
}

impl Fake {
    fn note(&self, what: &str) {
        self.log.borrow_mut().push(format!("{what} {}", self.name));
    }
}

impl Work for Fake {
    fn prepare(&mut self) -> Result<(), BenchError> {
        self.note("prepare");
        Ok(())
    }

    fn sample(&mut self, _: &mut Random) -> Result<Vec<Measure>, BenchError> {
        self.note("sample");
        if self.fails_at == Some(self.taken) {
            return Err(BenchError::WrongContents { offset: 0, found: 1, expected: 2 });
        }
        self.taken += 1;
        Ok(vec![Measure::new(Metric::PAUSE, (self.taken - 1) as f64)])
    }

    fn curves(&mut self) -> Vec<Curve> {
        let points = vec![(50.0, Some(self.taken as f64)), (100.0, None)];
        vec![Curve { metric: "latency", unit: "us", over: curve::Over::Percentile, points }]
    }

    fn release(&mut self) {
        self.note("release");
    }

    fn caveat(&self) -> Option<String> {
        (self.name == "thp").then(|| "mind the gap".to_owned())
    }
}

/// Reads what is kept after so many samples.
struct LookAfter<'a> {
    left: usize,
    kept: &'a Mutex<Kept>,
    seen: Option<Report>,
}

impl Observer for LookAfter<'_> {
    fn sampled(&mut self, _: Progress<'_>) {
        self.left = self.left.wrapping_sub(1);
        if self.left == 0 {
            self.seen = Some(lock(self.kept).report());
        }
    }

    fn case_ended(&mut self, _: &dyn Case, _: &Report) -> Result<(), String> {
        Ok(())
    }
}

fn entry(subject: Subject, name: &'static str, log: &Log, fails_at: Option<usize>) -> Entry {
    let work = Box::new(Fake { name, log: Rc::clone(log), taken: 0, fails_at });
    Entry { subject, params: Params::new(), keep: Keep::Held, work: Ok(work) }
}

/// A plan of one case, 1 GiB unless a size is given.
fn plan(size: Option<usize>, runs: usize) -> Plan {
    let options = Options {
        cases: vec![&Snapshot],
        scope: Scope::Full,
        sizes: size.into_iter().collect(),
        tasks: None,
        block_sizes: None,
        backings: vec![Backing::Auto],
        writes: AskedWrites::default(),
        runs,
        time_budget: None,
        subjects: None,
        command: None,
    };
    let host = Host { cpus: 1, memory_bytes: 64 << 30, available_bytes: 64 << 30, ..Host::default() };
    Plan::new(&options, &host).unwrap()
}

/// What is kept after so many samples, and in the end.
fn look_at_fakes(keep: Keep, entries: Vec<Entry>, runs: usize, samples: usize) -> (Option<Report>, Report) {
    let entries = RefCell::new(entries.into_iter().map(|entry| Entry { keep, ..entry }).collect());
    let kept = Kept::new(Report::new(String::new(), Host::default()));
    let observer = &mut LookAfter { left: samples, kept: &kept, seen: None };
    let (build, counters) = (|_: &CasePlan| entries.take(), Counters::none());
    let mut context =
        RunContext { kept: &kept, observer, build: &build, clock: &Instant::now, counters, place: 1, cases: 1 };
    run_case(&plan(Some(2 << 20), runs).cases[0], runs, &mut context);
    let seen = observer.seen.take();
    (seen, lock(&kept).report())
}

fn run_fakes(keep: Keep, entries: Vec<Entry>, runs: usize) -> Report {
    look_at_fakes(keep, entries, runs, usize::MAX).1
}

/// Each of its samples takes so long, by a clock that only samples move.
struct SlowWork {
    takes: Duration,
    now: Rc<Cell<Instant>>,
}

impl Work for SlowWork {
    fn prepare(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn sample(&mut self, _: &mut Random) -> Result<Vec<Measure>, BenchError> {
        self.now.set(self.now.get() + self.takes);
        Ok(vec![Measure::new(Metric::PAUSE, 1.0)])
    }

    fn release(&mut self) {}
}

/// Runs a case of `size` whose samples take `gib` for each GiB, within `total`.
fn run_in(total: Duration, size: Option<usize>, gib: Duration, runs: usize) -> Report {
    let kept = Kept::new(Report::new(String::new(), Host::default()));
    let observer = &mut LookAfter { left: usize::MAX, kept: &kept, seen: None };
    let begun = Instant::now();
    let now = Rc::new(Cell::new(begun));
    let build = |plan: &CasePlan| {
        let takes = gib.mul_f64(plan.job.size as f64 / (1u64 << 30) as f64);
        let work = Box::new(SlowWork { takes, now: Rc::clone(&now) });
        let params = Params::from([("size".to_owned(), Param::size(plan.job.size))]);
        vec![Entry { subject: Subject::Fork4k, params, keep: Keep::Held, work: Ok(work) }]
    };
    let (clock, counters) = (|| now.get(), Counters::none());
    let mut context = RunContext { kept: &kept, observer, build: &build, clock: &clock, counters, place: 1, cases: 1 };
    let budget = Budget { total, ends: begun + total, cases: 1 };
    fit_case(&plan(size, runs).cases[0], runs, budget, &mut context);
    lock(&kept).report()
}

#[test]
fn a_budget_cuts_sizes_first_then_rounds_then_the_case_and_says_so() {
    let ms = Duration::from_millis;
    // 6 rounds of 50 ms for each 128 MiB.
    let report = run_in(ms(900), None, ms(400), 5);
    assert_eq!(report.warnings, ["snapshot: 256MiB instead of 1GiB (--time-budget 0.9s)"]);
    assert_eq!(report.results[0].params["size"].to_string(), "256MiB");
    assert_eq!(report.results[0].samples.len(), 5);

    let report = run_in(ms(400), Some(1 << 30), ms(20), 1000);
    assert_eq!(report.warnings, ["snapshot: 19 rounds instead of 1000 (--time-budget 0.4s)"], "the size stays");
    assert_eq!(report.results[0].samples.len(), 19);

    let report = run_in(ms(20), Some(1 << 30), ms(20), 5);
    assert!(report.results.is_empty() && report.warnings.is_empty());
    assert_eq!(report.not_run[0].why, "--time-budget 0.02s: 5 rounds do not fit into what is left of it");
    assert!(report.not_run[0].lacked_time());
}

#[test]
fn subjects_take_turns_and_the_warm_up_does_not_count() {
    let log = Log::default();
    let entries = vec![entry(Subject::ForkThp, "thp", &log, None), entry(Subject::Fork4k, "4k", &log, None)];
    let report = run_fakes(Keep::Held, entries, 2);
    let samples: Vec<String> = log.borrow().iter().filter(|line| line.starts_with("sample")).cloned().collect();
    assert_eq!(samples, ["sample thp", "sample 4k", "sample 4k", "sample thp", "sample thp", "sample 4k"]);
    assert!(!log.borrow().iter().any(|line| line.starts_with("release")));
    assert_eq!(report.results.len(), 2);
    assert_eq!(report.results[0].samples, [1.0, 2.0]);
    assert_eq!(report.results[0].median, 1.5);
    assert_eq!(report.warnings[0], "mind the gap");
    assert!(!report.interrupted);
}

#[test]
fn unsteady_figures_are_told() {
    let log = Log::default();
    // Values from 1 to 2 differ by no more than the factor that is allowed; values from 1 to 3 do.
    let steady = run_fakes(Keep::Held, vec![entry(Subject::Fork4k, "4k", &log, None)], 2);
    assert!(steady.warnings.is_empty(), "{:?}", steady.warnings);
    let unsteady = run_fakes(Keep::Held, vec![entry(Subject::Fork4k, "4k", &log, None)], 3);
    assert!(unsteady.warnings[0].starts_with("snapshot fork-4k: pause varies 3.0-fold"), "{:?}", unsteady.warnings);
}

#[test]
fn memory_is_freed_after_each_sample_where_the_plan_says_so() {
    let log = Log::default();
    run_fakes(Keep::Freed, vec![entry(Subject::ForkThp, "thp", &log, None)], 1);
    let expected = ["prepare thp", "sample thp", "release thp"];
    assert_eq!(*log.borrow(), [expected, expected].concat());
}

#[test]
fn a_subject_that_fails_is_listed_and_the_others_go_on() {
    let log = Log::default();
    let entries = vec![
        entry(Subject::ForkThp, "thp", &log, Some(1)),
        entry(Subject::Fork4k, "4k", &log, None),
        Entry {
            subject: Subject::ForkHugetlb,
            params: Params::new(),
            keep: Keep::Held,
            work: Err("no pages".to_owned()),
        },
    ];
    let report = run_fakes(Keep::Held, entries, 3);
    assert_eq!(report.failed.len(), 1);
    assert_eq!(report.failed[0].subject, "fork-thp");
    assert!(report.failed[0].why.contains("wrong contents"));
    assert_eq!(report.not_run[0].why, "no pages");
    assert!(!report.not_run[0].lacked_time());
    assert_eq!(report.results.len(), 1);
    assert_eq!(report.results[0].samples.len(), 3);
    assert_eq!(log.borrow().iter().filter(|line| *line == "sample thp").count(), 2, "not asked again");
}

#[test]
fn what_has_been_counted_is_kept_at_any_time() {
    let log = Log::default();
    let entries = vec![entry(Subject::ForkThp, "thp", &log, None), entry(Subject::Fork4k, "4k", &log, None)];
    let (seen, report) = look_at_fakes(Keep::Held, entries, 5, 5);
    let counted = |report: &Report| report.results.iter().map(|result| result.samples.len()).collect::<Vec<_>>();
    assert_eq!(counted(&seen.unwrap()), [2, 1], "two rounds of the first, one of the second");
    assert_eq!(counted(&report), [5, 5]);
}

#[test]
fn curves_are_the_medians_of_counted_rounds() {
    let log = Log::default();
    let report = run_fakes(Keep::Held, vec![entry(Subject::ForkThp, "thp", &log, None)], 3);
    let [curve] = &report.curves[..] else { panic!("{:?}", report.curves) };
    assert_eq!((curve.case.as_str(), curve.subject.as_str()), ("snapshot", "fork-thp"));
    assert_eq!((curve.metric.as_str(), curve.unit.as_str(), curve.over.as_str()), ("latency", "us", "percentile"));
    // The warm-up took the first sample; the counted ones are the second to the fourth.
    assert_eq!((curve.rounds, &curve.at[..], &curve.median[..]), (3, &[50.0][..], &[3.0][..]));
    let failed = run_fakes(Keep::Held, vec![entry(Subject::ForkThp, "thp", &log, Some(2))], 3);
    assert!(failed.curves.is_empty() && failed.failed.len() == 1, "half a subject is not a figure");
}
