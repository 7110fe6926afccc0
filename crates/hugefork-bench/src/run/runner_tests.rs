//! Tests of the order of samples, of the rounds that are counted, and of subjects that fail.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::cases::snapshot::Snapshot;
use crate::memory::folios::Settings;
use crate::plan::options::Options;
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params};
use crate::subject::Subject;

type Log = Rc<RefCell<Vec<String>>>;

/// Samples done, samples in all, and the estimate.
type Told = Vec<(usize, usize, Option<f64>)>;

/// An entry that logs its samples; the value of a sample is the number of samples before it. `fails_at` is the number
/// of the sample that fails.
fn fake(subject: Subject, log: &Log, fails_at: Option<usize>) -> Entry {
    let (log, name) = (Rc::clone(log), subject.to_string());
    let mut taken = 0;
    let work: Work = Box::new(move |_| {
        log.borrow_mut().push(name.clone());
        if fails_at == Some(taken) {
            return Err(BenchError::WrongContents { offset: 0, found: 1, expected: 2 });
        }
        taken += 1;
        Ok(Sample {
            measures: Measure::all([(Snapshot.lead_metric(), (taken - 1) as f64), (Metric::CPU, 7.0)]),
            found: Params::from([("backing".to_owned(), Param::text("sand"))]),
            caveat: Some("mind the gap".to_owned()),
        })
    });
    Entry { subject, params: Params::new(), work: Ok(work) }
}

/// An observer that notes the progress, and ends the run after a given number of samples.
struct Watcher {
    stop_after: usize,
    told: Told,
}

impl Observer for Watcher {
    fn sampled(&mut self, progress: Progress<'_>) -> ControlFlow<()> {
        self.told.push((progress.done, progress.of, progress.estimate));
        if self.told.len() == self.stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn case_ended(&mut self, _: &dyn Case, _: &Report) -> Result<(), String> {
        Ok(())
    }
}

fn plan() -> CasePlan {
    let host = Host { cpus: 2, memory_bytes: 8 << 30, available_bytes: 8 << 30, ..Host::default() };
    Plan::new(&Options::new(vec![&Snapshot]), &host).unwrap().cases.remove(0)
}

/// Runs two rounds of these entries. Returns the noted progress, and the report.
fn ran(entries: Vec<Entry>, stop_after: usize) -> (Told, Report) {
    let mut watcher = Watcher { stop_after, told: Vec::new() };
    let (tallies, flow) = run_case(&plan(), entries, 2, Place { nth: 1, of: 1 }, &mut watcher);
    assert_eq!(flow.is_break(), stop_after > 0);
    let mut report = Report::new(String::new(), Host::default());
    tallies.report(&mut report);
    (watcher.told, report)
}

#[test]
fn rounds_rotate_and_the_first_does_not_count() {
    let log = Log::default();
    let entries = [Subject::Hugefork, Subject::ForkThp, Subject::Memcpy].map(|subject| fake(subject, &log, None));
    let (told, report) = ran(entries.into(), 0);
    let (a, b, c) = ("hugefork", "fork-thp", "memcpy");
    assert_eq!(*log.borrow(), [a, b, c, b, c, a, c, a, b]);
    assert_eq!(told.first(), Some(&(1, 9, None)));
    assert_eq!(told.last(), Some(&(9, 9, Some(1.5))));
    let calls: Vec<&Vec<f64>> =
        report.results.iter().filter(|result| result.metric == "call").map(|result| &result.samples).collect();
    assert_eq!(calls, [&[1.0, 2.0], &[1.0, 2.0], &[1.0, 2.0]]);
    assert_eq!(report.results[0].params["backing"], Param::text("sand"), "found in the warm-up");
    assert_eq!(report.warnings, ["mind the gap"]);
}

#[test]
fn a_subject_that_fails_is_listed_and_the_others_go_on() {
    let log = Log::default();
    let mut absent = fake(Subject::ForkHugetlb, &log, None);
    absent.work = Err("no pages".to_owned());
    let entries = vec![fake(Subject::Hugefork, &log, None), fake(Subject::ForkThp, &log, Some(1)), absent];
    let (_, report) = ran(entries, 0);
    assert_eq!(log.borrow().iter().filter(|name| *name == "fork-thp").count(), 2, "not again after it failed");
    assert!(report.results.iter().all(|result| result.subject == "hugefork"), "{report:?}");
    assert_eq!((report.failed[0].subject.as_str(), report.failed.len()), ("fork-thp", 1));
    assert_eq!((report.not_run[0].subject.as_str(), report.not_run[0].why.as_str()), ("fork-hugetlb", "no pages"));
}

#[test]
fn a_run_that_is_stopped_keeps_its_counted_samples() {
    let log = Log::default();
    let entries = vec![fake(Subject::Hugefork, &log, None), fake(Subject::ForkThp, &log, None)];
    // The warm-up, and one sample that counts.
    let (_, report) = ran(entries, 3);
    assert_eq!(log.borrow().len(), 3);
    assert!(report.results.iter().all(|result| result.subject == "fork-thp"), "{report:?}");
    assert_eq!(report.results.iter().map(|result| result.samples.len()).collect::<Vec<_>>(), [1, 1], "{report:?}");
}

#[test]
fn every_subject_of_a_round_gets_the_same_targets_and_rounds_differ() {
    let draws = Rc::new(RefCell::new(Vec::new()));
    let entry = |subject| {
        let draws = Rc::clone(&draws);
        let work: Work = Box::new(move |targets| {
            draws.borrow_mut().push(targets.below(1 << 40));
            Ok(Sample::of(Vec::new()))
        });
        Entry { subject, params: Params::new(), work: Ok(work) }
    };
    ran(vec![entry(Subject::Hugefork), entry(Subject::ForkThp)], 0);
    let draws = draws.borrow();
    assert!(draws.chunks(2).all(|round| round[0] == round[1]), "{draws:?}");
    assert!(draws[0] != draws[2] && draws[2] != draws[4], "{draws:?}");
}

#[test]
fn an_observer_that_fails_ends_the_run() {
    struct Full;
    impl Observer for Full {
        fn sampled(&mut self, _: Progress<'_>) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }

        fn case_ended(&mut self, _: &dyn Case, _: &Report) -> Result<(), String> {
            Err("the disk is full".to_owned())
        }
    }
    let mut options = Options::new(vec![&Snapshot, &crate::cases::clear_copy::COPY]);
    (options.sizes, options.subjects, options.runs) = (vec![2 << 20], Some(vec![Subject::Memcpy]), 1);
    let host = Host::read();
    let mut plan = Plan::new(&options, &host).unwrap();
    plan.settle(&host, Settings::Fixed);
    let mut report = Report::new(String::new(), Host::default());
    let error = run(&plan, &host, &mut report, &mut Full).unwrap_err();
    assert_eq!(error.to_string(), "the disk is full");
    assert!(report.results.iter().all(|result| result.case == "snapshot"));
}
