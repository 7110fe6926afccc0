//! `hugefork keep`, and `hugefork run` without `--pool`: their traces in a program, and their
//! messages.
//!
//! The tests of `hugefork-keep` check the program's memory, without the command.

mod programs;

use std::ffi::OsStr;
use std::fs;
use std::process::{Command, Stdio};

use programs::{HUGEFORK, Running, Scratch, output_of, wait_for};

/// Runs a script without and with `hugefork run`, and returns both outputs.
fn plain_and_kept(script: &str) -> (String, String) {
    let plain = output_of(Command::new("sh").args(["-c", script]).stdin(Stdio::null()));
    let kept = output_of(Command::new(HUGEFORK).args(["run", "-q", "--", "sh", "-c", script]).stdin(Stdio::null()));
    (plain, kept)
}

#[test]
fn a_program_finds_no_trace_of_its_keeper() {
    for script in [
        // The program's mappings by name, its descriptors, and its environment in order.
        "sed 's/.* //' /proc/self/maps | sort | uniq -c",
        "ls /proc/self/fd",
        "tr '\\0' '\\n' </proc/self/environ",
        // Its rights, signals, threads and filters.
        "grep -E '^(Cap|Sig|Shd|Threads|NoNewPrivs|Seccomp|THP_enabled|Uid|Gid)' /proc/self/status",
        "cat /proc/self/limits /proc/self/oom_score_adj /proc/self/timerslack_ns",
        // The program has no child that it has not made itself.
        "wc -w </proc/$$/task/$$/children; wait; echo $?",
    ] {
        let (plain, kept) = plain_and_kept(script);
        assert_eq!(kept, plain, "{script}");
        assert!(!plain.is_empty(), "{script}");
    }
}

#[test]
fn the_status_is_the_programs_and_no_pipe_is_held() {
    let scratch = Scratch::new("keep-end");
    let status = Command::new(HUGEFORK).args(["run", "-q", "--", "sh", "-c", "exit 7"]).status().unwrap();
    assert_eq!(status.code(), Some(7));
    // The pipe ends with the program: the keeper, which lives for another second, does not hold it.
    assert_eq!(output_of(Command::new(HUGEFORK).args(["run", "-q", "--", "echo", "said"])), "said\n");
    let gone = Command::new(HUGEFORK).args(["run", "--", "no-such-program"]).output().unwrap();
    assert_eq!(gone.status.code(), Some(127));
    let program = scratch.file("no-program", "text");
    let refused = Command::new(HUGEFORK).arg("run").arg("--").arg(program).output().unwrap();
    assert_eq!(refused.status.code(), Some(126));
}

/// A program that waits for all children and adopts orphans would wait for its keeper.
#[test]
fn a_program_that_adopts_orphans_has_no_keeper() {
    use std::os::unix::process::CommandExt;

    let mut run = Command::new(HUGEFORK);
    run.args(["run", "--", "sh", "-c", "wc -w </proc/$$/task/$$/children; wait"]);
    // SAFETY: the call sets a flag of the new process only.
    unsafe {
        run.pre_exec(|| match libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let output = run.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("hugefork: sh runs unchanged: "), "{said}");
    // The child that counts.
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "1\n");
}

#[test]
fn programs_without_a_loader_run() {
    let scratch = Scratch::new("keep-static");
    let source = scratch.file("hello.c", "#include <stdio.h>\nint main(void) { puts(\"runs\"); return 0; }\n");
    for (flags, why) in [(&["-static"][..], "static"), (&["-fsanitize=address"], "AddressSanitizer")] {
        let program = scratch.path().join("hello");
        let built = Command::new("cc").args(flags).arg("-o").arg(&program).arg(&source).output().unwrap();
        if !built.status.success() {
            println!("skipped: cc builds no programs with {why} here");
            continue;
        }
        let run = [OsStr::new("run"), OsStr::new("-q"), OsStr::new("--"), program.as_os_str()];
        assert_eq!(output_of(Command::new(HUGEFORK).args(run)), "runs\n", "{why}");
    }
}

#[test]
fn the_message_matches_the_action() {
    let output = Command::new(HUGEFORK).args(["run", "--", "true"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let is_kept = said == "hugefork: true is kept in huge pages from outside, once it forks\n";
    assert!(is_kept || said.starts_with("hugefork: true runs unchanged: "), "{said}");
    assert_eq!(said.lines().count(), 1);
    // Without the capability the program runs unchanged. As root, the test drops the capability from the bounding set.
    let mut bare = Command::new("setpriv");
    bare.args(["--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice", HUGEFORK, "run", "--", "echo", "runs"]);
    match bare.output() {
        Ok(output) if output.status.success() => {
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), "runs\n");
            assert!(said.contains("runs unchanged") && said.contains("cap_sys_nice"), "{said}");
        }
        _ => println!("skipped: setpriv is not there, or this user may not leave capabilities"),
    }
}

#[test]
fn mistakes_are_reported_with_a_remedy() {
    for (line, wanted) in [
        ("keep", "<PID>"),
        ("keep 4294967295", "pgrep"),
        ("keep one", "whole number"),
        ("keep --unit no-such-unit", "systemctl"),
        ("keep --cgroup /proc", "cgroup.procs"),
        ("run", "PROGRAM"),
    ] {
        let output = Command::new(HUGEFORK).args(line.split_whitespace()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.starts_with("error: ") && said.contains(wanted), "{line}: {said}");
    }
}

#[test]
fn a_table_or_json_is_printed_at_the_end() {
    let sleeper = Running::start(Command::new("sh").args(["-c", "echo ready; read line"]));
    let pid = sleeper.pid().to_string();
    let start = |option: &str| {
        let mut keep = Command::new(HUGEFORK);
        keep.args(["keep", &pid]).args(Some(option).filter(|option| !option.is_empty()));
        keep.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let (mut table, mut json) = (start(""), start("--json"));
    // Each keeper holds a descriptor of the process, or has ended because it cannot keep it.
    let keeps = |keep: &mut std::process::Child| {
        let links = fs::read_dir(format!("/proc/{}/fd", keep.id())).into_iter().flatten().flatten();
        let mut links = links.filter_map(|link| fs::read_link(link.path()).ok());
        links.any(|link| link.to_string_lossy().contains("pidfd")) || keep.try_wait().unwrap().is_some()
    };
    wait_for("the keepers", || (keeps(&mut table) && keeps(&mut json)).then_some(()));
    sleeper.end();
    let said = |keep: std::process::Child| {
        let output = keep.wait_with_output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), error)
    };
    let (is_done, text, error) = said(table);
    if error.contains("setcap") || error.contains("PAGEMAP_SCAN") {
        return println!("skipped: {error}");
    }
    assert!(is_done && text.contains("not forked"), "{text}{error}");
    let (is_done, text, _) = said(json);
    let last = text.lines().last().unwrap();
    let report: serde_json::Value = serde_json::from_str(last).unwrap();
    assert!(is_done && report["schema"] == 1, "{last}");
    assert_eq!(report["processes"][0]["pid"].to_string(), pid);
    assert!(fs::metadata(format!("/proc/{pid}")).is_err());
}
