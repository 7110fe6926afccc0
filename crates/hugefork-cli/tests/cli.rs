//! The command as users meet it: help, errors in one line, doctor, and a bench that is over in a moment.

use std::path::PathBuf;

use assert_cmd::Command;
use serde_json::Value;

fn hugefork(line: &str) -> Command {
    let mut command = Command::cargo_bin("hugefork").unwrap();
    command.args(line.split_whitespace());
    command
}

/// Runs, and checks that it ends with `status` and one line on standard error, which is given back.
fn refused(line: &str, status: i32) -> String {
    let output = hugefork(line).assert().code(status).get_output().clone();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("error: "), "{text}");
    assert!(output.stdout.is_empty());
    text
}

/// A file of this test's own, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("hugefork-cli-{name}-{}.json", std::process::id())))
    }

    fn json(&self) -> Value {
        serde_json::from_str(&std::fs::read_to_string(&self.0).unwrap()).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn help_names_cases_subjects_and_options() {
    let output = hugefork("bench --help").assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["zero-fault", "anon-cow-seq", "kernel-hugetlb", "fork-4k", "--tune", "--block-size", "--json"] {
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
    assert!(!text.contains("tune-guardian"));
    let output = hugefork("--help").assert().success().get_output().clone();
    assert!(!String::from_utf8(output.stdout).unwrap().contains("tune-guardian"));
}

#[test]
fn calling_it_wrongly_is_status_2_and_one_line() {
    assert!(refused("bench zero-falt", 2).contains("did you mean `zero-fault`?"));
    assert!(refused("bench --subjects kernel-tph", 2).contains("did you mean `kernel-thp`?"));
    assert!(refused("bench clear --subjects fork-4k", 2).contains("--subjects fork-4k"));
    assert!(refused("bench --size 0", 2).contains("--size 0"));
    assert!(refused("bench --size 3MiB", 2).contains("--size 3MiB"));
    assert!(refused("bench --size 512TiB", 2).contains("larger than this machine's memory"));
    assert!(refused("bench --size 1.5GiB", 2).contains("--size"));
    assert!(refused("bench --block-size 3MiB", 2).contains("--block-size"));
    assert!(refused("bench --block-size 4MiB --size 2MiB", 2).contains("not a multiple of 4MiB"));
    assert!(refused("bench --backing disk", 2).contains("--backing"));
    assert!(refused("bench --runs 0", 2).contains("--runs 0"));
    assert!(refused("bench --tasks 0", 2).contains("--tasks 0"));
    assert!(refused("bench --no-such-option", 2).contains("--no-such-option"));
    assert!(refused("benhc", 2).contains("did you mean `bench`?"));
}

#[test]
fn a_result_that_could_not_be_kept_is_not_measured() {
    assert!(refused("bench snapshot --json /nonexistent/out.json", 1).contains("--json /nonexistent/out.json"));
    assert!(refused("bench snapshot --json /", 1).contains("is a directory"));
}

#[test]
fn a_small_bench_prints_ratios_and_keeps_results() {
    let file = Scratch::new("zero-fault");
    let output =
        hugefork("bench zero-fault --size 16MiB --runs 1 --json").arg(&file.0).assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("| zero-fault |"), "{text}");
    assert!(text.contains("only 1 counted run"), "{text}");
    assert!(text.contains("four times the last-level cache"), "{text}");
    // Not a terminal: a line a case.
    assert!(String::from_utf8(output.stderr).unwrap().contains("zero-fault: "));

    let json = file.json();
    assert_eq!(json["schema"], 1);
    assert!(json["host"]["cpus"].as_u64().unwrap() > 0);
    assert!(json["command"].as_str().unwrap().starts_with("hugefork bench zero-fault --size 16MiB"));
    assert_eq!(json["interrupted"], false);
    assert!(json["failed"].as_array().unwrap().is_empty());
    let results = json["results"].as_array().unwrap();
    let find = |subject: &str, metric: &str| {
        results
            .iter()
            .find(|result| result["subject"] == subject && result["metric"] == metric)
            .unwrap_or_else(|| panic!("no {metric} of {subject} in {json:#}"))
    };
    for subject in ["hugefork", "kernel-4k"] {
        let latency = find(subject, "latency");
        assert_eq!(latency["case"], "zero-fault");
        assert_eq!(latency["unit"], "us");
        assert_eq!(latency["params"]["size"], "16MiB");
        assert_eq!(latency["params"]["use"], "64KiB");
        let samples = latency["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 1);
        assert_eq!(samples[0], latency["median"]);
        assert!(latency["median"].as_f64().unwrap() > 0.0);
        find(subject, "user");
        find(subject, "sys");
    }
    find("hugefork", "overhead");
    // Every subject is accounted for.
    for subject in ["kernel-thp", "kernel-hugetlb"] {
        let ran = results.iter().any(|result| result["subject"] == subject);
        let told = json["not_run"].as_array().unwrap().iter().any(|absent| absent["subject"] == subject);
        assert!(ran != told, "{subject} in {json:#}");
    }
}

#[test]
fn every_case_runs_small() {
    let file = Scratch::new("all");
    hugefork("bench --size 8MiB --runs 1 --tasks 2 --json").arg(&file.0).assert().success();
    let json = file.json();
    for case in ["clear", "copy", "zero-fault", "anon-w-seq", "anon-cow-seq", "snapshot"] {
        let ours =
            json["results"].as_array().unwrap().iter().filter(|r| r["case"] == case && r["subject"] == "hugefork");
        assert!(ours.count() > 0, "{case} has no hugefork in {json:#}");
    }
}

#[test]
fn block_sizes_and_backings_are_taken() {
    let file = Scratch::new("blocks");
    hugefork(
        "bench zero-fault anon-cow-seq --size 4MiB --runs 1 --tasks 1 --block-size 64KiB --backing shmem-base --json",
    )
    .arg(&file.0)
    .assert()
    .success();
    let json = file.json();
    let ours =
        json["results"].as_array().unwrap().iter().find(|result| result["subject"] == "hugefork").unwrap().clone();
    assert_eq!(ours["params"]["block_size"], "64KiB");
    assert_eq!(ours["params"]["backing"], "shmem-base");
}

#[test]
fn a_named_kernel_is_measured_near_and_whole() {
    let file = Scratch::new("kernel");
    hugefork("bench clear --subjects straight/portable,memset --size 8MiB --runs 1 --json")
        .arg(&file.0)
        .assert()
        .success();
    let json = file.json();
    let uses: Vec<&Value> = json["results"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|result| result["subject"] == "straight/portable" && result["metric"] == "total")
        .map(|result| &result["params"]["use"])
        .collect();
    assert_eq!(uses, ["64KiB", "block"]);
}

#[test]
fn doctor_speaks_to_people_and_to_programs() {
    // Status 1 only says that something fails here; the text is the same.
    let output = hugefork("doctor").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["kernel", "shmem huge pages", "mappings", "CPU", "chosen backing", "clear with", "copy with"] {
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
    let output = hugefork("doctor --json").output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], 1);
    let checks = json["checks"].as_array().unwrap();
    assert!(checks.len() >= 10);
    for check in checks {
        assert!(["pass", "warn", "fail"].contains(&check["status"].as_str().unwrap()), "{check}");
        assert!(!check["name"].as_str().unwrap().is_empty() && !check["found"].as_str().unwrap().is_empty());
    }
    assert_eq!(output.status.code(), Some(i32::from(json["status"] == "fail")));
}
