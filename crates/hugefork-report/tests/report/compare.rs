//! A file of schema 1, as an early hugefork wrote it, and comparisons.

use std::path::Path;

use crate::common::{made_up, result};
use hugefork_report::{Better, Record, Row, Verdict, compare, load, report};
use serde_json::json;

fn golden() -> Record {
    load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/schema-1.json")).unwrap()
}

#[test]
fn schema_1_stays_readable() {
    let record = golden();
    assert_eq!(record.version, "0.1.0");
    let host = &record.host;
    assert_eq!((host.cpu.as_str(), host.cpus, host.kernel.as_str()), ("AMD EPYC", 2, "Linux 6.18.44"));
    assert_eq!((host.hugetlb[0].total, host.thp.shmem_enabled.as_str()), (1664, "advise"));
    assert_eq!(host.hypervisor.as_deref(), Some("KVM"));
    assert_eq!((record.entries.len(), record.not_run.len(), record.failed.len()), (6, 1, 0));
    assert!(record.interrupted && record.warnings.len() == 1);
    assert!(record.commit.is_empty() && record.date.is_empty());

    let first = &record.entries[0];
    let names = (first.case.as_str(), first.subject.as_str(), first.params["size"].as_str());
    assert_eq!(names, ("zero-fault", "hugefork", "1GiB"));
    assert_eq!((first.median, first.min(), first.max(), first.samples.len()), (33.25, 32.5, 34.5, 5));
    assert_eq!((first.unit.as_str(), first.better()), ("us", Better::Lower));
    let rate = &record.entries[3];
    assert_eq!((rate.params["tasks"].as_str(), rate.better()), ("2", Better::Higher));
    let bare = &record.entries[5];
    assert_eq!((bare.median, bare.min(), bare.max()), (134.5, 134.5, 134.5));
}

#[test]
fn an_old_file_can_be_compared_and_drawn() {
    let record = golden();
    let same = compare(&record, &record);
    assert_eq!(same.rows.len(), 6);
    assert!(same.rows.iter().all(|row| row.verdict.is_none() && row.ratio == Some(1.0)));
    let page = report(&[record]);
    for shown in ["33.2", "90.8", "kernel-thp", "stopped before the end", "varies 2.1-fold", "needs 512 free"] {
        assert!(page.contains(shown), "{shown}");
    }
}

/// A record of figures with five samples from 5 % below to 10 % above the median: subject, parameters, metric,
/// unit, median.
fn of(figures: &[(&str, &str, &str, f64)]) -> Record {
    let figure = |(subject, metric, unit, median): &(&str, &str, &str, f64)| {
        result("c", subject, json!({"size": "1GiB"}), metric, unit, *median)
    };
    made_up("x.json", "A CPU", figures.iter().map(figure).collect())
}

fn told(row: &Row) -> (String, Option<Verdict>) {
    (row.a.metric.clone(), row.verdict)
}

#[test]
fn less_time_and_more_throughput_are_better_and_the_largest_difference_comes_first() {
    let a = of(&[("s", "same", "us", 10.0), ("s", "latency", "us", 10.0), ("s", "rate", "GiB/s", 10.0)]);
    let b = of(&[("s", "same", "us", 10.5), ("s", "latency", "us", 20.0), ("s", "rate", "GiB/s", 50.0)]);
    let rows = |a, b| compare(a, b).rows.iter().map(told).collect::<Vec<_>>();
    let wanted = |latency, rate| {
        [("rate", Some(rate)), ("latency", Some(latency)), ("same", None)]
            .map(|(metric, verdict)| (metric.to_owned(), verdict))
    };
    assert_eq!(rows(&a, &b), wanted(Verdict::Worse, Verdict::Better));
    assert_eq!(rows(&b, &a), wanted(Verdict::Better, Verdict::Worse));
}

#[test]
fn a_limit_counts_from_the_worst_sample_of_one_to_the_best_of_the_other() {
    let worse = |a: f64, b: f64, unit, percent| {
        let (a, b) = (of(&[("s", "m", unit, a)]), of(&[("s", "m", unit, b)]));
        compare(&a, &b).worse_by_more_than(percent).len()
    };
    // 19 is 73 % more than 11.
    assert_eq!((worse(10.0, 20.0, "us", 70.0), worse(10.0, 20.0, "us", 75.0)), (1, 0));
    assert_eq!((worse(20.0, 10.0, "us", 0.0), worse(10.0, 10.5, "us", 0.0)), (0, 0));
    // 5.5 is 42 % less than 9.5.
    assert_eq!((worse(10.0, 5.0, "GiB/s", 40.0), worse(10.0, 5.0, "GiB/s", 45.0)), (1, 0));
}

#[test]
fn a_figure_of_one_file_alone_is_named_apart() {
    let a = of(&[("s", "x", "us", 1.0), ("s", "y", "us", 1.0), ("t", "x", "us", 1.0)]);
    let b = of(&[("t", "x", "us", 1.0), ("u", "x", "us", 1.0), ("s", "x", "ms", 1.0)]);
    let found = compare(&a, &b);
    assert_eq!((found.rows.len(), found.only_a.len(), found.only_b.len()), (1, 2, 2));
    let text = found.to_string();
    assert!(
        text.contains("only in A: 2 figures of c s\n") && text.contains("only in B: 2 figures of c s, c u\n"),
        "{text}"
    );
}

#[test]
fn figures_match_although_hugefork_chose_another_kernel_unless_the_file_has_several() {
    let file = |list: &[(&str, &str)]| {
        let figure = |(subject, kernel): &(&str, &str)| {
            result("c", subject, json!({"kernel": kernel, "size": "1GiB"}), "m", "us", 1.0)
        };
        made_up("x", "A CPU", list.iter().map(figure).collect())
    };
    let count = |a: &Record, b: &Record| {
        let found = compare(a, b);
        (found.rows.len(), found.only_a.len(), found.only_b.len())
    };
    let (one, other) = (file(&[("hugefork", "avx2"), ("k", "rep")]), file(&[("hugefork", "rep"), ("k", "avx2")]));
    assert_eq!(count(&one, &other), (1, 1, 1), "the kernel is what the subject k is");
    assert!(compare(&one, &other).to_string().contains("avx2 -> rep"));
    let several = file(&[("hugefork", "avx2"), ("hugefork", "sse2")]);
    assert_eq!(count(&several, &file(&[("hugefork", "rep")])), (0, 2, 1));
    assert_eq!(count(&file(&[("hugefork", "avx2"), ("hugefork", "rep")]), &file(&[("hugefork", "rep")])), (1, 1, 0));
}
