//! A file of schema 1 stays readable, whatever the bench writes by then.

use std::path::Path;

use hugefork_report::{Better, Verdict, compare, load, report};

fn golden() -> hugefork_report::Record {
    load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/schema-1.json")).unwrap()
}

#[test]
fn schema_1_reads_as_it_did() {
    let record = golden();
    assert_eq!(record.version, "0.1.0");
    assert_eq!(
        (record.host.cpu.as_str(), record.host.cpus, record.host.kernel.as_str()),
        ("AMD EPYC", 2, "Linux 6.18.44")
    );
    assert_eq!(record.host.caches[1].size, "32MiB");
    assert_eq!((record.host.hugetlb[0].total, record.host.thp.shmem_enabled.as_str()), (1664, "advise"));
    assert_eq!((record.host.hypervisor.as_deref(), record.host.governor.as_deref()), (Some("KVM"), None));
    assert_eq!((record.entries.len(), record.not_run.len(), record.failed.len()), (6, 1, 0));
    assert!(record.interrupted && record.warnings.len() == 1);

    let first = &record.entries[0];
    assert_eq!(
        (first.case.as_str(), first.subject.as_str(), first.params["size"].as_str()),
        ("zero-fault", "hugefork", "1GiB")
    );
    assert_eq!((first.median, first.min(), first.max(), first.samples.len()), (33.25, 32.5, 34.5, 5));
    assert_eq!((first.unit.as_str(), first.better()), ("us", Better::Lower));
    let rate = &record.entries[3];
    assert_eq!((rate.params["tasks"].as_str(), rate.better()), ("2", Better::Higher));
    let bare = &record.entries[5];
    assert_eq!((bare.median, bare.min(), bare.max()), (134.5, 134.5, 134.5));
}

#[test]
fn what_was_read_can_be_compared_and_drawn() {
    let record = golden();
    let same = compare(&record, &record);
    assert_eq!(same.rows.len(), 6);
    assert_eq!(same.count(Verdict::NoDifferenceSeen) + same.count(Verdict::CannotTell), 6);
    let page = report(&[record]).unwrap();
    for shown in ["2.73×", "33.2", "90.8", "kernel-thp", "stopped before the end", "varies 2.1-fold", "needs 512 free"]
    {
        assert!(page.contains(shown), "{shown}");
    }
}

#[test]
fn curves_the_date_and_the_commit_read_as_they_did() {
    let record = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/curves.json")).unwrap();
    assert_eq!((record.commit.as_str(), record.date.as_str()), ("bc87d9e03f41", "2026-11-21T14:53:23Z"));
    let [ranks, cost] = &record.curves[..] else { panic!("{:?}", record.curves) };
    assert_eq!((ranks.case.as_str(), ranks.subject.as_str()), ("writer-latency", "fork-4k"));
    assert_eq!((ranks.metric.as_str(), ranks.unit.as_str(), ranks.over.as_str()), ("latency", "us", "percentile"));
    assert_eq!((ranks.params["writes"].as_str(), ranks.rounds), ("5000", 3));
    assert_eq!(ranks.points[4], (100.0, 112.5));
    assert_eq!((cost.over.as_str(), cost.points[0], cost.points.len()), ("time", (0.0, 0.31), 5));
    let page = report(&[record]).unwrap();
    assert!(page.contains("class=\"percentiles\"") && page.contains("class=\"time\""));
    // A file from before there were curves, dates and commits.
    let earlier = golden();
    assert!(earlier.commit.is_empty() && earlier.date.is_empty() && earlier.curves.is_empty());
}
