//! The command as users meet it, with benches that are over in a moment. Output that never changes is in golden.rs.

mod terminal;

use std::path::PathBuf;

use assert_cmd::Command;
use serde_json::Value;
use terminal::Terminal;

fn hugefork(line: &str) -> Command {
    let mut command = Command::cargo_bin("hugefork").unwrap();
    command.args(line.split_whitespace());
    command
}

/// Runs the command, checks that it ends with `status` and one line on standard error, and gives that line back.
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
    assert!(refused("bench copy --subjects memset", 2).contains("--subjects memset"));
}

#[test]
fn a_small_bench_prints_ratios_and_keeps_results() {
    let file = Scratch::new("zero-fault");
    let output =
        hugefork("bench zero-fault --size 16MiB --runs 1 --json").arg(&file.0).assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\nzero-fault\n  first write + use of 64KiB"), "{text}");
    assert!(text.contains("only 1 counted run"), "{text}");
    assert!(text.contains("four times the last-level cache"), "{text}");
    // Not a terminal, so there is one line for each case.
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
    let cases = [
        "clear",
        "copy",
        "zero-fault",
        "anon-w-seq",
        "anon-cow-seq",
        "snapshot",
        "writer-latency",
        "paced",
        "lazy-free",
        "changes",
        "reset",
    ];
    for case in cases {
        let ours =
            json["results"].as_array().unwrap().iter().filter(|r| r["case"] == case && r["subject"] == "hugefork");
        assert!(ours.count() > 0, "{case} has no hugefork in {json:#}");
    }
    let told = |list: &str| json[list].as_array().unwrap().iter().any(|r| r["subject"] == "run-pool");
    assert!(told("results") || told("not_run"), "{json:#}");
    // Figures come on request.
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().count() < 40 && !text.contains("| subject "), "{text}");
    assert!(cases.iter().all(|case| text.lines().any(|line| line.starts_with(&format!("{case} ")))), "{text}");
    assert!(text.contains("\nhugefork is better than the best other in "), "{text}");
}

#[test]
fn a_budget_that_measures_nothing_is_a_failure_and_says_why() {
    let command = "bench clear anon-w-seq --subjects hugefork --tasks 1 --time-budget 0.000000001s -q";
    let output = hugefork(command).assert().code(1).get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    let left_out = "not run: --time-budget 0.000000001s: 5 rounds do not fit into what is left of it";
    assert!(text.contains(&format!("clear hugefork: {left_out}")), "{text}");
    assert!(text.contains(&format!("anon-w-seq hugefork: {left_out}")), "{text}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "error: nothing was measured; see `not run` above, and give it more time\n");
}

#[test]
fn more_time_is_advised_only_where_it_helps_and_a_subject_is_named_once() {
    let mut command = hugefork("bench snapshot --subjects hugefork --size 4MiB --runs 1 -q");
    let output = command.env("HUGEFORK_WINDOW", "nonsense").assert().code(1).get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\nsnapshot hugefork: not run: HUGEFORK_KERNEL or HUGEFORK_WINDOW: "), "{text}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "error: nothing was measured; see `not run` above for what would mend that\n");
}

#[test]
fn samples_come_as_csv() {
    let file = Scratch::new("csv");
    let command = "bench anon-w-seq --subjects hugefork --size 4MiB --tasks 1 --runs 6 --csv";
    hugefork(command).arg(&file.0).assert().success();
    let csv = std::fs::read_to_string(&file.0).unwrap();
    assert!(csv.starts_with("case,subject,backing,"), "{csv}");
    assert_eq!(csv.lines().filter(|line| line.contains(",throughput,GiB/s,")).count(), 6);
}

#[test]
fn earlier_results_stay_if_nothing_was_counted() {
    let [json, csv] = ["kept-json", "kept-csv"].map(Scratch::new);
    for file in [&json, &csv] {
        std::fs::write(&file.0, "earlier results").unwrap();
    }
    let command = "bench clear anon-w-seq --subjects hugefork --tasks 1 --time-budget 0.000000001s -q";
    let output = hugefork(command).arg("--json").arg(&json.0).arg("--csv").arg(&csv.0).assert().code(1);
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    for file in [&json, &csv] {
        assert_eq!(std::fs::read_to_string(&file.0).unwrap(), "earlier results");
    }
    let (json, csv) = (json.0.display(), csv.0.display());
    assert!(
        text.ends_with(&format!("\nnote: nothing was counted: {json} and {csv} are left as they were\n")),
        "{text}"
    );
}

const SMALL: &str = "bench copy zero-fault --subjects hugefork --size 4MiB --runs 1";

