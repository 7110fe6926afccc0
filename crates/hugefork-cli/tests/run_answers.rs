//! Programs make rare calls, and get the kernel's own results under `hugefork run`.

mod programs;

use std::process::Command;

use programs::ours::{MODES, compiled};
use programs::{Scratch, output_of};

const ANSWERS: &str = include_str!("programs/answers.c");

const ENDED: &str = include_str!("programs/ended.c");

const SMALL: &str = include_str!("programs/small.c");

/// Maximum use of the program's stack by the library: a piece of `/proc/self/maps` before Linux 6.11, and otherwise
/// half of it.
const OF_THE_STACK: usize = 6 << 10;

/// Runs the program's test of that name without and with the library.
fn same_answers(names: &[&str]) {
    let scratch = Scratch::new(names[0]);
    let Some(program) = compiled(&scratch, "answers", ANSWERS) else { return };
    for name in names {
        assert_eq!(output_of(Command::new(&program).arg(name)), "0 bad\n", "{name}");
        for mode in MODES {
            assert_eq!(output_of(scratch.bounded(mode).arg(&program).arg(name)), "0 bad\n", "{name}, {mode}");
        }
    }
}

#[test]
fn memory_dropped_by_a_childs_child_is_zero() {
    same_answers(&["drop-in-grandchild", "drop-as-daemon"]);
}

#[test]
fn guarded_memory_in_a_child_is_zero_without_guards() {
    same_answers(&["guard"]);
}

#[test]
fn memory_dropped_after_the_first_thread_has_ended_is_zero() {
    same_answers(&["drop-in-thread"]);
}

#[test]
fn rings_in_the_programs_memory_work_after_a_fork() {
    same_answers(&["ring"]);
}

#[test]
fn a_program_that_may_not_write_files_runs() {
    same_answers(&["no-files"]);
}

#[test]
fn bad_pointers_are_refused() {
    same_answers(&["bad-pointers"]);
}

#[test]
fn a_program_can_use_every_descriptor_number() {
    same_answers(&["close-all"]);
}

#[test]
fn a_program_that_closes_all_descriptors_past_libc_can_fork() {
    same_answers(&["close-all-and-fork"]);
}

#[test]
fn memory_dropped_without_proc_is_zero() {
    same_answers(&["drop-without-proc"]);
}

#[test]
fn later_limits_apply() {
    same_answers(&["limit-addresses", "limit-addresses-in-child", "limit-data", "limit-files"]);
}

/// If the process may not handle page faults there is no pool, and memory is the kernel's.
#[test]
fn dropped_memory_preserves_its_flags() {
    same_answers(&["drop-with-flags"]);
}

#[test]
fn addresses_after_inherited_memory_are_unmapped() {
    same_answers(&["ends"]);
}

#[test]
fn memory_excluded_from_children_is_missing_there() {
    same_answers(&["wipe"]);
}

#[test]
fn locked_memory_in_a_child_is_not_dropped() {
    same_answers(&["drop-locked"]);
}

#[test]
fn a_program_reads_back_its_huge_page_setting() {
    same_answers(&["disable"]);
}

/// Threads end by the system call that ends one thread. If the first thread was the last, its status is the process's;
/// otherwise the status depends on the kernel and on whether the library has a thread at that moment. A living child
/// waits for the end of its parent, so a parent that waits for it would be killed in the end.
#[test]
fn a_program_ends_with_its_last_thread() {
    let scratch = Scratch::new("ended");
    let Some(program) = compiled(&scratch, "ended", ENDED) else { return };
    for mode in MODES {
        for (who, status) in [("first", [7, 7]), ("other", [5, 9]), ("libc", [0, 0])] {
            for child in ["child-lives", "child-has-ended"] {
                let ended = scratch.bounded(mode).arg(&program).args([who, child]).status().unwrap();
                assert!(status.map(Some).contains(&ended.code()), "{who}, {child}, {mode}: {ended}");
            }
        }
    }
}

/// Threads and signal handlers may have only a few KiB of stack.
#[test]
fn small_stacks_are_large_enough() {
    let scratch = Scratch::new("small");
    let Some(program) = compiled(&scratch, "small", SMALL) else { return };
    // The loader resolves functions early; at their first call this would take three KiB.
    let depths = |said: &str| -> Vec<(String, usize)> {
        let each = said.lines().filter_map(|line| line.split_once(' '));
        each.map(|(name, depth)| (name.to_owned(), depth.parse().unwrap())).collect()
    };
    let plain = depths(&output_of(Command::new(&program).env("LD_BIND_NOW", "1")));
    assert_eq!(plain.len(), 22);
    for mode in MODES {
        let ours = depths(&output_of(scratch.bounded(mode).arg(&program).env("LD_BIND_NOW", "1")));
        println!("{mode}: {ours:?}, without: {plain:?}");
        for ((name, depth), (same, least)) in ours.iter().zip(&plain) {
            assert_eq!(name, same);
            assert!(*depth <= least + OF_THE_STACK, "{name}, {mode}: {depth} bytes, and {least} without");
        }
        assert_eq!(ours.len(), plain.len());
    }
}
