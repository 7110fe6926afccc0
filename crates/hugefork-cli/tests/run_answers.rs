//! Programs ask for what few programs ask for, and have the kernel's own answers under `hugefork run`.

mod programs;

use std::process::Command;

use programs::ours::{MODES, compiled};
use programs::{Scratch, output_of};

const ANSWERS: &str = include_str!("programs/answers.c");

const ENDED: &str = include_str!("programs/ended.c");

const SMALL: &str = include_str!("programs/small.c");

/// So much of the program's stack the library takes at most: a piece of `/proc/self/maps` before Linux 6.11, and else
/// half of it.
const OF_THE_STACK: usize = 6 << 10;

/// Has the program do what it is named, without the library and with it.
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
fn what_a_childs_child_drops_is_zero() {
    same_answers(&["drop-in-grandchild", "drop-as-daemon"]);
}

#[test]
fn what_a_child_guards_is_zero_without_guards() {
    same_answers(&["guard"]);
}

#[test]
fn what_a_child_drops_is_zero_when_its_first_thread_has_ended() {
    same_answers(&["drop-in-thread"]);
}

#[test]
fn rings_in_the_programs_own_memory_go_on_after_a_fork() {
    same_answers(&["ring"]);
}

#[test]
fn a_program_that_may_not_write_files_lives() {
    same_answers(&["no-files"]);
}

#[test]
fn bad_pointers_are_refused() {
    same_answers(&["bad-pointers"]);
}

#[test]
fn what_a_program_opens_it_closes_whatever_the_number() {
    same_answers(&["close-all"]);
}

#[test]
fn who_closes_all_past_libc_may_fork() {
    same_answers(&["close-all-and-fork"]);
}

#[test]
fn what_a_child_drops_is_zero_without_proc() {
    same_answers(&["drop-without-proc"]);
}

#[test]
fn limits_hold_that_come_later() {
    same_answers(&["limit-addresses", "limit-addresses-in-child", "limit-data", "limit-files"]);
}

/// Where the process may not handle page faults there is no pool, and memory is the kernel's.
#[test]
fn what_a_child_drops_keeps_its_flags() {
    same_answers(&["drop-with-flags"]);
}

#[test]
fn nothing_is_found_behind_what_a_child_has_inherited() {
    same_answers(&["ends"]);
}

#[test]
fn what_a_child_has_inherited_is_not_for_its_children() {
    same_answers(&["wipe"]);
}

#[test]
fn what_a_child_has_locked_it_does_not_drop() {
    same_answers(&["drop-locked"]);
}

#[test]
fn what_a_program_says_of_huge_pages_it_hears_again() {
    same_answers(&["disable"]);
}

/// By the system call that ends one thread. The first thread's status is the process's where it was the last; where it
/// was not, that depends on the kernel and on whether the library has a thread just then. A child that lives does so
/// until its parent is gone, so a parent that waited for it would be killed in the end.
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

/// Threads and signal handlers may have few KiB.
#[test]
fn small_stacks_are_large_enough() {
    let scratch = Scratch::new("small");
    let Some(program) = compiled(&scratch, "small", SMALL) else { return };
    // The loader looks for functions before, which takes three KiB where they are called.
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
