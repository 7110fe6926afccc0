//! A program does everything at once under `hugefork run` (programs/stress.c). Two threads write
//! and one reads from a pipe; others map, unmap, protect, empty and resize memory of their own; and
//! several children and grandchildren at a time check that their memory does not change. No write
//! may be lost, no call may fail, and no child may see later writes.
//!
//! | test | the program |
//! |---|---|
//! | `with_all_rights` | is root, and may handle the page faults of system calls |
//! | `without_rights` | is another user without that right |
//! | `while_memory_is_short` | is root, under a limit of the control group, with swap |
//! | `without_rights_while_memory_is_short` | is another user, under such a limit |
//!
//! The ordinary tests fork a few times, with enough memory; run_memory.rs has a short test with
//! little memory. With `HUGEFORK_STRESS_SECONDS=450` each test runs for that long, one program
//! after the other:
//!
//! `HUGEFORK_STRESS_SECONDS=450 cargo test --release -p hugefork-cli --test run_stress -- --nocapture --test-threads=1`
//!
//! `HUGEFORK_STRESS_SEED` repeats the seed of a failure. It fixes the operations, not the order of
//! the threads.

mod programs;
#[path = "../../hugefork/tests/stress/settings.rs"]
#[allow(dead_code)] // The pages that other tests need are not needed here.
mod settings;

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use programs::ours::{as_nobody, compiled};
use programs::{Running, Scratch};
use settings::Short;

const STRESS: &str = include_str!("programs/stress.c");

/// The seed of the ordinary tests.
const ORDINARY: u64 = 13;
/// Limits for runs with little memory: the program itself uses about 200 MiB, and pages that it writes while children
/// live take twice their size.
const LIMIT: usize = 256 << 20;
const SWAP: usize = 1 << 30;

/// The user of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    All,
    /// A user who may not handle page faults of system calls. There is no pool then.
    None,
}

/// The parameters of one run.
#[derive(Debug)]
struct Turn {
    /// The random seed of the program.
    seed: u64,
    forks: u64,
    /// Number of children that live at once.
    most: u64,
    /// Number of threads that map, unmap, protect, empty and resize.
    changers: u64,
    /// Whether everything happens in a child with inherited memory.
    is_in_a_child: bool,
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn turn(seed: u64, is_long: bool) -> Turn {
    // SplitMix64, so that neighbouring seeds have little in common.
    let mut state = seed;
    let mut below = |most: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % most
    };
    Turn {
        // The program parses an `int`.
        seed: below(1 << 30),
        forks: if is_long { 40 } else { 4 },
        most: [1, 3, 5, 8][below(4) as usize],
        changers: [1, 2, 2, 4][below(4) as usize],
        is_in_a_child: below(5) == 0,
    }
}

/// Runs the program.
fn run(turn: &Turn, rights: Rights, scratch: &Scratch, program: &Path) {
    let mut command = match rights {
        Rights::All => scratch.run("-q --pool"),
        Rights::None => as_nobody(scratch, program),
    };
    if rights == Rights::All {
        command.arg(program);
    }
    command.args([turn.forks, turn.most, turn.changers, turn.seed].map(|number| number.to_string()));
    if turn.is_in_a_child {
        command.arg("in-a-child");
    }
    let mut running = Running::start(&mut command);
    assert_eq!(running.lines()(), format!("{} forks, 0 bad", turn.forks), "{turn:?}");
    drop(running.child().stdin.take());
    assert!(running.child().wait().unwrap().success(), "{turn:?}");
}

/// Runs for the requested time; once in the ordinary test.
fn again_and_again<Loan>(name: &str, rights: Rights, lend: impl FnOnce() -> io::Result<Loan>) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new(name);
    let Some(program) = compiled(&scratch, "stress", STRESS) else { return };
    if rights == Rights::None && !rustix::process::getuid().is_root() {
        return println!("skipped: only root can run a program as another user");
    }
    let seconds = variable("HUGEFORK_STRESS_SECONDS").map(Duration::from_secs);
    let lent = lend();
    if let Err(error) = &lent {
        return println!("skipped: this cannot be set up: {error}");
    }
    let first = variable("HUGEFORK_STRESS_SEED").unwrap_or(ORDINARY);
    let started = Instant::now();
    for seed in first.. {
        let turn = turn(seed, seconds.is_some());
        // Printed before the run, so that the seed of a hanging program is known too.
        println!("seed {seed}: {turn:?}");
        run(&turn, rights, &scratch, &program);
        println!("seed {seed}: done after {} s", started.elapsed().as_secs());
        if seconds.is_none_or(|seconds| started.elapsed() >= seconds) {
            break;
        }
    }
}

/// A limit, and a swap file.
fn short() -> io::Result<(settings::Lent, Short)> {
    if variable("HUGEFORK_STRESS_SECONDS").is_none() {
        return Err(io::Error::other("without HUGEFORK_STRESS_SECONDS, nobody waits for a program that swaps"));
    }
    Ok((settings::swap(SWAP)?, Short::enter(LIMIT)?))
}

#[test]
fn with_all_rights() {
    again_and_again("with-all-rights", Rights::All, || Ok(()));
}

#[test]
fn without_rights() {
    again_and_again("no-rights", Rights::None, || Ok(()));
}

#[test]
fn while_memory_is_short() {
    again_and_again("short", Rights::All, short);
}

#[test]
fn without_rights_while_memory_is_short() {
    again_and_again("short-no-rights", Rights::None, short);
}
