//! Programs that enter sandboxes.

mod programs;

use std::process::{Command, Output};

use programs::ours::{MODES, compiled};
use programs::{Scratch, output_of};

const SANDBOXED: &str = include_str!("programs/sandboxed.c");
const STRESS: &str = include_str!("programs/stress.c");
const UNDER: &str = include_str!("programs/under.c");

/// The output and status of `program`, which must be the same with and without `hugefork run`.
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
    for options in MODES {
        // No shell runs in between, because the case counts the threads of the program.
        assert_eq!(said(scratch.run(options).arg(&program)), plain, "{case}: {options}");
    }
}

#[test]
fn a_program_can_restrict_itself_to_the_calls_of_malloc_and_fork() {
    is_as_without("program syscall");
    is_as_without("program prctl");
}

#[test]
fn its_children_can_restrict_themselves_too() {
    is_as_without("child syscall");
    is_as_without("child prctl");
    is_as_without("strict");
}

#[test]
fn single_threaded_programs_can_enter_namespaces() {
    is_as_without("spaces");
}

/// Chromium checks that it has one thread before it continues.
#[test]
fn a_child_has_one_thread() {
    let scratch = Scratch::new("one-thread");
    let Some(program) = compiled(&scratch, "sandboxed", SANDBOXED) else { return };
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).arg(&program).arg("threads")), "done\n", "{mode}");
    }
}

/// Like systemd's `SystemCallFilter=` and `NoNewPrivileges=`, which are active before the command. Debian's Redis unit
/// kills a process that calls `capset` or `move_pages`.
#[test]
fn filters_of_services_allow_the_librarys_calls() {
    let scratch = Scratch::new("service");
    let Some(under) = compiled(&scratch, "under", UNDER) else { return };
    let Some(program) = compiled(&scratch, "stress", STRESS) else { return };
    for mode in MODES {
        let run = scratch.run(mode);
        let mut command = Command::new(&under);
        command.arg(run.get_program()).args(run.get_args()).arg(&program).args(["20", "3"]);
        command.env("HUGEFORK_POOL", "all").env_remove("LD_PRELOAD");
        assert_eq!(output_of(&mut command), "20 forks, 0 bad\n", "{mode}");
    }
}
