//! Computes ratios from results: for each figure, hugefork's result beside that of its best rival.

use crate::case::Case;
use crate::results::metric::Metric;
use crate::results::result::{CaseResult, Report};
use crate::subject::{Subject, linux_order};

/// A ratio between this value and its inverse counts as equal: samples vary by more.
const EQUAL: f64 = 0.95;

/// hugefork beside its best rival in one figure: one metric of one work of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The case.
    pub case: &'static dyn Case,
    /// The metric.
    pub metric: Metric,
    /// hugefork's result.
    pub ours: CaseResult,
    /// The best rival's name. Each figure has a best rival of its own.
    pub rival: String,
    /// The best rival's median.
    pub theirs: f64,
    /// How many times better hugefork is than the rival; less than 1 if hugefork is worse.
    pub ratio: f64,
}

impl Comparison {
    /// Whether hugefork is worse than the rival by more than samples vary.
    pub fn is_loss(&self) -> bool {
        self.ratio < EQUAL
    }
}

/// Every comparison that `report` allows, in the order of its results.
pub fn compare(report: &Report) -> Vec<Comparison> {
    report.results.iter().filter_map(|ours| beside(ours, report)).collect()
}

/// Parameters that describe how a subject did the work. The other parameters describe the work itself, so two results
/// are compared if these other parameters agree.
const HOW: [&str; 5] = ["backing", "kernel", "order", "near", "window"];

/// A result of hugefork with its defaults, beside that of its best rival.
fn beside(ours: &CaseResult, report: &Report) -> Option<Comparison> {
    let case: &dyn Case = ours.case.parse().ok()?;
    let metric = *case.facts().metrics.iter().find(|metric| metric.name() == ours.metric)?;
    if ours.subject != Subject::Hugefork.to_string() {
        return None;
    }
    let is_same_work = |other: &&CaseResult| {
        let mut params = other.params.iter();
        let agrees = params.all(|(name, value)| HOW.contains(&name.as_str()) || ours.params.get(name) == Some(value));
        other.case == ours.case && other.metric == ours.metric && agrees && is_rival(&other.subject)
    };
    let rivals = report.results.iter().filter(is_same_work);
    let ratios = rivals.filter_map(|other| Some((metric.ratio(ours.median, other.median)?, other)));
    let (ratio, best) = ratios.min_by(|(one, _), (other, _)| one.total_cmp(other))?;
    Some(Comparison { case, metric, ours: ours.clone(), rival: best.subject.clone(), theirs: best.median, ratio })
}

/// Whether a subject is a rival. Of the single kernels, only the one with the order of Linux is a rival.
fn is_rival(subject: &str) -> bool {
    match subject.parse() {
        Ok(Subject::Kernel(kernel)) => kernel == linux_order(),
        Ok(subject) => !subject.is_ours(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::anon_w_seq::AnonWSeq;
    use crate::cases::clear_copy::CLEAR;
    use crate::cases::first_touch::FirstTouch;
    use crate::cases::snapshot::Snapshot;
    use crate::host::Host;
    use crate::results::result::{Param, Params};

    fn result(case: &dyn Case, subject: &str, metric: &str, median: f64, params: &[(&str, &str)]) -> CaseResult {
        CaseResult {
            case: case.name().to_owned(),
            subject: subject.to_owned(),
            params: params.iter().map(|(k, v)| ((*k).to_owned(), Param::text(v))).collect::<Params>(),
            metric: metric.to_owned(),
            unit: "us".to_owned(),
            samples: vec![median],
            median,
        }
    }

    fn ratios(results: Vec<CaseResult>) -> Vec<(String, f64)> {
        let mut report = Report::new(String::new(), Host::default());
        report.results = results;
        compare(&report).into_iter().map(|found| (found.rival, found.ratio)).collect()
    }

    #[test]
    fn each_metric_has_its_own_best_rival() {
        let of = |subject, metric, median| result(&FirstTouch, subject, metric, median, &[("memory", "fresh")]);
        let found = ratios(vec![
            of("hugefork", "pass", 10.0),
            of("hugefork", "p99", 90.0),
            of("hugefork-upfront", "pass", 2.0),
            of("kernel-thp", "pass", 20.0),
            of("kernel-thp", "p99", 30.0),
            of("kernel-hugetlb", "pass", 15.0),
            of("kernel-hugetlb", "p99", 45.0),
        ]);
        assert_eq!(found, [("kernel-hugetlb".to_owned(), 1.5), ("kernel-thp".to_owned(), 30.0 / 90.0)]);
    }

    #[test]
    fn more_throughput_is_better() {
        let of = |subject, median| result(&AnonWSeq, subject, "throughput", median, &[]);
        let found = ratios(vec![of("hugefork", 30.0), of("kernel-thp", 20.0), of("kernel-4k", 5.0)]);
        assert_eq!(found, [("kernel-thp".to_owned(), 1.5)]);
    }

    #[test]
    fn only_the_same_work_is_compared_whatever_the_backing() {
        let of = |subject, held, median| result(&Snapshot, subject, "call", median, &[("held", held)]);
        let mut ours = of("hugefork", "10", 0.5);
        ours.params.insert("backing".to_owned(), Param::text("shmem-thp"));
        let found = ratios(vec![ours, of("fork-4k", "10", 20.0), of("fork-4k", "0", 0.1), of("nobody", "10", 0.1)]);
        assert_eq!(found, [("fork-4k".to_owned(), 40.0)]);
    }

    #[test]
    fn clear_is_compared_with_linux_and_libc_only() {
        let linux = linux_order().to_string();
        let of = |subject: &str, median| result(&CLEAR, subject, "total", median, &[("use", "64KiB")]);
        let found =
            ratios(vec![of("hugefork", 24.0), of(&linux, 82.0), of("straight/portable", 10.0), of("memset", 48.0)]);
        assert_eq!(found, [("memset".to_owned(), 2.0)]);
    }

    #[test]
    fn without_hugefork_or_without_rivals_there_is_nothing_to_compare() {
        let of = |subject| result(&AnonWSeq, subject, "throughput", 1.0, &[]);
        assert!(ratios(vec![of("kernel-thp")]).is_empty());
        assert!(ratios(vec![of("hugefork")]).is_empty());
    }
}
