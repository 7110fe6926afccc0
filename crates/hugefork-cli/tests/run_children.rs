//! Children's view of their parents' memory under `hugefork run`, and the memory that they leave
//! behind.

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
fn children_that_write_all_inherited_memory_have_their_writes() {
    let scratch = Scratch::new("heirs");
    let Some(program) = compiled(&scratch, "heirs", HEIRS) else { return };
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).arg(&program).arg("1")), "0 bad\n", "{mode}");
    }
}

#[test]
fn no_write_of_a_child_is_lost() {
    let scratch = Scratch::new("in-a-child");
    let Some(program) = compiled(&scratch, "stress", STRESS) else { return };
    for mode in MODES {
        let said = output_of(scratch.bounded(mode).arg(&program).args(["30", "3", "2", "0", "in-a-child"]));
        assert_eq!(said, "30 forks, 0 bad\n", "{mode}");
    }
}

/// A process may have 65 530 mappings. The library needs some in a child, or does without.
#[test]
fn a_child_works_with_few_mappings_left() {
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
fn dropping_small_pieces_costs_no_mappings() {
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
        // Without the right to handle page faults, each drop takes more mappings until none is left.
        mappings(output_of(as_nobody(&scratch, &program).arg("35000")));
    }
}

/// Whether this process, and programs that it starts, may handle the page faults of system calls.
fn may_handle_faults() -> bool {
    // SAFETY: a descriptor without registered ranges has no effect.
    let opened = unsafe { rustix::mm::userfaultfd(rustix::mm::UserfaultfdFlags::CLOEXEC) };
    opened.is_ok() || std::fs::File::options().read(true).write(true).open("/dev/userfaultfd").is_ok()
}

#[test]
fn a_daemon_continues_with_its_inherited_memory() {
    let scratch = Scratch::new("daemon");
    let Some(program) = compiled(&scratch, "daemon", DAEMON) else { return };
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).arg(&program)), "0 bad\n", "{mode}");
    }
}

/// Ended children hold no memory, however many there were: written pages are written back.
#[test]
fn many_children_leave_no_copied_pages() {
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

/// Bytes of a process's private pages over the pool's file, which the kernel has copied.
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

/// In a child, other libraries' handlers may run before the library's own.
#[test]
fn handlers_of_other_libraries_can_change_memory_in_the_child() {
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

/// A child that continues with fewer rights than its parent must not get access to the parent's memory.
#[test]
fn children_have_no_descriptor_of_their_parents_memory() {
    let scratch = Scratch::new("descriptors");
    let Some(program) = compiled(&scratch, "descriptors", include_str!("programs/descriptors.c")) else { return };
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).arg(&program)), "0 bad\n", "{mode}");
    }
}