/// Whatever standard output is, it gets one result with all cases, and nothing else.
#[test]
fn results_go_to_standard_output_and_tables_beside_them() {
    let scratch = Scratch::new("stdout");
    let by_pipe = |json: &str| {
        let output = hugefork(SMALL).args(["--json", json]).assert().success().get_output().clone();
        (output.stdout, output.stderr)
    };
    let by_file = |json: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_hugefork"));
        command.args(SMALL.split(' ')).args(["--json", json]).stdout(std::fs::File::create(&scratch.0).unwrap());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        (std::fs::read(&scratch.0).unwrap(), output.stderr)
    };
    for (json, tables) in [by_pipe("-"), by_pipe("/dev/stdout"), by_file("-"), by_file("/dev/stdout")] {
        let json: Value = serde_json::from_slice(&json).unwrap();
        let of = |case: &str| json["results"].as_array().unwrap().iter().any(|result| result["case"] == case);
        assert!(of("copy") && of("zero-fault"), "{json:#}");
        assert!(String::from_utf8(tables).unwrap().contains("| hugefork "));
    }
    assert!(!std::path::Path::new("-").exists());
    assert!(refused(&format!("{SMALL} --json - --csv /dev/stdout"), 2).contains("is where --json goes"));
    let result = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/before.json");
    let page = hugefork("report -o -").arg(result).assert().success().get_output().clone();
    assert!(String::from_utf8(page.stdout).unwrap().trim_end().ends_with("</html>"));
}

/// The reader of a pipe gets one result, and does not see the end before it.
#[test]
fn a_pipe_is_written_once_and_stays_a_pipe() {
    use std::os::unix::fs::FileTypeExt;
    let scratch = Scratch::new("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&scratch.0).status().unwrap().success());
    let path = scratch.0.clone();
    let reader = std::thread::spawn(move || std::fs::read(path).unwrap());
    hugefork(SMALL).arg("--json").arg(&scratch.0).assert().success();
    let json: Value = serde_json::from_slice(&reader.join().unwrap()).unwrap();
    assert_eq!(json["interrupted"], false);
    assert!(std::fs::metadata(&scratch.0).unwrap().file_type().is_fifo());
}

/// What a command prints to a terminal of that width.
fn on_a_terminal(columns: u16, command: &mut std::process::Command) -> String {
    let (terminal, its_end) = Terminal::new(columns);
    let mut child = command.env_remove("COLUMNS").stdout(its_end).spawn().unwrap();
    command.stdout(std::process::Stdio::null());
    let text = terminal.rest().replace("\r\n", "\n");
    assert!(child.wait().unwrap().success(), "{text}");
    text
}

#[test]
fn tables_fit_a_narrow_terminal_and_stay_tables_on_a_wide_one() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let hugefork = |line: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_hugefork"));
        command.args(line.split(' ')).current_dir(directory);
        command
    };
    for line in ["bench compare before.json after.json", &format!("{SMALL} --quiet")] {
        let narrow = on_a_terminal(60, &mut hugefork(line));
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
        assert!(narrow.contains("\nhugefork\n  "), "{narrow}");
        let wide = on_a_terminal(300, &mut hugefork(line));
        assert!(wide.contains("| hugefork ") && !wide.contains("\nhugefork\n"), "{wide}");
    }
    let wide = on_a_terminal(200, &mut hugefork("doctor --verbose"));
    assert!(wide.lines().any(|line| line.contains("why:  ") && line.chars().count() > 100), "{wide}");
    let doctor = on_a_terminal(60, &mut hugefork("doctor"));
    // Paths stay whole.
    let is_text = |line: &&str| !line.contains("mend:") && !line.contains("/sys/") && !line.contains('\x1b');
    assert!(doctor.lines().filter(is_text).all(|line| line.chars().count() <= 60), "{doctor}");
}

#[test]
fn help_is_as_wide_as_the_terminal() {
    let help = |columns, line: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_hugefork"));
        on_a_terminal(columns, command.args(line.split(' ')).env("NO_COLOR", "1"))
    };
    for line in ["--help", "bench --help", "run --help", "doctor --help", "help run", "report -h"] {
        let text = help(80, line);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
    let narrow = help(80, "bench --help");
    // The rest of a description is below its beginning.
    let limit = narrow.lines().position(|line| line.starts_with("  limit ")).unwrap();
    let lines: Vec<&str> = narrow.lines().skip(limit).take(2).collect();
    let column = lines[0].find("nothing to clear").unwrap();
    assert!(lines[1].starts_with(&" ".repeat(column)) && lines[1].trim_end().ends_with("possible"), "{narrow}");
    let wide = help(200, "bench --help");
    assert!(wide.lines().any(|line| line.chars().count() > 120), "{wide}");
    assert!(wide.contains("the best that is possible\n"), "{wide}");
}

