//! Tests of what a report looks like to people.

use hugefork_bench::Host;
use hugefork_bench::cases::anon_w_seq::AnonWSeq;
use hugefork_bench::cases::clear_copy::CLEAR;
use hugefork_bench::cases::fork::Fork;
use hugefork_bench::cases::lazy_free::LazyFree;
use hugefork_bench::cases::snapshot::Snapshot;
use hugefork_bench::cases::zero_fault::ZeroFault;
use hugefork_bench::result::Param;

use super::*;
use crate::output::terminal::width;

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
    let text = render(&report(), Detail::Full, 100);
    let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is not in\n{text}"));
    assert!(place("3.42x") < place("zero-fault  size=512MiB"));
    assert!(text.rfind("  3.42x\n").unwrap() > place("note: few runs"), "the answer is also the last\n{text}");
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
    for (detail, file) in [(Detail::Brief, "bench.txt"), (Detail::Full, "bench.md")] {
        check_golden(&render(&report, detail, 80), &format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR")));
    }
}

fn check_golden(text: &str, file: &str) {
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
    let other = [("size", "512MiB"), ("backing", "shmem-thp")];
    report.results.push(result(&ZeroFault, "hugefork", 30.0, &other));
    let brief = render(&report, Detail::Brief, 100);
    assert!(brief.contains("use of (hugetlb) ") && brief.contains("use of (shmem-thp) "), "{brief}");
    assert!(brief.contains("(zeroed, blocks of 64KiB) "), "no other like it has another backing: {brief}");
    let text = render(&report, Detail::Full, 100);
    assert!(text.contains("(hugetlb)") && text.contains("(zeroed, hugetlb, blocks of 64KiB)"), "{text}");
}

#[test]
fn modes_are_told_apart() {
    let mut report = report();
    let params = [("size", "128MiB"), ("writes", "625"), ("epoch", "3")];
    report.results =
        ["run-collapse", "run-pool", "kernel-thp"].map(|subject| result(&Fork::Whole, subject, 8.0, &params)).to_vec();
    let text = render(&report, Detail::Brief, 100);
    assert!(text.contains("625 writes (collapse)") && text.contains("625 writes (pool)"), "{text}");
}

#[test]
fn an_empty_report_is_a_heading() {
    let text = render(&Report::new(String::new(), Host::default()), Detail::Brief, 100);
    assert_eq!(text.trim().lines().count(), 1);
}

/// A whole suite, with the notes and the missing subjects of an untuned machine.
fn suite() -> Report {
    let mut report = report();
    report.results.clear();
    for size in ["64MiB", "128MiB", "256MiB", "512MiB", "1GiB", "2GiB", "4GiB"] {
        for (subject, median) in [("hugefork", 12.0), ("fork-thp", 82.0), ("fork-hugetlb", 7.0)] {
            let params = [("size", size), ("backing", "shmem-thp")];
            let params = if subject == "hugefork" { &params[..] } else { &params[..1] };
            report.results.push(result(&Snapshot, subject, median, params));
        }
    }
    for number in 0..20 {
        report.warnings.push(format!("snapshot: figure {number} varies"));
        report.not_run.push(Absent {
            case: "zero-fault".to_owned(),
            subject: format!("kernel-{}", number % 3),
            why: format!("needs {number} pages"),
        });
    }
    report
}

#[test]
fn a_brief_report_is_a_screen_that_begins_and_ends_with_the_answer() {
    let text = render(&suite(), Detail::Brief, 80);
    assert!(text.lines().count() <= 24, "{text}");
    assert!(text.lines().take(6).any(|line| line.ends_with("fork-hugetlb 7.00  0.583x")), "{text}");
    let last = "hugefork is better than the best other in 0 of 7 works: from 0.583x (snapshot pause, 64MiB) to";
    assert!(text.lines().last().unwrap().starts_with(last), "{text}");
    assert!(text.contains("not run in zero-fault: kernel-0, kernel-1, kernel-2, kernel-hugetlb (--details says why)"));
    assert!(text.contains("note: there are 18 more notes (--details)\n"), "{text}");
    let full = render(&suite(), Detail::Full, 80);
    assert!(full.contains("figure 19 varies") && full.contains("needs 19 pages"), "{full}");
}

#[test]
fn the_answer_is_never_wider_than_the_terminal() {
    let comparisons = compare(&suite());
    for columns in [60, 80, 200] {
        let text = answer(&comparisons, columns);
        assert!(text.lines().all(|line| width(line) <= columns), "{columns}:\n{text}");
    }
}

/// The least and the greatest of one sample are that sample, and `faults` are counted in faults.
#[test]
fn nothing_is_said_twice() {
    let mut report = Report::new(String::new(), Host::default());
    let mut faults = result(&ZeroFault, "hugefork", 71.9, &[]);
    faults.samples = vec![71.9];
    (faults.metric, faults.unit) = ("faults".to_owned(), "faults".to_owned());
    report.results.push(faults);
    let text = render(&report, Detail::Full, 100);
    assert!(text.contains("|   71.9 |") && text.contains("| faults |") && text.contains("  1 run\n"), "{text}");
}
