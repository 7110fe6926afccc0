//! The findings of a case so far: its samples, by subject.

use crate::case::Case;
use crate::error::BenchError;
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Absent, CaseResult, Params, Report};
use crate::results::stats::Summary;
use crate::run::sample::Sample;

/// Samples that differ by more than this factor give a warning.
const UNSTEADY: f64 = 2.0;

/// The findings of a case, by subject.
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

    /// Adds a subject after those that were added before.
    pub(crate) fn enter(&mut self, subject: String, params: Params) {
        self.list.push(Tally::new(subject, params));
    }

    /// Notes a subject that cannot run.
    pub(crate) fn cannot_run(&mut self, subject: String, why: String) {
        self.not_run.push(Absent::new(self.case.name(), subject, why));
    }

    /// Adds a sample of the subject at `place`, or the error that ended its samples. From the sample of a warm-up, only
    /// the backing of the subject is kept. Returns the subject's name, and the median of the case's leading metric so
    /// far.
    pub(crate) fn add(
        &mut self,
        place: usize,
        is_warm_up: bool,
        taken: Result<Sample, BenchError>,
    ) -> (String, Option<f64>) {
        let tally = &mut self.list[place];
        match taken {
            Ok(sample) if is_warm_up => {
                tally.params.extend(sample.found);
                tally.caveat = sample.caveat;
            }
            Ok(sample) => tally.count(sample.measures),
            Err(error) => tally.ended = Some(error),
        }
        (tally.name.clone(), tally.estimate(self.case))
    }

    /// Adds the findings to `report`.
    pub(crate) fn report(&self, report: &mut Report) {
        report.not_run.extend(self.not_run.iter().cloned());
        for tally in &self.list {
            tally.report(self.case, report);
        }
    }
}

/// The findings of one subject.
#[derive(Debug)]
struct Tally {
    name: String,
    params: Params,
    samples: Vec<(Metric, Vec<f64>)>,
    caveat: Option<String>,
    ended: Option<BenchError>,
}

impl Tally {
    fn new(name: String, params: Params) -> Tally {
        Tally { name, params, samples: Vec::new(), caveat: None, ended: None }
    }

    /// The median of the case's leading metric so far.
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

    fn report(&self, case: &dyn Case, report: &mut Report) {
        if let Some(error) = &self.ended {
            // The samples before the error give no result: the report lists only the error.
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
    }
}

/// Rounds a value to the nanosecond or better in every unit: further digits are only rounding errors.
fn tidy(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