#[test]
fn who_names_cases_gets_every_figure_and_the_answer_last() {
    let output = hugefork("bench snapshot reset --size 8MiB --runs 1 --quiet").assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("| subject "), "{text}");
    assert!(text.lines().last().unwrap().starts_with("hugefork is better than the best other in "), "{text}");
}

#[test]
fn results_become_a_page() {
    let directory = std::env::temp_dir().join(format!("hugefork-cli-report-{}", std::process::id()));
    let page = directory.join("report.html");
    std::fs::create_dir_all(&directory).unwrap();
    let result = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/before.json");
    hugefork("report").arg(result).arg("-o").arg(&page).assert().success();
    let html = std::fs::read_to_string(&page).unwrap();
    hugefork("report").arg(result).arg("-o").arg(result).assert().code(2);
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(html.contains("</html>") && html.contains("fork-4k"), "{html}");
}

#[test]
fn a_limit_on_files_is_an_error_and_leaves_no_half_a_file() {
    let directory = std::env::temp_dir().join(format!("hugefork-cli-limit-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let result = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/before.json");
    let limited = r#"ulimit -f 4 && exec "$0" report "$1" -o "$2/page.html""#;
    let mut command = std::process::Command::new("sh");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_hugefork"), result]).arg(&directory);
    let ended = command.output().unwrap();
    let left = std::fs::read_dir(&directory).unwrap().count();
    std::fs::remove_dir_all(&directory).unwrap();
    let line = String::from_utf8(ended.stderr).unwrap();
    assert_eq!((ended.status.code(), left), (Some(2), 0), "{line}");
    assert!(line.starts_with("error: ") && line.contains("page.html") && line.lines().count() == 1, "{line}");
}

#[test]
fn text_that_cannot_be_printed_is_an_error() {
    for line in ["--help", "--version", "bench --help", "completions bash"] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let command = std::process::Command::new(assert_cmd::cargo::cargo_bin("hugefork"))
            .args(line.split_whitespace())
            .stdout(full)
            .output()
            .unwrap();
        let text = String::from_utf8(command.stderr).unwrap();
        assert!(text.starts_with("error: writing to standard output: "), "{line}: {text}");
        assert_eq!(command.status.code(), Some(1), "{line}");
    }
}

