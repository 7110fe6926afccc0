//! The command as users meet it: a bench that is over in a moment. What is always said in the same words is in golden.rs.

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
fn what_depends_on_the_machine_is_refused_too() {
    assert!(refused("bench --size 512TiB", 2).contains("larger than this machine's memory"));
    assert!(refused("bench clear --subjects hugefork-zeroed", 2).contains("--subjects hugefork-zeroed"));
    assert!(refused("bench copy --subjects target-last/reversed", 2).contains("--subjects target-last/reversed"));
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
    let output = hugefork("bench --size 8MiB --runs 1 --tasks 2 --quiet --json")
        .arg(&file.0)
        .assert()
        .success()
        .get_output()
        .clone();
    assert!(output.stderr.is_empty(), "{:?}", String::from_utf8_lossy(&output.stderr));
    let json = file.json();
    let cases =
        ["clear", "copy", "zero-fault", "anon-w-seq", "anon-cow-seq", "snapshot", "writer-latency", "lazy-free"];
    for case in cases {
        let ours =
            json["results"].as_array().unwrap().iter().filter(|r| r["case"] == case && r["subject"] == "hugefork");
        assert!(ours.count() > 0, "{case} has no hugefork in {json:#}");
    }
}

#[test]
fn a_budget_cuts_and_says_so_and_samples_come_as_csv() {
    let file = Scratch::new("budget");
    let command = "bench clear anon-w-seq --subjects hugefork --tasks 1 --time-budget 0.001s --csv";
    let output = hugefork(command).arg(&file.0).assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    let left_out = "not run: --time-budget 0.001s: 5 rounds do not fit into what is left of it";
    assert!(text.contains(&format!("clear hugefork: {left_out}")), "{text}");
    assert!(text.contains(&format!("anon-w-seq hugefork: {left_out}")), "{text}");

    let command = "bench anon-w-seq --subjects hugefork --size 4MiB --tasks 1 --runs 100000 --time-budget 0.5 --csv";
    let output = hugefork(command).arg(&file.0).assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("rounds instead of 100000 (--time-budget 0.5s)"), "{text}");
    let csv = std::fs::read_to_string(&file.0).unwrap();
    assert!(csv.starts_with("case,subject,backing,"), "{csv}");
    let rounds = csv.lines().filter(|line| line.contains(",throughput,GiB/s,")).count();
    assert!((5..100_000).contains(&rounds), "{rounds}");
}

#[test]
fn results_become_a_page_and_pictures() {
    let directory = std::env::temp_dir().join(format!("hugefork-cli-report-{}", std::process::id()));
    let (page, pictures) = (directory.join("report.html"), directory.join("pictures"));
    std::fs::create_dir_all(&directory).unwrap();
    let result = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/before.json");
    hugefork("report").arg(result).arg("-o").arg(&page).arg("--png").arg(&pictures).assert().success();
    let html = std::fs::read_to_string(&page).unwrap();
    let drawn = std::fs::read(pictures.join("snapshot-pause-bars.png"));
    hugefork("report").arg(result).arg("-o").arg(result).assert().code(2);
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(html.contains("</html>") && html.contains("fork-4k"), "{html}");
    assert!(drawn.unwrap().starts_with(b"\x89PNG"));
}

#[test]
fn block_sizes_and_backings_are_taken() {
    let file = Scratch::new("blocks");
    hugefork(
        "bench zero-fault anon-cow-seq --size 4MiB --runs 1 --tasks 1 --block-size 64KiB,4KiB --backing shmem-base --json",
    )
    .arg(&file.0)
    .assert()
    .success();
    let json = file.json();
    let results = json["results"].as_array().unwrap();
    for (case, metric) in [("zero-fault", "latency"), ("anon-cow-seq", "throughput")] {
        let ours = |r: &&Value| r["case"] == case && r["subject"] == "hugefork" && r["metric"] == metric;
        let blocks: Vec<&Value> = results.iter().filter(ours).map(|result| &result["params"]["block_size"]).collect();
        assert_eq!(blocks, ["64KiB", "4KiB"], "{case}");
        assert!(results.iter().filter(ours).all(|result| result["params"]["backing"] == "shmem-base"));
    }
}

