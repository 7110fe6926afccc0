//! What children have of their parents' memory under `hugefork run`, and what they leave behind.

mod programs;

use std::process::Command;

use programs::ours::{AT_MOST, HELPED, MODES, as_nobody, compiled};
use programs::{Running, Scratch, has, output_of, wait_for};

const STRESS: &str = include_str!("programs/stress.c");
const HEIRS: &str = include_str!("programs/heirs.c");
const DROPPED: &str = include_str!("programs/dropped.c");
const SPACES: &str = include_str!("programs/spaces.c");
const TAKERS: &str = include_str!("programs/takers.c");
const COUNTED: &str = include_str!("programs/counted.c");
const CROWDED: &str = include_str!("programs/crowded.c");
const DAEMON: &str = include_str!("programs/daemon.c");
const MANY: &str = include_str!("programs/many.c");
const FEW: &str = include_str!("programs/few.c");
const REFUSED: &str = include_str!("programs/refused.c");
const HANDLERS: &str = include_str!("programs/handlers.c");
const HANDLED: &str = include_str!("programs/handled.c");

#[test]
fn children_that_write_all_they_have_inherited_have_what_they_wrote() {
    let scratch = Scratch::new("heirs");
    let Some(program) = compiled(&scratch, "heirs", HEIRS) else { return };
    for mode in MODES.into_iter().chain(HELPED) {
        assert_eq!(output_of(scratch.run(mode).arg(&program).arg("1")), "0 bad\n", "{mode}");
    }
}

#[test]
fn a_child_loses_no_write_either() {
    let scratch = Scratch::new("in-a-child");
    let Some(program) = compiled(&scratch, "stress", STRESS) else { return };
    for mode in MODES.into_iter().chain(HELPED) {
        let said = output_of(scratch.run(mode).args(AT_MOST).arg(&program).args(["30", "3", "2", "0", "in-a-child"]));
        assert_eq!(said, "30 forks, 0 bad\n", "{mode}");
    }
}

/// Whoever may have faults handled can have children, too, whose memory becomes their own beside them.
#[test]
fn what_a_child_writes_densely_becomes_its_own_memory() {
    let scratch = Scratch::new("takers");
    let Some(program) = compiled(&scratch, "takers", TAKERS) else { return };
    for mode in HELPED {
        let mut running = Running::start(scratch.run(mode).args(AT_MOST).arg(&program));
        let mut line = running.lines();
        let pid = line().parse().unwrap();
        let is_refused = has_no_pool(&scratch, pid);
        if mode.ends_with("pool") && is_refused {
            println!("skipped: the engine cannot work here; it says why in `hugefork doctor`");
        } else if mode == HELPED[1] {
            // All but those at the ends of the program's memory that it shares with something else.
            let privatised = || scratch.stats(pid).map_or(0, |stats| stats["blocks_privatised"].as_u64().unwrap());
            wait_for("the child's blocks to be privatised", || (privatised() >= 46).then_some(()));
            assert!(privatised() <= 48, "{} of 48", privatised());
        }
        drop(running.child().stdin.take());
        assert_eq!(line(), "0 bad", "{mode}");
        assert!(running.child().wait().unwrap().success(), "{mode}");
    }
}

/// What it has written and then has as before is its parent's again, beside threads that write, and in its children.
#[test]
fn what_a_child_has_as_before_is_shared_again_and_no_write_is_lost() {
    count_references(&[]);
}

/// What it has written and then has as before is its child's, too, beside threads that write and other children.
#[test]
fn what_a_parent_has_as_before_is_shared_again_and_no_write_is_lost() {
    count_references(&["in the parent"]);
}

