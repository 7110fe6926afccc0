//! Tests of what a report looks like to people.

use hugefork_bench::Host;
use hugefork_bench::cases::anon_w_seq::AnonWSeq;
use hugefork_bench::cases::clear_copy::CLEAR;
use hugefork_bench::cases::lazy_free::LazyFree;
use hugefork_bench::cases::snapshot::Snapshot;
use hugefork_bench::cases::zero_fault::ZeroFault;
use hugefork_bench::result::Param;

use super::*;
use crate::output::terminal::{fitted_to, width};

/// So many columns without colours.
fn plain(columns: usize) -> Look {
    Look { columns, colours: false }
}

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
fn ratios_lead_details_follow_and_the_answer_is_last() {
    let text = render(&report(), Detail::Full, plain(100));
    let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is not in\n{text}"));
    assert!(place("3.42x") < place("zero-fault  size=512MiB"));
    assert!(text.rfind("\nzero-fault  3.42x  ").unwrap() > place("note: few runs"), "the answer is the last\n{text}");
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
        check_golden(
            &render(&report, detail, plain(80)),
            &format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR")),
        );
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
    let list = works(&compare(&report), 100);
    assert!(list.contains("use of (hugetlb) ") && list.contains("use of (shmem-thp) "), "{list}");
    assert!(list.contains("(zeroed, blocks of 64KiB) "), "no other like it has another backing: {list}");
    let text = render(&report, Detail::Full, plain(100));
    assert!(text.contains("(hugetlb)") && text.contains("(zeroed, hugetlb, blocks of 64KiB)"), "{text}");
}

#[test]
fn an_empty_report_is_a_heading() {
    let text = render(&Report::new(String::new(), Host::default()), Detail::Brief, plain(100));
    assert_eq!(text.trim().lines().count(), 1);
}

/// A whole suite of an untuned machine, with its notes and missing subjects: hugefork is better and worse in each case
/// of `mixed`, and better in the others.
fn suite(mixed: &[&str]) -> Report {
    let mut report = report();
    report.host.cpu = "Intel(R) Xeon(R) Platinum 8488C Processor".to_owned();
    report.host.kernel = "Linux 6.18.44-generic-x86_64".to_owned();
    (report.results, report.not_run, report.warnings) = Default::default();
    let sets = ["5000", "25000", "500000"].map(|writes| {
        let words = ["size", "use", "writes", "written", "changed", "held", "tasks", "rate", "epoch", "snapshots"];
        words.map(|name| (name, if name == "size" { "512MiB" } else { writes }))
    });
    for (place, case) in cases::ALL.iter().enumerate() {
        let subjects = case.subjects(hugefork_bench::Scope::Quick);
        let rival = subjects.iter().find(|subject| !subject.is_ours() && case.aside(subject).is_none()).unwrap();
        let times = match mixed.contains(&case.name()) {
            true => [0.07, 1.3, 9.0],
            false => [1.1, 1.2, 1.3 * (place + 1) as f64],
        };
        for (set, times) in sets.iter().zip(times) {
            let ours = hugefork_bench::ratios::ratio(case.lead_metric(), 1.0, times);
            report.results.push(result(*case, &subjects[0].to_string(), 1000.0 / ours, set));
            report.results.push(result(*case, &rival.to_string(), 1000.0, set));
        }
        let why = format!("needs {place} free hugetlb pages of 2MiB, there are 0; sysctl -w vm.nr_hugepages={place}");
        report.not_run.push(Absent { case: case.name().to_owned(), subject: "fork-hugetlb".to_owned(), why });
        report.warnings.push(format!(
            "{case}: 16MiB is less than four times the last-level cache (1040MiB), so caches flatter every subject"
        ));
    }
    report
}

#[test]
fn a_brief_report_is_one_screen_whatever_was_lost() {
    let all: Vec<&str> = cases::ALL.iter().map(|case| case.name()).collect();
    for mixed in [&[], &all[2..5], &all[..]] {
        let text = fitted_to(render(&suite(mixed), Detail::Brief, plain(80)), Some(80));
        assert!(text.lines().all(|line| width(line) <= 80), "{text}");
        // The last line of a terminal is the shell's.
        assert!(text.lines().count() < 40, "{text}");
        assert!(all.iter().all(|case| text.lines().any(|line| line.starts_with(&format!("{case} ")))), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("  worse in 1 of 3: ")).count(), mixed.len(), "{text}");
        let more = all.len() - 1;
        let lacks = format!("\nfork-hugetlb: not run: needs {more} free hugetlb pages of 2MiB, there are 0\n");
        assert!(text.contains(&lacks), "{text}");
        let rest = format!("\nall figures and {more} more notes: --details, or a case: `hugefork bench snapshot`\n");
        assert!(text.ends_with(&rest), "{text}");
        let works = 3 * all.len();
        let better = format!("in {} of {works} works\n", works - mixed.len());
        assert!(text.contains(&format!("hugefork is better than the best other {better}")), "{text}");
    }
    let full = render(&suite(&all), Detail::Full, plain(80));
    assert!(full.contains("clear: 16MiB is less") && full.contains("nr_hugepages=3"), "{full}");
}

