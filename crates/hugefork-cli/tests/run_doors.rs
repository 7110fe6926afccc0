//! Programs change their memory by rarely used calls under `hugefork run`.

mod programs;

use std::process::Command;

use programs::ours::{MODES, as_nobody, compiled};
use programs::{Scratch, output_of};

const MOVED: &str = include_str!("programs/moved.c");
const WATCHED: &str = include_str!("programs/watched.c");
const DOORS: &str = include_str!("programs/doors.c");

#[test]
fn memory_moved_by_a_child_is_its_own() {
    let scratch = Scratch::new("moved");
    let Some(program) = compiled(&scratch, "moved", MOVED) else { return };
    assert_eq!(output_of(&mut Command::new(&program)), "0 bad\n");
    for mode in MODES {
        assert_eq!(output_of(scratch.bounded(mode).arg(&program)), "0 bad\n", "{mode}");
    }
    if rustix::process::getuid().is_root() {
        assert_eq!(output_of(&mut as_nobody(&scratch, &program)), "0 bad\n");
    }
}

#[test]
fn a_program_handles_the_page_faults_of_its_own_memory() {
    let scratch = Scratch::new("watched");
    let Some(program) = compiled(&scratch, "watched", WATCHED) else { return };
    if output_of(&mut Command::new(&program)) == "not allowed\n" {
        return println!("skipped: this process may not handle page faults");
    }
    for mode in MODES {
        assert_eq!(output_of(scratch.bounded(mode).arg(&program)), "0 bad\n", "{mode}");
    }
}

#[test]
fn rare_calls_work() {
    let scratch = Scratch::new("doors");
    let Some(program) = compiled(&scratch, "doors", DOORS) else { return };
    assert_eq!(output_of(&mut Command::new(&program)), "0 bad\n");
    for mode in MODES {
        assert_eq!(output_of(scratch.bounded(mode).arg(&program)), "0 bad\n", "{mode}");
    }
}

/// The program replaces memory of the pool by raw system calls, which the library does not see.
#[test]
fn a_fork_preserves_unknown_mappings() {
    let scratch = Scratch::new("unseen");
    let Some(program) = compiled(&scratch, "doors", DOORS) else { return };
    assert_eq!(output_of(Command::new(&program).arg("unseen")), "0 bad\n");
    if cfg!(not(target_arch = "x86_64")) || !tells_of_mappings() {
        return println!(
            "skipped: the program cannot do so here, or the kernel does not tell what lies where (Linux 6.11)"
        );
    }
    for mode in MODES {
        assert_eq!(output_of(scratch.bounded(mode).arg(&program).arg("unseen")), "0 bad\n", "{mode}");
    }
}

/// Whether the kernel reports the mapping at an address (`PROCMAP_QUERY`).
fn tells_of_mappings() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 11)
}