fn count_references(who: &[&str]) {
    let scratch = Scratch::new(if who.is_empty() { "counted" } else { "counted-in-the-parent" });
    let Some(program) = compiled(&scratch, "counted", COUNTED) else { return };
    let mut running = Running::start(scratch.run(HELPED[2]).args(AT_MOST).arg(&program).args(who));
    let mut line = running.lines();
    let pid = line().parse().unwrap();
    let owner = if who.is_empty() { parents_stats(&scratch, pid) } else { scratch.stats(pid).unwrap() };
    let has_no_pool = owner["pool_refused"] == 1;
    if has_no_pool {
        println!("skipped: the engine cannot work here; it says why in `hugefork doctor`");
    }
    let wait_for_pages = |pid: u32, least: u64| {
        let given_back = || scratch.stats(pid).map_or(0, |stats| stats["pages_given_back"].as_u64().unwrap());
        wait_for("pages to be given back", || (has_no_pool || given_back() >= least).then_some(()));
    };
    // All of the first part, and the second more than twice.
    wait_for_pages(pid, 60 * 512);
    assert!(has_no_pool || scratch.stats(pid).unwrap()["sharing_usec"].as_u64().unwrap() > 0);
    let mut input = running.child().stdin.take().unwrap();
    let mut go_on = || std::io::Write::write_all(&mut input, b".").unwrap();
    for _ in 0..3 {
        go_on();
        wait_for_pages(line().parse().unwrap(), 512);
        go_on();
    }
    drop(input);
    assert_eq!(line(), "0 bad");
    assert!(running.child().wait().unwrap().success());
}

/// The statistics of the parent of a process.
fn parents_stats(scratch: &Scratch, child: u32) -> serde_json::Value {
    let parent = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
    scratch.stats(parent.split(' ').nth(3).unwrap().parse().unwrap()).unwrap()
}

/// Whether the parent of a process could have no pool.
fn has_no_pool(scratch: &Scratch, child: u32) -> bool {
    parents_stats(scratch, child)["pool_refused"] == 1
}

/// A process may have 65 530 mappings, and what helps a child takes some, or is not there.
#[test]
fn a_child_lives_however_few_mappings_are_left() {
    let scratch = Scratch::new("crowded");
    let Some(program) = compiled(&scratch, "crowded", CROWDED) else { return };
    for mode in MODES.into_iter().chain(HELPED) {
        assert_eq!(output_of(scratch.run(mode).args(AT_MOST).arg(&program)), "0 bad\n", "{mode}");
    }
}

/// Whatever the kernel refuses to what helps a child, and to what stands in for its calls. Many more were tried: for
/// those, the program takes a number of children.
#[test]
fn what_the_kernel_refuses_beside_a_child_changes_none_of_its_memory() {
    let scratch = Scratch::new("refused");
    let Some(program) = compiled(&scratch, "refused", REFUSED) else { return };
    for mode in &HELPED[1..] {
        match &*output_of(scratch.run(mode).args(AT_MOST).arg(&program).args(["4", "1"])) {
            "no filter\n" => println!("skipped: the kernel has no filters that ask, or the process may have none"),
            said => assert_eq!(said, "0 bad\n", "{mode}"),
        }
    }
}

#[test]
fn a_child_may_have_a_user_namespace() {
    let scratch = Scratch::new("spaces");
    let Some(program) = compiled(&scratch, "spaces", SPACES) else { return };
    if output_of(&mut Command::new(&program)) != "0 bad\n" {
        return println!("skipped: there are no user namespaces here");
    }
    for mode in MODES.into_iter().chain(HELPED) {
        assert_eq!(output_of(scratch.run(mode).args(AT_MOST).arg(&program)), "0 bad\n", "{mode}");
    }
}

/// A process may have 65 530 mappings, and Redis drops each value that its child has saved.
#[test]
fn what_a_child_drops_piece_by_piece_costs_no_mappings() {
    let scratch = Scratch::new("dropped");
    let Some(program) = compiled(&scratch, "dropped", DROPPED) else { return };
    let mappings = |said: String| {
        let number = said.strip_suffix(" mappings more, 0 bad\n").unwrap_or_else(|| panic!("{said}"));
        number.parse::<usize>().unwrap()
    };
    for mode in MODES.into_iter().chain(HELPED) {
        let more = mappings(output_of(scratch.run(mode).args(AT_MOST).arg(&program)));
        if may_handle_faults() {
            assert!(more < 100, "{mode}: {more} of them");
        }
    }
    if rustix::process::getuid().is_root() {
        // Somebody who may not handle page faults has more of them, and then none.
        mappings(output_of(as_nobody(&scratch, &program).arg("35000")));
    }
}

