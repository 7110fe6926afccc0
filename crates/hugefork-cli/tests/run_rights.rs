//! What rights the library's threads have in programs that give theirs up, and on which processors they run; and
//! programs that go into sandboxes. By programs of the tests' own.

mod programs;

use std::collections::HashSet;
use std::fs;
use std::process::{Command, Output};

use programs::ours::{AT_MOST, HELPED, MODES, compiled};
use programs::{Scratch, has, output_of};

const AFFINITY: &str = include_str!("programs/affinity.c");
const CREDENTIALS: &str = include_str!("programs/credentials.c");
const SANDBOXED: &str = include_str!("programs/sandboxed.c");
const STRESS: &str = include_str!("programs/stress.c");
const UNDER: &str = include_str!("programs/under.c");

/// Either mode, with and without threads in children.
fn all() -> impl Iterator<Item = &'static str> {
    MODES.into_iter().chain(HELPED)
}

#[test]
fn no_thread_has_rights_that_the_program_has_given_up() {
    if !rustix::process::getuid().is_root() {
        return println!("skipped: only root has rights to give up");
    }
    let scratch = Scratch::new("credentials");
    let Some(program) = compiled(&scratch, "credentials", CREDENTIALS) else { return };
    assert_eq!(output_of(Command::new(&program).args(["0", "main"])), "0 bad\n");
    for options in all() {
        for who in ["main", "thread"] {
            let said = scratch.run(options).args(AT_MOST).arg(&program).args(["1", who]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&said.stdout), "0 bad\n", "{options}, {who}");
        }
    }
    let said = scratch.run(HELPED[1]).args(AT_MOST).arg(&program).args(["1", "child"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "0 bad\n", "a child");
}

/// A server may keep its own threads to one processor.
#[test]
fn the_librarys_thread_runs_wherever_the_program_was_started() {
    let scratch = Scratch::new("affinity");
    let Some(program) = compiled(&scratch, "affinity", AFFINITY) else { return };
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let here = status.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap();
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).args(AT_MOST).arg(&program)), format!("{here}\n"), "{mode}");
    }
}

/// What `program` says and how it ends, under `hugefork run` as without.
fn is_as_without(case: &str) {
    let scratch = Scratch::new(&format!("sandboxed-{}", case.replace(' ', "-")));
    let Some(program) = compiled(&scratch, "sandboxed", SANDBOXED) else { return };
    let said = |command: &mut Command| {
        let Output { status, stdout, stderr } = command.args(case.split(' ')).output().unwrap();
        let text = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        (status.to_string(), text)
    };
    let plain = said(&mut Command::new(&program));
    if plain.1 != "done\n" {
        return println!("skipped: this machine lets no program do this: {plain:?}");
    }
    for options in all() {
        // Nobody else between: what is counted is the threads of the program.
        assert_eq!(said(scratch.run(options).arg(&program)), plain, "{case}: {options}");
    }
}

#[test]
fn a_program_may_allow_itself_no_more_than_malloc_and_fork_need() {
    is_as_without("program syscall");
    is_as_without("program prctl");
}

#[test]
fn so_may_its_children() {
    is_as_without("child syscall");
    is_as_without("child prctl");
    is_as_without("strict");
}

#[test]
fn programs_with_one_thread_may_enter_namespaces() {
    is_as_without("spaces");
}

/// Chromium looks whether it has one thread before it goes on.
#[test]
fn a_child_has_one_thread() {
    let scratch = Scratch::new("one-thread");
    let Some(program) = compiled(&scratch, "sandboxed", SANDBOXED) else { return };
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).arg(&program).arg("threads")), "done\n", "{mode}");
    }
}

/// As systemd's `SystemCallFilter=` and `NoNewPrivileges=`, which are there before the command. Debian's unit of Redis
/// ends whoever calls `capset` or `move_pages`.
#[test]
fn filters_of_services_allow_what_the_library_calls() {
    let scratch = Scratch::new("service");
    let Some(under) = compiled(&scratch, "under", UNDER) else { return };
    let Some(program) = compiled(&scratch, "stress", STRESS) else { return };
    for mode in MODES {
        let run = scratch.run(mode);
        let mut command = Command::new(&under);
        command.arg(run.get_program()).args(run.get_args()).arg(&program).args(["20", "3"]);
        command.env("XDG_CACHE_HOME", scratch.path()).env_remove("LD_PRELOAD").env_remove("GLIBC_TUNABLES");
        assert_eq!(output_of(&mut command), "20 forks, 0 bad\n", "{mode}");
    }
}

/// What is missing in the list of calls that the library's threads may make would only make them do less.
#[test]
fn the_librarys_threads_call_nothing_that_they_have_given_up() {
    let scratch = Scratch::new("given-up");
    let Some(program) = compiled(&scratch, "stress", STRESS) else { return };
    if !has(&["strace"]) {
        return;
    }
    for mode in HELPED {
        let file = scratch.path().join("calls");
        let arguments =
            ["-f", "-o", file.to_str().unwrap(), program.to_str().unwrap(), "10", "3", "2", "0", "in-a-child"];
        let said = scratch.run(mode).arg("strace").args(arguments).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout), "10 forks, 0 bad\n", "{mode}: {said:?}");
        let calls = fs::read_to_string(&file).unwrap();
        let thread = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
        let mut ours = HashSet::new();
        for line in calls.lines() {
            if line.contains("PR_SET_SECCOMP") {
                ours.insert(thread(line));
            }
            assert!(!line.contains("= -1 EPERM") || !ours.contains(&thread(line)), "{mode}: {line}");
        }
        assert!(!ours.is_empty(), "{mode}");
    }
}
