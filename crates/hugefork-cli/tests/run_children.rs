//! What children have of their parents' memory under `hugefork run`, and what they leave behind.

mod programs;

use std::process::Command;

use programs::ours::{MODES, as_nobody, compiled};
use programs::{Running, Scratch, has, has_pool, output_of, wait_for};

const STRESS: &str = include_str!("programs/stress.c");
const HEIRS: &str = include_str!("programs/heirs.c");
const DROPPED: &str = include_str!("programs/dropped.c");
const SPACES: &str = include_str!("programs/spaces.c");
const CROWDED: &str = include_str!("programs/crowded.c");
const DAEMON: &str = include_str!("programs/daemon.c");
const MANY: &str = include_str!("programs/many.c");
const HANDLERS: &str = include_str!("programs/handlers.c");
const HANDLED: &str = include_str!("programs/handled.c");

#[test]
fn children_that_write_all_they_have_inherited_have_what_they_wrote() {
    let scratch = Scratch::new("heirs");
    let Some(program) = compiled(&scratch, "heirs", HEIRS) else { return };
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).arg(&program).arg("1")), "0 bad\n", "{mode}");
    }
}

#[test]
fn a_child_loses_no_write_either() {
    let scratch = Scratch::new("in-a-child");
    let Some(program) = compiled(&scratch, "stress", STRESS) else { return };
    for mode in MODES {
        let said = output_of(scratch.bounded(mode).arg(&program).args(["30", "3", "2", "0", "in-a-child"]));
        assert_eq!(said, "30 forks, 0 bad\n", "{mode}");
    }
}

/// A process may have 65 530 mappings, and what helps a child takes some, or is not there.
#[test]
fn a_child_lives_however_few_mappings_are_left() {
    let scratch = Scratch::new("crowded");
    let Some(program) = compiled(&scratch, "crowded", CROWDED) else { return };
    for mode in MODES {
        assert_eq!(output_of(scratch.bounded(mode).arg(&program)), "0 bad\n", "{mode}");
    }
}

#[test]
fn a_child_may_have_a_user_namespace() {
    let scratch = Scratch::new("spaces");
    let Some(program) = compiled(&scratch, "spaces", SPACES) else { return };
    if output_of(&mut Command::new(&program)) != "0 bad\n" {
        return println!("skipped: there are no user namespaces here");
    }
    for mode in MODES {
        assert_eq!(output_of(scratch.bounded(mode).arg(&program)), "0 bad\n", "{mode}");
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
    for mode in MODES {
        let more = mappings(output_of(scratch.bounded(mode).arg(&program)));
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
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).arg(&program)), "0 bad\n", "{mode}");
    }
}

/// Whoever lives no more holds nothing, however many there were: what was written is written back.
#[test]
fn many_children_leave_nothing_behind() {
    let scratch = Scratch::new("many");
    let Some(program) = compiled(&scratch, "many", MANY) else { return };
    let mut running = Running::start(scratch.run("-q --pool").arg(program));
    assert_eq!(running.lines()(), "0 bad");
    if has_pool(running.pid()) {
        wait_for("all pages to be the pool's again", || (private(running.pid()) == 0).then_some(()));
    }
    drop(running.child().stdin.take());
    assert!(running.child().wait().unwrap().success());
}

/// Bytes of a process's own over the pool's file: pages that the kernel has copied for it.
fn private(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut sum, mut is_pools) = (0, false);
    for line in text.lines() {
        if line.split(' ').next().is_some_and(|word| word.contains('-') && !word.contains(':')) {
            is_pools = line.contains("/memfd:hugefork ");
        } else if let Some(rest) = line.strip_prefix("Anonymous:").filter(|_| is_pools) {
            sum += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
        }
    }
    sum
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