/// Whether this process, and what it starts, may handle the page faults of system calls.
fn may_handle_faults() -> bool {
    // SAFETY: as long as nothing is registered, it does nothing.
    let opened = unsafe { rustix::mm::userfaultfd(rustix::mm::UserfaultfdFlags::CLOEXEC) };
    opened.is_ok() || std::fs::File::options().read(true).write(true).open("/dev/userfaultfd").is_ok()
}

#[test]
fn a_daemon_goes_on_with_what_it_has_inherited() {
    let scratch = Scratch::new("daemon");
    let Some(program) = compiled(&scratch, "daemon", DAEMON) else { return };
    for mode in MODES.into_iter().chain(HELPED) {
        assert_eq!(output_of(scratch.run(mode).arg(&program)), "0 bad\n", "{mode}");
    }
}

/// Whoever lives no more holds nothing, however many there were: what was written is written back.
#[test]
fn many_children_leave_nothing_behind() {
    let scratch = Scratch::new("many");
    let Some(program) = compiled(&scratch, "many", MANY) else { return };
    let mut running = Running::start(scratch.run("-q --mode pool").arg(program));
    assert_eq!(running.lines()(), "0 bad");
    let known = scratch.stats(running.pid()).unwrap();
    if known["pool_refused"] == 1 {
        println!("skipped: the engine cannot work here; it says why in `hugefork doctor`");
        return;
    }
    let count = |name: &str| scratch.stats(running.pid()).unwrap()[name].as_u64().unwrap();
    wait_for("nobody to live", || (count("forks_alive") == 0).then_some(()));
    wait_for("the pages to be written back", || (count("pages_written_back") >= 32).then_some(()));
    drop(running.child().stdin.take());
    assert!(running.child().wait().unwrap().success());
}

/// Who may open no more files is known to live, too.
#[test]
fn a_fork_without_descriptors_is_over_some_time() {
    let scratch = Scratch::new("few");
    let Some(program) = compiled(&scratch, "few", FEW) else { return };
    let mut running = Running::start(scratch.run("-q --mode pool").arg(program));
    let pid = running.pid();
    let mut line = running.lines();
    for pages in [32, 64] {
        assert_eq!(line(), "written");
        let known = scratch.stats(pid).unwrap();
        if known["pool_refused"] == 1 {
            println!("skipped: the engine cannot work here; it says why in `hugefork doctor`");
            return;
        }
        let written_back = || scratch.stats(pid).unwrap()["pages_written_back"].as_u64().unwrap();
        wait_for("the pages to be written back", || (written_back() >= pages).then_some(()));
        std::io::Write::write_all(running.child().stdin.as_mut().unwrap(), b"\n").unwrap();
    }
    assert!(running.child().wait().unwrap().success());
}

/// In a child, handlers of others may be called before the library's own.
#[test]
fn handlers_of_others_change_memory_in_the_child() {
    let scratch = Scratch::new("handlers");
    if !has(&["cc"]) {
        return;
    }
    let (library, source) = (scratch.path().join("libhandlers.so"), scratch.file("handlers.c", HANDLERS));
    output_of(Command::new("cc").args(["-O1", "-shared", "-fPIC", "-pthread", "-o"]).arg(&library).arg(source));
    let (program, source) = (scratch.path().join("handled"), scratch.file("handled.c", HANDLED));
    output_of(Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).arg(&library));
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).arg(&program)), "0 bad\n", "{mode}");
    }
}

/// A child that goes on with fewer rights than its parent must not get at the parent's memory.
#[test]
fn children_have_no_descriptor_of_their_parents_memory() {
    let scratch = Scratch::new("descriptors");
    let Some(program) = compiled(&scratch, "descriptors", include_str!("programs/descriptors.c")) else { return };
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).arg(&program)), "0 bad\n", "{mode}");
    }
}
