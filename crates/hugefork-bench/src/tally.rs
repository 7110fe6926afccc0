//! What comes of a run: samples and curves by subject, while a case runs, and results of the cases that are over.
//!
//! It is kept where another thread finds it at any time, in the midst of a sample too.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::case::Case;
use crate::curve::{self, Curve};
use crate::error::BenchError;
use crate::metric::{Measure, Metric};
use crate::result::{Absent, CaseResult, CurveResult, Params, Report};
use crate::stats::Summary;

/// Samples that differ by more than this factor are told about.
const UNSTEADY: f64 = 2.0;

/// What has been found so far.
#[derive(Debug)]
pub struct Kept {
    /// Of the cases that are over.
    pub(crate) report: Report,
    /// Of the one that is not.
    pub(crate) going: Option<Tallies>,
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

    /// The case that runs is over.
    pub(crate) fn is_over(&mut self) {
        if let Some(tallies) = self.going.take() {
            tallies.report(&mut self.report);
        }
    }
}

/// What is kept is whole between any two lines that hold it.
pub(crate) fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What came of a sample.
pub(crate) enum Taken {
    /// Of the first round, which does not count: what the work stands on, and what to keep in mind.
    WarmUp {
        params: Params,
        caveat: Option<String>,
    },
    Counted(Vec<Measure>, Vec<Curve>),
    Ended(BenchError),
}

/// What came of the subjects of a case.
#[derive(Debug)]
pub(crate) struct Tallies {
    case: &'static dyn Case,
    list: Vec<Tally>,
    not_run: Vec<Absent>,
}

impl Tallies {
    pub(crate) fn new(case: &'static dyn Case) -> Tallies {
        Tallies { case, list: Vec::new(), not_run: Vec::new() }
    }

    /// Adds a subject, which comes after those that were added before.
    pub(crate) fn enter(&mut self, subject: String, params: Params) {
        self.list.push(Tally::new(subject, params));
    }

    /// Notes a subject that cannot run.
    pub(crate) fn cannot_run(&mut self, subject: String, why: String) {
        self.not_run.push(Absent::new(self.case.name(), subject, why));
    }

    /// Adds what came of a sample of the subject at `place`. Gives its name, and the median so far of what the case is about.
    pub(crate) fn add(&mut self, place: usize, taken: Taken) -> (String, Option<f64>) {
        let tally = &mut self.list[place];
        tally.add(taken);
        (tally.name.clone(), tally.estimate(self.case))
    }

    /// Leaves only that nobody ran.
    pub(crate) fn leave_out(&mut self, why: &str) {
        let left = self.list.drain(..).map(|tally| Absent::new(self.case.name(), tally.name, why.to_owned()));
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
    fn estimate(&self, case: &dyn Case) -> Option<f64> {
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

    fn report(&self, case: &dyn Case, report: &mut Report) {
        if let Some(error) = &self.ended {
            // Half a subject is not a figure; it is listed by its error alone.
            let list = if error.is_lack() { &mut report.not_run } else { &mut report.failed };
            list.push(Absent::new(case.name(), self.name.clone(), error.to_string()));
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
