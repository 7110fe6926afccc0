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

/// Runs the command, checks that it ends with `status` and an error, and gives that back.
fn refused(line: &str, status: i32) -> String {
    let output = hugefork(line).assert().code(status).get_output().clone();
    let text = String::from_utf8(output.stderr).unwrap();
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
    assert!(refused("bench clear --subjects hugefork-upfront", 2).contains("--subjects hugefork-upfront"));
    assert!(refused("bench copy --subjects memset", 2).contains("--subjects memset"));
}

#[test]
fn a_small_bench_prints_figures_and_keeps_results() {
    let file = Scratch::new("first-touch");
    let output =
        hugefork("bench first-touch --size 16MiB --runs 1 --json").arg(&file.0).assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("first-touch: 16MiB of fresh memory, 1 CPU (medians of 1)"), "{text}");
    assert!(text.contains("only 1 counted run"), "{text}");
    assert!(text.contains("four times the last-level cache"), "{text}");
    // Standard error is no terminal, so it gets one line for each case.
    assert!(String::from_utf8(output.stderr).unwrap().contains("first-touch: "));

    let json = file.json();
    assert_eq!(json["schema"], 1);
    assert!(json["host"]["cpus"].as_u64().unwrap() > 0);
    assert!(json["command"].as_str().unwrap().starts_with("hugefork bench first-touch --size 16MiB"));
    assert_eq!(json["interrupted"], false);
    assert!(json["failed"].as_array().unwrap().is_empty());
    let results = json["results"].as_array().unwrap();
    for (subject, memory) in [("hugefork", "fresh"), ("hugefork", "recycled"), ("hugefork-upfront", "fresh")] {
        for (metric, unit) in [("pass", "ms"), ("p50", "us"), ("p99", "us"), ("cpu", "ms")] {
            let wanted = |r: &&Value| {
                let params = &r["params"];
                r["subject"] == subject && r["metric"] == metric && params["memory"] == memory && params["cpus"] == 1
            };
            let result = results.iter().find(wanted).unwrap_or_else(|| panic!("{metric} of {subject} in {json:#}"));
            assert_eq!((&result["case"], &result["unit"]), (&"first-touch".into(), &unit.into()));
            assert_eq!(result["params"]["size"], "16MiB");
            let samples = result["samples"].as_array().unwrap();
            assert!(samples.len() == 1 && samples[0] == result["median"], "{result}");
            assert!(metric == "cpu" || result["median"].as_f64().unwrap() > 0.0, "{result}");
        }
    }
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
    let run = |line: &str| {
        let line = format!("{line} --size 8MiB --runs 1 --quiet --json");
        let output = hugefork(&line).arg(&file.0).assert().success().get_output().clone();
        assert!(output.stderr.is_empty(), "{output:?}");
        (String::from_utf8(output.stdout).unwrap(), file.json())
    };
    let (text, mut json) = run("bench --tasks 2");
    let kernels = run("bench clear copy").1;
    json["results"].as_array_mut().unwrap().extend(kernels["results"].as_array().unwrap().clone());
    for case in hugefork_bench::cases::ALL {
        let ours = |r: &&Value| r["case"] == case.name() && r["subject"] == "hugefork";
        for metric in case.facts().metrics {
            let has = json["results"].as_array().unwrap().iter().filter(ours).any(|r| r["metric"] == metric.name());
            assert!(has, "{} of {case} has no hugefork in {json:#}", metric.name());
        }
    }
    assert!(json["failed"].as_array().unwrap().is_empty(), "{json:#}");
    // Figures come on request.
    assert!(text.lines().count() < 45 && !text.contains("medians of"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let quick = hugefork_bench::cases::quick();
    assert!(quick.iter().all(|case| text.lines().any(|line| line.starts_with(case.name()))), "{text}");
}

#[test]
fn a_subject_that_cannot_run_is_named_once_and_nothing_measured_is_a_failure() {
    let json = Scratch::new("kept");
    std::fs::write(&json.0, "earlier results").unwrap();
    let mut command = hugefork("bench snapshot --subjects hugefork --size 4MiB --runs 1 -q --json");
    let output = command.arg(&json.0).env("HUGEFORK_WINDOW", "nonsense").assert().code(1).get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\nnot run: hugefork: HUGEFORK_KERNEL or HUGEFORK_WINDOW: "), "{text}");
    assert_eq!(text.matches("not run: ").count(), 1, "{text}");
    let error = String::from_utf8(output.stderr).unwrap();
    let note = format!("note: nothing was counted: {} is not written\n", json.0.display());
    assert_eq!(error, note + "error: nothing was measured; see `not run` above for what would mend that\n");
    assert_eq!(std::fs::read_to_string(&json.0).unwrap(), "earlier results");
}

const SMALL: &str = "bench copy changes --subjects hugefork --size 4MiB --runs 1";

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
        assert!(of("copy") && of("changes"), "{json:#}");
        assert!(String::from_utf8(tables).unwrap().contains("\nhugefork "));
    }
    assert!(!std::path::Path::new("-").exists());
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