#[test]
fn writers_are_measured_at_both_densities_with_every_subject_that_runs() {
    let file = Scratch::new("writers");
    hugefork("bench writer-latency --size 8MiB --runs 1 --block-size 2MiB,64KiB --json")
        .arg(&file.0)
        .assert()
        .success();
    let json = file.json();
    let results = json["results"].as_array().unwrap();
    let find = |subject: &str, density: &str, metric: &str| -> Vec<f64> {
        let wanted = |r: &&Value| r["subject"] == subject && r["params"]["density"] == density && r["metric"] == metric;
        results.iter().filter(wanted).map(|result| result["median"].as_f64().unwrap()).collect()
    };
    for density in ["sparse", "dense"] {
        for (subject, times) in [("hugefork", 2), ("fork-4k", 1), ("memcpy", 1)] {
            for metric in ["pause", "p50", "p90", "p99", "p99.9", "max", "total", "user", "sys"] {
                assert_eq!(find(subject, density, metric).len(), times, "{metric} of {subject}");
            }
            let [slowest, half] = ["max", "p50"].map(|metric| find(subject, density, metric)[0]);
            assert!(slowest >= half && half > 0.0, "{subject}: {half} {slowest}");
        }
        // Every block of 2 MiB is written, so it is copied whole, once; not every smaller one.
        let all = find("memcpy", density, "amplification")[0];
        let [whole, smaller] = find("hugefork", density, "amplification")[..] else { panic!("two block sizes") };
        let pages = find("fork-4k", density, "amplification")[0];
        assert!(whole == all && smaller <= all && pages < smaller, "{density}: {all} {whole} {smaller} {pages}");
    }
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
fn a_sweep_goes_over_blocks_that_fit_and_says_which_do_not() {
    let file = Scratch::new("sweep");
    let output =
        hugefork("bench clear --sweep --size 8MiB --runs 1 --subjects hugefork,target-last/reversed,memset --json")
            .arg(&file.0)
            .assert()
            .success()
            .get_output()
            .clone();
    let text = String::from_utf8(output.stdout).unwrap();
    let why =
        "clear hugefork, target-last/reversed, memset: not run: --size 8MiB is not a whole number of blocks of 1GiB";
    assert_eq!(text.matches(why).count(), 1, "{text}");
    let json = file.json();
    let results = json["results"].as_array().unwrap();
    for subject in ["hugefork", "target-last/reversed", "memset"] {
        for size in ["4KiB", "64KiB", "2MiB"] {
            let of = |metric: &str| {
                let mine = |r: &&Value| r["subject"] == subject && r["params"]["size"] == size && r["metric"] == metric;
                results.iter().filter(mine).count()
            };
            assert_eq!(of("total"), 2, "near and whole use of {size}, {subject}");
            let absent = |a: &Value| a["why"].as_str().unwrap().starts_with("victim_slowdown needs a second CPU");
            let lonely = json["not_run"].as_array().unwrap().iter().any(absent);
            assert_eq!(of("victim_slowdown"), usize::from(!lonely), "{size}, {subject}");
        }
    }
}

#[test]
fn stocks_are_filled_and_faults_counted() {
    let file = Scratch::new("stock");
    let subjects = "hugefork,hugefork-default,hugefork-zeroed,hugefork-refilling";
    hugefork(&format!("bench zero-fault anon-w-seq --subjects {subjects} --size 16MiB --tasks 2 --runs 2 --json"))
        .arg(&file.0)
        .assert()
        .success();
    let json = file.json();
    let results = json["results"].as_array().unwrap();
    let median = |case: &str, subject: &str, metric: &str| {
        let wanted = |r: &&Value| r["case"] == case && r["subject"] == subject && r["metric"] == metric;
        results.iter().find(wanted).map(|result| result["median"].as_f64().unwrap())
    };
    for subject in ["hugefork", "hugefork-zeroed", "hugefork-refilling"] {
        assert!(median("anon-w-seq", subject, "throughput").unwrap() > 0.0, "{subject}");
        let faults = median("anon-w-seq", subject, "faults_per_gib").unwrap();
        assert!(faults > 0.0 && faults <= 2.0 * 512.0, "{subject}: {faults}");
        assert_eq!(median("anon-w-seq", subject, "zeroing").is_some(), subject != "hugefork", "{subject}");
    }
    assert!(median("zero-fault", "hugefork", "overhead").is_some());
    assert!(median("zero-fault", "hugefork-default", "latency").unwrap() > 0.0);
    assert!(median("zero-fault", "hugefork-zeroed", "overhead").is_none());
    assert!(median("zero-fault", "hugefork-zeroed", "latency").unwrap() > 0.0);
}