#[test]
fn the_greatest_gain_is_first_and_the_worst_loss_is_last_and_left_of_1x() {
    let mut report = report();
    let of = |case: &dyn Case, subject: &str, median, writes| result(case, subject, median, &[("writes", writes)]);
    report.results = Vec::new();
    // Each case, what it takes hugefork, and what it takes the other.
    let works: [(&dyn Case, f64, f64, &str); 5] = [
        (&LazyFree, 10.0, 5.0, "1"),
        (&Snapshot, 1.0, 2.0, "1"),
        (&Snapshot, 1.0, 100.0, "2"),
        (&ZeroFault, 1.0, 3.0, "1"),
        (&ZeroFault, 100.0, 10.0, "2"),
    ];
    for (case, ours, other, writes) in works {
        let rival =
            case.subjects(hugefork_bench::Scope::Quick).into_iter().rfind(|s| !s.is_ours() && case.aside(s).is_none());
        report.results.push(of(case, "hugefork", ours, writes));
        report.results.push(of(case, &rival.unwrap().to_string(), other, writes));
    }
    let text = render(&report, Detail::Brief, plain(80));
    let lines: Vec<&str> = text.lines().skip(2).take(6).collect();
    let starts = [
        "             ratio",
        "snapshot     2.00x to 100x ",
        "lazy-free   0.500x         ",
        "  worse: mark",
        "zero-fault  0.100x to 3.00x",
        "  worse in 1 of 2: first ",
    ];
    assert!(lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{text}");
    let bar = |line: &str| {
        let (left, right) = line.split_once('│').unwrap();
        [left, right].map(|side| ["█", "░"].map(|sign| side.matches(sign).count()))
    };
    // A column of 26 is a factor of 1000 to the power of 1/26, so 10 is as far as 9 of them, and 100 as 17.
    assert_eq!(
        [1, 2, 4].map(|line| bar(lines[line])),
        [[[0, 0], [3, 14]], [[3, 0], [0, 0]], [[0, 9], [0, 4]]],
        "{text}"
    );
    let axis = |line: &str| line.chars().position(|sign| sign == '│');
    assert!([2, 4].iter().all(|line| axis(lines[*line]) == axis(lines[1])), "{text}");
    assert_eq!(axis(lines[1]), lines[0].find(" 1x").map(|place| place + 1), "{text}");
}

#[test]
fn only_a_terminal_that_shows_colours_gets_them_and_lines_are_the_same() {
    let report = suite(&["paced", "changes"]);
    let text = render(&report, Detail::Brief, plain(80));
    let coloured = render(&report, Detail::Brief, Look { columns: 80, colours: true });
    assert!(!text.contains('\x1b'), "{text}");
    assert!(
        coloured.contains("\x1b[32m█") && coloured.contains("\x1b[31m░") && coloured.contains("\x1b[31mworse in"),
        "{coloured}"
    );
    let bare = ["\x1b[32m", "\x1b[31m", "\x1b[0m"].iter().fold(coloured, |text, colour| text.replace(colour, ""));
    assert_eq!(bare, text);
}

#[test]
fn a_case_without_a_ratio_says_why() {
    let mut report = suite(&[]);
    report
        .results
        .retain(|result| result.case != "snapshot" && (result.case != "reset" || result.subject == "hugefork"));
    let text = render(&report, Detail::Brief, plain(80));
    assert!(text.contains("\nsnapshot: no ratio: needs 5 free hugetlb pages of 2MiB, there are 0\n"), "{text}");
    report.not_run.clear();
    let text = render(&report, Detail::Brief, plain(80));
    assert!(text.contains("\nreset: no ratio: hugefork or all others have no figures\n"), "{text}");
}

#[test]
fn the_answer_is_never_wider_than_the_terminal() {
    let report = suite(&["paced"]);
    for columns in [20, 60, 80, 200] {
        let list = works(&compare(&report), columns);
        assert!(columns < 60 || list.lines().all(|line| width(line) <= columns), "{columns}:\n{list}");
        let text = fitted_to(answer(&compare(&report), plain(columns)), Some(columns));
        assert!(columns < 40 || text.lines().all(|line| width(line) <= columns), "{columns}:\n{text}");
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
    let text = render(&report, Detail::Full, plain(100));
    assert!(text.contains("|   71.9 |") && text.contains("| faults |") && text.contains("  1 run\n"), "{text}");
}
