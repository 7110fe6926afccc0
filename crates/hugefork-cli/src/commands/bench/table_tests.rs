//! Tests of what a report looks like to people.

use hugefork_bench::Host;
use hugefork_bench::cases::anon_w_seq::AnonWSeq;
use hugefork_bench::cases::clear_copy::CLEAR;
use hugefork_bench::cases::lazy_free::LazyFree;
use hugefork_bench::cases::zero_fault::ZeroFault;
use hugefork_bench::result::Param;

use super::*;

fn result(case: &dyn Case, subject: &str, median: f64, params: &[(&str, &str)]) -> CaseResult {
    let metric = case.lead_metric();
    CaseResult {
        case: case.name().to_owned(),
        subject: subject.to_owned(),
        params: params.iter().map(|(name, value)| ((*name).to_owned(), Param::text(value))).collect(),
        metric: metric.name().to_owned(),
        unit: metric.unit().to_owned(),
        samples: vec![median * 0.9, median, median * 1.2],
        median,
    }
}

fn report() -> Report {
    let mut report = Report::new("hugefork bench".to_owned(), Host { cpu: "A CPU".to_owned(), ..Host::default() });
    let shared = ("size", "512MiB");
    report.results = vec![
        result(&ZeroFault, "kernel-4k", 12.0, &[shared]),
        result(&ZeroFault, "kernel-thp", 82.0, &[shared]),
        result(&ZeroFault, "hugefork", 24.0, &[shared, ("backing", "hugetlb")]),
        result(&AnonWSeq, "kernel-thp", 10.0, &[shared]),
        result(&AnonWSeq, "hugefork", 20.0, &[shared]),
    ];
    report.not_run.push(Absent {
        case: "zero-fault".to_owned(),
        subject: "kernel-hugetlb".to_owned(),
        why: "needs pages".to_owned(),
    });
    report.warnings.push("few runs".to_owned());
    report
}

#[test]
fn ratios_lead_and_details_follow() {
    let text = render(&report());
    let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is not in\n{text}"));
    assert!(place("3.42x") < place("zero-fault  size=512MiB"));
    assert!(place("kernel-thp 82.0 us") < place("24.0 (21.6 … 28.8)"));
    assert!(text.contains("0.500x kernel-4k*") && text.contains("(*) kernel-4k: makes 64 KiB"), "{text}");
    assert!(text.contains("2.00x"));
    assert!(place("zero-fault kernel-hugetlb: not run: needs pages\n\n") < place("note: few runs"));
}

#[test]
fn the_tables_look_as_they_did() {
    let mut report = report();
    report.counters = Some("not available here: no PMU".to_owned());
    report.version = "0.1.0".to_owned();
    let (text, file) = (render(&report), concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/bench.md"));
    if std::env::var_os("HUGEFORK_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(file, text).unwrap();
    } else {
        let known = std::fs::read_to_string(file).unwrap();
        assert_eq!(text, known, "HUGEFORK_GOLDEN=write cargo test -p hugefork-cli the_tables_look writes it anew");
    }
}

#[test]
fn details_are_sorted_best_first_whichever_way_is_better() {
    let report = report();
    let order = |case| {
        let text = details(case, &report);
        let place = |what: &str| text.find(what).unwrap();
        (place("hugefork"), place("kernel-thp"))
    };
    for case in [&ZeroFault as &dyn Case, &AnonWSeq] {
        let (ours, theirs) = order(case);
        assert!(ours < theirs, "{case}");
    }
}

#[test]
fn lazy_free_is_sorted_by_block_and_each_block_best_first() {
    let mut report = Report::new(String::new(), Host::default());
    let rows =
        [("hugefork", "2MiB", 0.1), ("kernel", "64KiB", 7.0), ("kernel", "2MiB", 0.3), ("hugefork", "64KiB", 2.0)];
    let row = |(subject, block, mark)| result(&LazyFree, subject, mark, &[("block_size", block)]);
    report.results = rows.map(row).to_vec();
    let text = details(&LazyFree, &report);
    let order: Vec<(&str, bool)> = text
        .lines()
        .filter(|line| line.contains("block_size="))
        .map(|line| (line.trim_start_matches("| ").split(' ').next().unwrap(), line.contains("64KiB")))
        .collect();
    assert_eq!(order, [("hugefork", true), ("kernel", true), ("hugefork", false), ("kernel", false)], "{text}");
}

#[test]
fn works_have_tables_of_their_own_and_the_victims_is_sorted_too() {
    let mut report = Report::new(String::new(), Host::default());
    let clear = |subject: &str, params: &[(&str, &str)]| result(&CLEAR, subject, 2.0, params);
    report.results = vec![
        clear("hugefork", &[("size", "2MiB"), ("use", "64KiB")]),
        clear("memset", &[("size", "2MiB"), ("use", "64KiB")]),
        clear("hugefork", &[("size", "4KiB"), ("use", "4KiB")]),
    ];
    for (subject, slowdown) in [("memset", 3.0), ("hugefork", 1.5)] {
        report.results.push(CaseResult {
            metric: VICTIM_SLOWDOWN.name().to_owned(),
            unit: VICTIM_SLOWDOWN.unit().to_owned(),
            median: slowdown,
            ..clear(subject, &[("size", "2MiB"), ("victim", "2MiB")])
        });
    }
    let text = details(&CLEAR, &report);
    let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("clear ")).collect();
    let expected = ["size=2MiB use=64KiB", "size=4KiB use=4KiB", "size=2MiB victim=2MiB"];
    assert_eq!(headings.len(), expected.len(), "{text}");
    assert!(headings.iter().zip(expected).all(|(heading, params)| heading.contains(params)), "{headings:?}");
    let victims = &text[text.find("victim=").unwrap()..];
    assert!(victims.find("hugefork").unwrap() < victims.find("memset").unwrap(), "{victims}");
}

#[test]
fn stocks_and_blocks_are_told_apart() {
    let mut report = report();
    let params = [("size", "512MiB"), ("backing", "hugetlb"), ("block_size", "64KiB")];
    report.results.push(result(&ZeroFault, "hugefork-zeroed", 8.0, &params));
    let text = render(&report);
    assert!(text.contains("(hugetlb)") && text.contains("(zeroed, hugetlb, blocks of 64KiB)"), "{text}");
}

#[test]
fn an_empty_report_is_a_heading() {
    let text = render(&Report::new(String::new(), Host::default()));
    assert_eq!(text.trim().lines().count(), 1);
}
