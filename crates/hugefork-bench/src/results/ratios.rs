//! From results to ratios: hugefork beside the other subjects, case by case.

use crate::case::Case;
use crate::results::metric::{Better, Metric};
use crate::results::result::{CaseResult, Report};
use crate::subject::{Subject, linux_order};

/// How a subject stands beside hugefork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// It does the same service for the program, and may be the best of hugefork's rivals.
    Rival,
    /// It is worth knowing, but does not do the same service; the text says why.
    Aside(&'static str),
}

/// One subject beside hugefork.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    /// Its name.
    pub subject: String,
    /// Its median.
    pub median: f64,
    /// How many times better hugefork is; less than 1 if it is worse.
    pub ratio: f64,
    /// How it stands beside hugefork.
    pub rank: Rank,
}

/// hugefork in one case, with one set of parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The case.
    pub case: &'static dyn Case,
    /// hugefork's result.
    pub ours: CaseResult,
    /// The other subjects: the strongest rival first, then the other rivals, then those that stand aside.
    pub others: Vec<Beside>,
}

impl Comparison {
    /// The strongest rival.
    pub fn best(&self) -> Option<&Beside> {
        self.others.first().filter(|other| other.rank == Rank::Rival)
    }
}

/// Every comparison that `report` allows, in its order.
pub fn compare(report: &Report) -> Vec<Comparison> {
    let leads = |result: &&CaseResult| case_of(result).is_some_and(|case| case.lead_metric().name() == result.metric);
    report
        .results
        .iter()
        .filter(leads)
        .filter(|result| is_ours(&result.subject))
        .filter_map(|ours| {
            let case = case_of(ours)?;
            let same_work = |other: &&CaseResult| {
                other.case == ours.case
                    && other.metric == ours.metric
                    && other
                        .params
                        .iter()
                        .all(|(name, value)| HOW.contains(&name.as_str()) || ours.params.get(name) == Some(value))
            };
            let mut others: Vec<Beside> = report
                .results
                .iter()
                .filter(leads)
                .filter(same_work)
                .filter_map(|other| beside(case, ours, other))
                .collect();
            others.sort_by(|a, b| {
                let aside = |other: &Beside| other.rank != Rank::Rival;
                aside(a).cmp(&aside(b)).then(a.ratio.total_cmp(&b.ratio))
            });
            (!others.is_empty()).then(|| Comparison { case, ours: ours.clone(), others })
        })
        .collect()
}

/// The parameters that say how a subject did the work. The others say what the work was: results are compared if those
/// agree.
const HOW: [&str; 5] = ["backing", "kernel", "order", "near", "window"];

fn case_of(result: &CaseResult) -> Option<&'static dyn Case> {
    result.case.parse().ok()
}

fn beside(case: &dyn Case, ours: &CaseResult, other: &CaseResult) -> Option<Beside> {
    let rank = rank(case, &other.subject)?;
    let metric = case.lead_metric();
    Some(Beside {
        subject: other.subject.clone(),
        median: other.median,
        ratio: ratio(metric, ours.median, other.median),
        rank,
    })
}

/// Whether a subject is hugefork, in whatever way.
fn is_ours(subject: &str) -> bool {
    subject.parse().is_ok_and(|subject: Subject| subject.is_ours())
}

/// How many times better `ours` is than `theirs`.
pub fn ratio(metric: Metric, ours: f64, theirs: f64) -> f64 {
    match metric.better() {
        Better::Lower => theirs / ours,
        Better::Higher => ours / theirs,
    }
}

