//! `hugefork stats` of processes that wish whoever looks at them ill.

mod programs;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Command;

use programs::ours::{AT_MOST, compiled};
use programs::{HUGEFORK, Running, Scratch, has, wait_for};

#[test]
fn nobody_waits_for_a_process_that_gives_other_things_the_names_of_statistics() {
    let scratch = Scratch::new("hostile");
    let Some(program) = compiled(&scratch, "hostile", include_str!("programs/hostile.c")) else { return };
    for (kind, why) in [
        ("pipe", "does not run under `hugefork run`"),
        ("faults", "the statistics of process"),
        ("names", "neither mapped nor forked anything big"),
    ] {
        let mut running = Running::start(Command::new(&program).arg(kind).arg(scratch.path()));
        let mut line = String::new();
        BufReader::new(running.child().stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        if line != "ready\n" {
            println!("skipped: this user can make no `{kind}` here");
            continue;
        }
        let mut stats = Command::new(AT_MOST[0]);
        let output =
            stats.args(&AT_MOST[1..]).args([HUGEFORK, "stats"]).arg(running.pid().to_string()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{kind}: {said}");
        assert!(said.contains(why), "{kind}: {said}");
    }
}

/// Whoever has a descriptor of the page can write to it, and no more: a child by `clone(2)` itself may have one.
#[test]
fn nobody_can_take_the_page_of_statistics_away() {
    if !has(&["python3"]) {
        return;
    }
    let scratch = Scratch::new("sealed");
    let program = "import os, sys; big = bytearray(64 << 20); os.fork() or os._exit(0); os.wait(); sys.stdin.read()";
    let running = Running::start(scratch.run("-q").args(["python3", "-c", program]));
    let page = wait_for("the page", || {
        let all = fs::read_dir(format!("/proc/{}/fd", running.pid())).ok()?.flatten();
        let is_page = |path: &std::path::PathBuf| {
            fs::read_link(path).is_ok_and(|leads| leads.to_str().is_some_and(|leads| leads.contains("hugefork-stats")))
        };
        all.map(|entry| entry.path()).find(is_page)
    });
    // It may be found in the moment before it is sealed.
    wait_for("the statistics", || scratch.stats(running.pid()));
    let file = fs::File::options().read(true).write(true).open(page).unwrap();
    assert_eq!(file.set_len(0).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    assert_eq!(file.set_len(8192).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    let (status, _) = running.end();
    assert!(status.success());
}