#[test]
fn a_report_on_no_figures_is_an_error_unless_another_file_has_some() {
    let [empty, other, page, counted] = ["uncounted", "uncounted-too", "uncounted-page", "counted"].map(Scratch::new);
    // Not where it is: the path may have a space, and a line of words is split there.
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/before.json"), &counted.0).unwrap();
    let mut json: Value = serde_json::from_str(&std::fs::read_to_string(&counted.0).unwrap()).unwrap();
    json["results"] = Value::Array(Vec::new());
    json["interrupted"] = Value::Bool(false);
    std::fs::write(&other.0, json.to_string()).unwrap();
    json["interrupted"] = Value::Bool(true);
    std::fs::write(&empty.0, json.to_string()).unwrap();
    let report = |files: &str| format!("report {files} -o {}", page.0.display());
    let (empty, other) = (empty.0.to_str().unwrap(), other.0.to_str().unwrap());

    let stopped = format!("{empty} holds no figures: its bench was stopped before anything was counted");
    let line = refused(&report(empty), 1);
    assert_eq!(line, format!("error: {stopped}\n"));
    let line = refused(&report(&format!("{empty} {other}")), 1);
    assert_eq!(line, format!("error: {stopped}; {other} holds no figures: nothing could be measured\n"));
    assert!(!page.0.exists());
    hugefork(&report(&format!("{empty} {}", counted.0.display()))).assert().success();
    assert!(page.0.exists());
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
fn writers_are_measured_at_each_density_with_every_subject_that_runs() {
    let file = Scratch::new("writers");
    hugefork("bench writer-latency --densities sparse,500000 --size 8MiB --runs 1 --block-size 2MiB,64KiB --json")
        .arg(&file.0)
        .assert()
        .success();
    let json = file.json();
    let results = json["results"].as_array().unwrap();
    let find = |subject: &str, density: usize, metric: &str| -> Vec<f64> {
        let wanted = |r: &&Value| r["subject"] == subject && r["params"]["density"] == density && r["metric"] == metric;
        results.iter().filter(wanted).map(|result| result["median"].as_f64().unwrap()).collect()
    };
    for density in [5_000, 500_000] {
        for (subject, times) in [("hugefork", 2), ("fork-4k", 1), ("memfd-private", 1), ("memcpy", 1)] {
            for metric in ["taken", "pause", "p50", "p90", "p99", "p99.9", "max", "total", "call", "all", "user", "sys"]
            {
                assert_eq!(find(subject, density, metric).len(), times, "{metric} of {subject}");
            }
            let [slowest, half] = ["max", "p50"].map(|metric| find(subject, density, metric)[0]);
            assert!(slowest >= half && half > 0.0, "{subject}: {half} {slowest}");
        }
        let curves = json["curves"].as_array().unwrap();
        for (over, from, to) in [("percentile", 1.0, 100.0), ("time", 0.0, 80_000.0)] {
            let ours = |c: &&Value| c["subject"] == "fork-4k" && c["params"]["density"] == density && c["over"] == over;
            let curve = curves.iter().find(ours).unwrap_or_else(|| panic!("no curve over {over}"));
            let list = |name: &str| -> Vec<f64> {
                curve[name].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
            };
            let (at, median) = (list("at"), list("median"));
            assert!(at.len() == median.len() && at.len() > 5 && at.is_sorted(), "{curve}");
            assert!(at[0] >= from && at[at.len() - 1] <= to && median.iter().all(|value| *value > 0.0), "{curve}");
        }
        // Every block of 2 MiB is written, so each is copied whole, once; of the smaller blocks not all are written.
        let all = find("memcpy", density, "amplification")[0];
        let [whole, smaller] = find("hugefork-block", density, "amplification")[..] else { panic!("two block sizes") };
        let pages = find("fork-4k", density, "amplification")[0];
        assert!(whole == all && smaller <= all && pages < smaller, "{density}: {all} {whole} {smaller} {pages}");
        let first = |r: &&Value| r["params"]["pattern"] == "random" && r["params"]["epoch"] == 1;
        assert!(results.iter().all(|result| first(&result)));
    }
}

#[test]
fn writers_are_measured_in_the_steady_state_and_clustered_on_demand() {
    let file = Scratch::new("epochs");
    let line = "bench writer-latency --densities 50000 --patterns clustered --epochs 3,1 --size 64MiB --runs 1 --details --json";
    let output = hugefork(line).arg(&file.0).assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("3125 writes (clustered, epoch 3), snapshot of 64MiB held"), "{text}");
    let json = file.json();
    for epoch in [1, 3] {
        let find = |subject: &str, metric: &str| -> f64 {
            let wanted = |r: &&Value| {
                let params = &r["params"];
                let same = r["subject"] == subject && r["metric"] == metric;
                same && params["epoch"] == epoch && params["pattern"] == "clustered"
            };
            let found = json["results"].as_array().unwrap().iter().find(wanted);
            found.unwrap_or_else(|| panic!("no {metric} of {subject}"))["median"].as_f64().unwrap()
        };
        for subject in ["hugefork", "hugefork-default"] {
            assert!(find(subject, "taken") > 0.0 && find(subject, "extra") > 0.0, "{subject}");
        }
        // Nearly all pages of two blocks are written.
        for subject in ["hugefork-block", "hugefork-page", "fork-4k", "memfd-private"] {
            let extra = find(subject, "extra");
            assert!((3.0..5.0).contains(&extra), "{subject}: {extra} MiB");
        }
        assert_eq!(find("memcpy", "extra"), 64.0);
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
fn clear_goes_over_all_block_sizes_that_are_named() {
    let file = Scratch::new("blocks");
    let line =
        "bench clear --block-size 4KiB,64KiB,2MiB --size 8MiB --runs 1 --subjects hugefork,target-last/rep,memset";
    hugefork(line).arg("--json").arg(&file.0).assert().success();
    let json = file.json();
    let results = json["results"].as_array().unwrap();
    for subject in ["hugefork", "target-last/rep", "memset"] {
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

#[test]
fn several_sizes_are_run_and_the_file_says_when() {
    let file = Scratch::new("sizes");
    hugefork("bench snapshot --subjects hugefork,fork-4k --size 4MiB,8MiB --size 16MiB --runs 1 --json")
        .arg(&file.0)
        .assert()
        .success();
    let json = file.json();
    let ours = |r: &&Value| r["subject"] == "hugefork" && r["metric"] == "pause";
    let sizes: Vec<&Value> =
        json["results"].as_array().unwrap().iter().filter(ours).map(|result| &result["params"]["size"]).collect();
    assert_eq!(sizes, ["4MiB", "8MiB", "16MiB"]);
    let date = json["date"].as_str().unwrap();
    assert!(date.starts_with("20") && date.len() == 20 && date.ends_with('Z'), "{date}");
}
