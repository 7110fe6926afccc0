//! A program that does everything at once under `hugefork run` (programs/stress.c): two threads write and one reads
//! from a pipe, others map, unmap, protect, empty and resize memory of their own, and children and grandchildren,
//! several at a time, look whether what they have stays as it was. No write may be lost, no call may fail, no child may
//! see what came later, and in the end nothing of it is in the pool.
//!
//! | test | the program |
//! |---|---|
//! | `with_all_rights` | is root, and so may have page faults of system calls handled |
//! | `without_rights` | is another user, who may not |
//! | `while_memory_is_short` | is root, under a limit of the control group, with swap |
//! | `without_rights_while_memory_is_short` | is another user, under such a limit |
//!
//! The ordinary tests let it fork a few times, with room: where memory is short, run_memory.rs has one that takes
//! seconds. With `HUGEFORK_STRESS_SECONDS=450` each goes on for so long, in one program after the other:
//!
//! `HUGEFORK_STRESS_SECONDS=450 cargo test --release -p hugefork-cli --test run_stress -- --nocapture --test-threads=1`
//!
//! `HUGEFORK_STRESS_SEED` is for the seed that a failure names. It decides what is done, not which thread is first.

mod programs;
#[path = "../../hugefork/tests/stress/settings.rs"]
#[allow(dead_code)] // The pages that other tests need are not needed here.
mod settings;

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use programs::ours::{HELPED, MODES, as_nobody, compiled};
use programs::{PATIENCE, Running, Scratch, wait_for};
use serde_json::Value;
use settings::Short;

const STRESS: &str = include_str!("programs/stress.c");

/// The seed of the ordinary tests.
const ORDINARY: u64 = 13;
/// As in `ours`. With swap, and beside other programs, it may take long.
const AT_MOST: [&str; 4] = ["timeout", "-s", "KILL", "900"];
/// What there may be where memory is short: of its own the program has about 200 MiB, and the pages that it writes
/// while children live come twice.
const LIMIT: usize = 256 << 20;
const SWAP: usize = 1 << 30;
/// What may be left in the pool: what the C library's `malloc` has given the program.
const LEFT: u64 = 8 << 20;

/// Who the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    All,
    /// Of a user who may not handle page faults of system calls. There is no pool then.
    None,
}

/// What one program does.
#[derive(Debug)]
struct Turn {
    /// What the program's random numbers begin with.
    seed: u64,
    mode: &'static str,
    forks: u64,
    /// Children that live at once.
    most: u64,
    /// Threads that map, unmap, protect, empty and resize.
    changers: u64,
    /// Whether a child does it all, with memory that it has inherited.
    is_in_a_child: bool,
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn turn(seed: u64, rights: Rights, is_long: bool) -> Turn {
    // SplitMix64, so that seeds next to each other have little in common.
    let mut state = seed;
    let mut below = |most: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % most
    };
    let is_pool = rights == Rights::None || !is_long || below(4) > 0;
    Turn {
        // The program takes an `int`.
        seed: below(1 << 30),
        mode: match (is_pool, below(3)) {
            (false, _) => MODES[0],
            (true, 0) => MODES[1],
            // Whatever is dense is promoted.
            (true, 1) => HELPED[1],
            (true, _) => HELPED[2],
        },
        forks: if is_long { 40 } else { 4 },
        most: [1, 3, 5, 8][below(4) as usize],
        changers: [1, 2, 2, 4][below(4) as usize],
        is_in_a_child: below(5) == 0,
    }
}

/// The only child of a process.
fn child_of(pid: u32) -> u32 {
    wait_for("a child", || {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    })
}

/// Lets the program do it. Then the pool has nothing of it any more.
fn run(turn: &Turn, is_long: bool, rights: Rights, scratch: &Scratch, program: &Path) {
    let mut command = match rights {
        Rights::All => scratch.run(turn.mode),
        Rights::None => as_nobody(scratch, Path::new("env")),
    };
    command.args(AT_MOST).arg(program);
    command.args([turn.forks, turn.most, turn.changers, turn.seed].map(|number| number.to_string()));
    if turn.is_in_a_child {
        command.arg("in-a-child");
    }
    let mut running = Running::start(&mut command);
    let mut line = String::new();
    BufReader::new(running.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, format!("{} forks, 0 bad\n", turn.forks), "{turn:?}");
    // timeout(1) is its parent.
    let program = child_of(running.pid());
    let pid = if turn.is_in_a_child { child_of(program) } else { program };
    let counted = || scratch.stats(pid).filter(|counted| counted["mode"] == "pool" && counted["pool_refused"] == 0);
    if rights == Rights::All && counted().is_some() {
        is_empty(counted, turn, is_long);
    }
    drop(running.child().stdin.take());
    assert!(running.child().wait().unwrap().success(), "{turn:?}");
}

/// Waits until nobody lives who shares anything, and nothing is there but what is kept for the next child; in the long
/// run, until that was given back too, after ten seconds.
fn is_empty(counted: impl Fn() -> Option<Value>, turn: &Turn, is_long: bool) {
    let begin = Instant::now();
    loop {
        let counted = counted().unwrap();
        let bytes = |name: &str| counted[name].as_u64().unwrap();
        let kept = bytes("pool_kept_bytes");
        if bytes("forks_alive") == 0 && bytes("pool_bytes").saturating_sub(kept) <= LEFT && (kept == 0 || !is_long) {
            assert_eq!((bytes("blocks_unseen"), bytes("pool_left")), (0, 0), "{turn:?}: {counted}");
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "something is left: {turn:?}: {counted}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// For as long as was asked for, with what the machine lends for it; once in the ordinary test.
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
        let turn = turn(seed, rights, seconds.is_some());
        // On its own line before, so that a program that does not end is known too.
        println!("seed {seed}: {turn:?}");
        run(&turn, seconds.is_some(), rights, &scratch, &program);
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
