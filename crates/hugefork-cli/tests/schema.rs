//! The bench writes results with its own types, and the report reads them with others, which must stay able to read
//! files of any age. These tests check that the report reads what the bench writes.

use hugefork_bench::metric::Better;
use hugefork_bench::result::{Absent, CaseResult, Param};
use hugefork_bench::stats::Summary;
use hugefork_bench::{Case, Host, Report, cases};
use hugefork_report::{Record, measurements, parse};

const SAMPLES: [f64; 4] = [1.5, 9.0, 2.25, 3.0];

fn result(case: &dyn Case, subject: &str, median: f64) -> CaseResult {
    let metric = case.lead_metric();
    CaseResult {
        case: case.name().to_owned(),
        subject: subject.to_owned(),
        params: [("size".to_owned(), Param::size(1 << 30)), ("tasks".to_owned(), Param::Number(2))].into(),
        metric: metric.name().to_owned(),
        unit: metric.unit().to_owned(),
        samples: SAMPLES.to_vec(),
        median,
    }
}

fn read(report: &Report) -> Record {
    parse("results.json", report.to_json().unwrap().as_bytes()).unwrap()
}

#[test]
fn everything_that_is_written_is_read() {
    let mut report = Report::new("hugefork bench snapshot".to_owned(), Host::read());
    report.commit = Some("bc87d9e03f41".to_owned());
    report.interrupted = true;
    report.warnings.push("few runs".to_owned());
    let absent =
        |why: &str| Absent { case: "snapshot".to_owned(), subject: "fork-thp".to_owned(), why: why.to_owned() };
    report.not_run.push(absent("no pages"));
    report.failed.push(absent("wrong contents"));
    let median = Summary::of(&SAMPLES).unwrap().median;
    report.results.push(result(cases::ALL[0], "hugefork", median));

    let record = read(&report);
    let told = [&record.version, &record.commit, &record.date, &record.command].map(String::as_str);
    assert_eq!(told, [&report.version, "bc87d9e03f41", &report.date, "hugefork bench snapshot"]);
    assert!(record.interrupted && record.warnings == report.warnings);
    let (theirs, ours) = (&record.host, &report.host);
    assert_eq!((&theirs.cpu, &theirs.kernel, &theirs.memory), (&ours.cpu, &ours.kernel, &ours.memory));
    assert_eq!((theirs.cpus as usize, &theirs.hypervisor), (ours.cpus, &ours.hypervisor));
    assert_eq!((&theirs.thp.enabled, &theirs.thp.shmem_enabled), (&ours.thp.enabled, &ours.thp.shmem_enabled));
    let pools = |total: usize, page: &str| format!("{total} of {page}");
    assert_eq!(
        theirs.hugetlb.iter().map(|pool| pools(pool.total as usize, &pool.page)).collect::<Vec<_>>(),
        ours.hugetlb.iter().map(|pool| pools(pool.total, &pool.page)).collect::<Vec<_>>()
    );
    let [entry] = &record.entries[..] else { panic!("{:?}", record.entries) };
    assert_eq!((entry.case.as_str(), entry.subject.as_str()), ("clear", "hugefork"));
    assert_eq!((entry.params["size"].as_str(), entry.params["tasks"].as_str()), ("1GiB", "2"));
    assert_eq!((&entry.samples[..], entry.median), (&SAMPLES[..], median));
    assert_eq!((record.not_run[0].why.as_str(), record.failed[0].why.as_str()), ("no pages", "wrong contents"));
}

/// For a file without medians, the report finds those that the bench would have written.
#[test]
fn a_median_is_the_same_on_both_sides() {
    for samples in [&SAMPLES[..], &SAMPLES[..3], &SAMPLES[..1]] {
        let entry = serde_json::json!({"case": "c", "subject": "s", "metric": "m", "samples": samples});
        let file = serde_json::json!({"schema": 1, "results": [entry]});
        let record = parse("results.json", file.to_string().as_bytes()).unwrap();
        assert_eq!(Some(record.entries[0].median), Summary::of(samples).map(|summary| summary.median));
    }
}

#[test]
fn each_case_of_the_bench_has_a_table_with_its_lead_metric() {
    for case in cases::ALL.iter().copied() {
        let mut report = Report::new(String::new(), Host::default());
        report.results.push(result(case, "hugefork", 7.75));
        let record = read(&report);
        let higher = record.entries[0].better() == hugefork_report::Better::Higher;
        assert_eq!(higher, case.lead_metric().better() == Better::Higher, "{case}");
        let text = measurements(&[record]);
        assert!(text.contains(case.name()) && text.contains("7.75"), "{case}: {text}");
    }
}
