//! What a run has found so far: samples and curves of the case that runs, by subject, and results of the cases that are
//! over.
//!
//! It is kept where another thread can read it at any time, even in the middle of a sample.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::case::Case;
use crate::error::BenchError;
use crate::results::curve::{self, Curve};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Absent, CaseResult, CurveResult, Params, Report};
use crate::results::stats::Summary;

/// Samples that differ by more than this factor give a warning.
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

    /// Everything, with what has been counted of the case that runs.
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

/// Also after a panic: whoever holds the lock leaves nothing half done.
pub(crate) fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What came of a sample.
pub(crate) enum Taken {
    /// The first round, which does not count: what the subject stands on, and what a reader must know of its figures.
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

    /// Adds what came of a sample of the subject at `place`. Gives its name, and the median so far of what the case is
    /// about.
    pub(crate) fn add(&mut self, place: usize, taken: Taken) -> (String, Option<f64>) {
        let tally = &mut self.list[place];
        tally.add(taken);
        (tally.name.clone(), tally.estimate(self.case))
    }

    /// Notes that no subject ran, and why, and forgets their samples.
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
    /// For each kind of curve, those of the rounds that were counted.
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
            // The samples before the error are no figure: only the error is listed.
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

/// Rounds to the nanosecond or better, whatever the unit: further digits are only rounding errors.
fn tidy(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