/// The output of a command on a terminal of that width.
fn on_a_terminal(columns: u16, command: &mut std::process::Command) -> String {
    let (terminal, its_end) = Terminal::new(columns);
    let mut child = command.env_remove("COLUMNS").stdout(its_end).spawn().unwrap();
    command.stdout(std::process::Stdio::null());
    let text = terminal.rest().replace("\r\n", "\n");
    assert!(child.wait().unwrap().success(), "{text}");
    text
}

#[test]
fn text_and_help_are_as_wide_as_the_terminal() {
    let printed = |columns, line: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_hugefork"));
        on_a_terminal(columns, command.args(line.split(' ')).env("NO_COLOR", "1"))
    };
    let answer = printed(70, &format!("{SMALL} --quiet"));
    assert!(answer.lines().all(|line| line.chars().count() <= 70), "{answer}");
    let wide = printed(200, "doctor --verbose");
    assert!(wide.lines().any(|line| line.contains("why:  ") && line.chars().count() > 90), "{wide}");
    let doctor = printed(60, "doctor");
    // Paths stay whole.
    let is_text = |line: &&str| !line.contains("mend:") && !line.contains("/sys/");
    assert!(doctor.lines().filter(is_text).all(|line| line.chars().count() <= 60), "{doctor}");
    for line in ["--help", "bench --help", "run --help", "doctor --help", "help run", "report -h"] {
        let text = printed(80, line);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}

#[test]
fn figures_of_named_cases_come_before_the_answer() {
    let output = hugefork("bench snapshot reset --size 8MiB --runs 1 --quiet").assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    let (figures, answer) = (text.rfind("(medians of 1)").unwrap(), text.find("worse than the best rival in").unwrap());
    assert!(figures < answer, "{text}");
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
    for line in ["doctor", "man", "completions bash"] {
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
    // The command gets a copy, because the path of the checkout may contain a space, and the test splits its lines at
    // spaces.
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
fn a_snapshot_has_every_figure_with_every_subject_that_runs() {
    let file = Scratch::new("snapshot");
    hugefork("bench snapshot --size 8MiB --runs 1 -q --json").arg(&file.0).assert().success();
    let json = file.json();
    let results = json["results"].as_array().unwrap();
    let find = |subject: &str, held: usize, metric: &str| -> f64 {
        let wanted = |r: &&Value| r["subject"] == subject && r["params"]["held"] == held && r["metric"] == metric;
        let found: Vec<f64> = results.iter().filter(wanted).map(|r| r["median"].as_f64().unwrap()).collect();
        assert_eq!(found.len(), 1, "{metric} of {subject}, {held} held");
        found[0]
    };
    for held in [0, 10] {
        for subject in ["hugefork", "fork-4k"].into_iter().chain((held == 0).then_some("memcpy")) {
            let ranks = ["p50", "p99", "p99.9", "max"].map(|metric| find(subject, held, metric));
            assert!(ranks.is_sorted() && ranks[0] > 0.0, "{subject}: {ranks:?}");
            assert!(find(subject, held, "call") > 0.0 && find(subject, held, "cpu") >= 0.0);
            find(subject, held, "memory");
            // The first writes were due when the call began.
            assert!(ranks[3] >= find(subject, held, "call") * 1e3, "{subject}, {held} held: {ranks:?}");
        }
    }
}

#[test]
fn a_named_kernel_is_measured_near_and_whole() {
    let file = Scratch::new("kernel");
    hugefork("bench clear --full --subjects straight/portable,memset --size 8MiB --runs 1 --json")
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
    let line = "bench clear --full --block-size 4KiB,64KiB,2MiB --size 8MiB --runs 1 --subjects hugefork,target-last/rep,memset";
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
fn several_sizes_are_run_and_the_file_says_when() {
    let file = Scratch::new("sizes");
    hugefork("bench snapshot --subjects hugefork,fork-4k --size 4MiB,8MiB --size 16MiB --runs 1 --json")
        .arg(&file.0)
        .assert()
        .success();
    let json = file.json();
    let ours = |r: &&Value| r["subject"] == "hugefork" && r["metric"] == "call" && r["params"]["held"] == 0;
    let sizes: Vec<&Value> =
        json["results"].as_array().unwrap().iter().filter(ours).map(|result| &result["params"]["size"]).collect();
    assert_eq!(sizes, ["4MiB", "8MiB", "16MiB"]);
    let date = json["date"].as_str().unwrap();
    assert!(date.starts_with("20") && date.len() == 20 && date.ends_with('Z'), "{date}");
}