fn rank(case: &dyn Case, subject: &str) -> Option<Rank> {
    let subject: Subject = subject.parse().ok()?;
    match &subject {
        ours if ours.is_ours() => None,
        // Single kernels belong to the full list, except for the one that Linux uses.
        Subject::Kernel(kernel) if *kernel != linux_order() => None,
        other => Some(case.aside(other).map_or(Rank::Rival, Rank::Aside)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::anon_w_seq::AnonWSeq;
    use crate::cases::changes::Changes;
    use crate::cases::clear_copy::CLEAR;
    use crate::cases::lazy_free::LazyFree;
    use crate::cases::reset::Reset;
    use crate::cases::snapshot::Snapshot;
    use crate::cases::writer_latency::WriterLatency;
    use crate::cases::zero_fault::ZeroFault;
    use crate::host::Host;
    use crate::results::result::{Param, Params};

    fn result(case: &dyn Case, subject: &str, median: f64, params: &[(&str, &str)]) -> CaseResult {
        let metric = case.lead_metric();
        CaseResult {
            case: case.name().to_owned(),
            subject: subject.to_owned(),
            params: params.iter().map(|(k, v)| ((*k).to_owned(), Param::text(v))).collect::<Params>(),
            metric: metric.name().to_owned(),
            unit: metric.unit().to_owned(),
            samples: vec![median],
            median,
        }
    }

    fn report(results: Vec<CaseResult>) -> Report {
        let mut report = Report::new(String::new(), Host::default());
        report.results = results;
        report
    }

    #[test]
    fn the_strongest_rival_comes_first_and_asides_last() {
        let of = |subject, median| result(&ZeroFault, subject, median, &[("size", "1GiB")]);
        let found = compare(&report(vec![
            of("kernel-4k", 12.0),
            of("kernel-hugetlb", 81.0),
            of("hugefork", 27.0),
            of("kernel-thp", 82.0),
        ]));
        assert_eq!(found.len(), 1);
        let names: Vec<&str> = found[0].others.iter().map(|other| other.subject.as_str()).collect();
        assert_eq!(names, ["kernel-hugetlb", "kernel-thp", "kernel-4k"]);
        assert_eq!(found[0].best().unwrap().ratio, 3.0);
        assert!(found[0].others[2].ratio < 0.5);
    }

    #[test]
    fn more_throughput_is_better() {
        let of = |subject, median| result(&AnonWSeq, subject, median, &[]);
        let found = compare(&report(vec![of("hugefork", 30.0), of("kernel-thp", 20.0), of("kernel-4k", 5.0)]));
        assert_eq!(found[0].best().unwrap().subject, "kernel-thp");
        assert_eq!(found[0].best().unwrap().ratio, 1.5);
    }

    #[test]
    fn only_the_same_work_is_compared_and_each_backing_on_its_own() {
        let of = |subject, size, backing: &[(&str, &str)], median| {
            let mut params = vec![("size", size)];
            params.extend(backing);
            result(&Snapshot, subject, median, &params)
        };
        let found = compare(&report(vec![
            of("hugefork", "1GiB", &[("backing", "hugetlb")], 0.1),
            of("hugefork", "1GiB", &[("backing", "shmem-thp")], 0.2),
            of("fork-4k", "1GiB", &[], 20.0),
            of("fork-4k", "4GiB", &[], 80.0),
            of("memcpy", "1GiB", &[], 70.0),
        ]));
        assert_eq!(found.len(), 2);
        for comparison in &found {
            assert_eq!(comparison.others.len(), 2, "{comparison:?}");
            assert_eq!(comparison.best().unwrap().median, 20.0);
        }
    }

    #[test]
    fn what_was_changed_and_read_is_a_work_of_its_own() {
        let find = |subject, changed, median| result(&Changes, subject, median, &[("changed", changed)]);
        let back = |subject, read, median| result(&Reset, subject, median, &[("read", read)]);
        let found = compare(&report(vec![
            find("hugefork", "1%", 2.0),
            find("memcmp", "1%", 30.0),
            find("memcmp", "100%", 60.0),
            back("hugefork", "all", 10.0),
            back("memcpy", "all", 500.0),
            back("memcpy", "what is written", 100.0),
        ]));
        let ratios: Vec<Vec<f64>> = found.iter().map(|found| found.others.iter().map(|o| o.ratio).collect()).collect();
        assert_eq!(ratios, [[15.0], [50.0]]);
    }

    #[test]
    fn each_density_and_each_folio_size_is_a_work_of_its_own() {
        let writes = |subject, density, median| result(&WriterLatency, subject, median, &[("density", density)]);
        let mark = |subject, block, median| result(&LazyFree, subject, median, &[("block_size", block)]);
        let found = compare(&report(vec![
            writes("hugefork", "sparse", 60.0),
            writes("hugefork", "dense", 150.0),
            writes("fork-4k", "sparse", 12.0),
            writes("fork-4k", "dense", 600.0),
            writes("memcpy", "dense", 100.0),
            mark("hugefork", "4KiB", 10.0),
            mark("kernel", "4KiB", 50.0),
            mark("kernel", "2MiB", 0.3),
        ]));
        let ratios: Vec<f64> = found.iter().map(|comparison| comparison.best().unwrap().ratio).collect();
        assert_eq!(ratios, [0.2, 4.0, 5.0]);
        assert!(matches!(found[1].others[1].rank, Rank::Aside(_)), "memcpy has paid before");
    }

    #[test]
    fn each_stock_is_compared_on_its_own_and_not_with_the_others() {
        let of = |subject, median| result(&ZeroFault, subject, median, &[]);
        let found = compare(&report(vec![
            of("hugefork", 27.0),
            of("hugefork-zeroed", 8.0),
            of("hugefork-refilling", 9.0),
            of("kernel-thp", 80.0),
        ]));
        assert_eq!(found.len(), 3);
        for comparison in &found {
            assert_eq!(comparison.others.len(), 1, "{comparison:?}");
        }
        assert_eq!(found[1].ours.subject, "hugefork-zeroed");
        assert_eq!(found[1].best().unwrap().ratio, 10.0);
    }

    #[test]
    fn clear_is_compared_with_linux_and_libc_only() {
        let linux = linux_order().to_string();
        let of = |subject: &str, median| result(&CLEAR, subject, median, &[("use", "64KiB")]);
        let found = compare(&report(vec![
            of("hugefork", 24.0),
            of(&linux, 82.0),
            of("straight/portable", 40.0),
            of("memset", 40.0),
        ]));
        let names: Vec<&str> = found[0].others.iter().map(|other| other.subject.as_str()).collect();
        assert_eq!(names, ["memset", linux.as_str()]);
    }

    #[test]
    fn without_hugefork_or_without_others_there_is_nothing_to_compare() {
        let of = |subject| result(&AnonWSeq, subject, 1.0, &[]);
        assert!(compare(&report(vec![of("kernel-thp")])).is_empty());
        assert!(compare(&report(vec![of("hugefork")])).is_empty());
    }
}
