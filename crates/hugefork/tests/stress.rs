//! A program that does everything at once. Its threads write, take cuts, fork, free, discard, pin and reset
//! (round/mod.rs describes the writers and the bytes that must be there). Beside them there are signals, `fork(2)`,
//! `exec`, and mappings that come and go (stress/noise.rs). No call is refused, but memory, mappings and blocks may run
//! out.
//!
//! | test | memory |
//! |---|---|
//! | `on_every_backing` | hugetlb of 2 MiB and 1 GiB, shmem by setting, base pages; in roomy and full pools |
//! | `in_a_tmpfs_of_its_own` | shmem under a setting that allows no huge pages |
//! | `on_collapsed_pages` | the same with `MADV_COLLAPSE`, since a filter refuses the tmpfs |
//! | `with_few_mappings` | base pages, and hardly a mapping more than the pool needs |
//! | `while_memory_is_short` | base and huge pages under a limit of the control group, with swap |
//!
//! The ordinary tests take the machine as it is, and run one round on the memory that it has. With
//! `HUGEFORK_STRESS_SECONDS=600` each test goes on for that long, and `on_every_backing` does so on each kind of
//! memory. As root, the tests set up the memory that they need, and restore the settings afterwards:
//!
//! `HUGEFORK_STRESS_SECONDS=600 cargo test --release -p hugefork --test stress -- --nocapture --test-threads=1`
//!
//! A failure prints how to repeat it, with `HUGEFORK_STRESS_SEED` and `HUGEFORK_STRESS_MEMORY`. The seed decides the
//! work of the threads, but not which thread is first.

mod common;
#[path = "stress/noise.rs"]
mod noise;
mod round;
#[path = "stress/settings.rs"]
mod settings;

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::alone::{alone, is_alone};
use common::mappings::leave;
use common::random::Random;
use common::refusals::Refusals;
use common::seccomp::{every, refuse};
use common::signals::handle_info;
use hugefork::{Backing, BlockSize, CopyGrain};
use noise::Counts;
use round::{MAY_GIVE_UP, Plan, repeat, round};
use settings::{Lent, Short};

/// The memory of a round.
type Memory = (Backing, BlockSize);

const HUGETLB: [Memory; 2] = [(Backing::Hugetlb, BlockSize::MIB_2), (Backing::Hugetlb, BlockSize::GIB_1)];
const SHMEM: [Memory; 2] = [(Backing::ShmemHuge, BlockSize::MIB_2), (Backing::ShmemHuge, BlockSize::KIB_64)];
const BASE: [Memory; 3] = [
    (Backing::ShmemBase, BlockSize::MIB_2),
    (Backing::ShmemBase, BlockSize::KIB_64),
    (Backing::ShmemBase, BlockSize::KIB_4),
];

/// The memory on which blocks of 1 GiB are tried if the machine has too few pages of 1 GiB.
const GIGANTIC_BASE: Memory = (Backing::ShmemBase, BlockSize::GIB_1);

/// The seed of the ordinary tests.
const ORDINARY: u64 = 7;
/// Number of blocks in the pool of a round with blocks of 1 GiB.
const GIGANTIC: usize = 5;
/// The memory of a process that must give most of it back all the time.
const SHORT: usize = 400 << 20;

/// Mappings for a round with small blocks. Its regions need at most 1408, so their writes always find one. Their forks
/// and snapshots may find none.
const ENOUGH: usize = 1800;

/// The resource of which a process has too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacks {
    Nothing,
    Mappings,
    Memory,
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn plan(seed: u64, (backing, block): Memory, lacks: Lacks) -> Plan {
    let mut random = Random::new(seed);
    let is_gigantic = block == BlockSize::GIB_1;
    Plan {
        seed,
        backing,
        block,
        blocks: if is_gigantic { 1 } else { 8 },
        // The checks of the stage compare all of its bytes.
        has_stage: !is_gigantic,
        grain: [CopyGrain::Auto, CopyGrain::Auto, CopyGrain::Page, CopyGrain::Block][random.below(4)],
        is_tight: is_gigantic || random.one_in(3),
        is_limited: random.one_in(8),
        has_stock: random.one_in(3),
        cuts: if is_gigantic || !is_long() { 2 } else { 5 },
        may_fail: lacks != Lacks::Nothing,
        one_in: 0,
        kinds: Vec::new(),
    }
}

/// Runs a round on each kind of memory.
fn rounds(memory: impl IntoIterator<Item = Memory>, lacks: Lacks) {
    let seed = variable("HUGEFORK_STRESS_TURN").unwrap_or(ORDINARY);
    println!("seed {seed}");
    handle_info(libc::SIGBUS, repeat);
    let before = shared_memory();
    let only = variable("HUGEFORK_STRESS_MEMORY");
    for (nth, memory) in (0..).zip(memory).filter(|(nth, _)| only.is_none_or(|only| only == *nth)) {
        if memory == HUGETLB[1] && !settings::has_gigantic_pages(GIGANTIC) {
            println!("skipped: {GIGANTIC} free hugetlb pages of 1 GiB are needed");
            continue;
        }
        let (plan, counts) = (plan(seed.wrapping_add(nth), memory, lacks), Counts::default());
        // Printed before the round, so that a round that does not end is known too.
        println!("round {nth}: {plan:?}");
        let noise = |region: &_, other: &_, over: &_| noise::make(region, other, &plan, over, &counts);
        if let Some(what) = round(&plan, &Refusals::none(), &noise) {
            println!("  {what}; {counts:?}");
            assert!(counts.children.load(Ordering::Relaxed) > 0 || plan.may_fail, "no child was made");
            assert_eq!(shared_memory(), before, "memory of the pool is still there");
        }
    }
}

/// Bytes of shared memory and hugetlb pages that this process has in its page tables.
fn shared_memory() -> u64 {
    let status = procfs::process::Process::myself().unwrap().status().unwrap();
    status.rssshmem.unwrap_or(0) + status.hugetlbpages.unwrap_or(0)
}

/// Prints how to repeat a failure, when the test panics.
struct Repeat<'a> {
    test: &'a str,
    seed: u64,
    memory: Option<u64>,
}

impl Drop for Repeat<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Repeat { test, seed, memory } = self;
            let memory = memory.map(|nth| format!(" HUGEFORK_STRESS_MEMORY={nth}")).unwrap_or_default();
            let long = if is_long() { " HUGEFORK_STRESS_SECONDS=60" } else { "" };
            println!(
                "to repeat it: HUGEFORK_STRESS_SEED={seed}{memory}{long} cargo test -p hugefork --test stress -- {test}"
            );
        }
    }
}

/// Runs a test for as long as the environment says, with the settings that `lend` makes. If there is more than one kind
/// of `memory`, runs it that long on each. In the ordinary tests, runs it once, on all kinds.
fn again_and_again<Loan>(name: &str, memory: u64, lend: impl FnOnce() -> io::Result<Loan>, test: impl Fn()) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if is_alone() {
        return test();
    }
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let lent = lend();
    if let Err(error) = &lent {
        return println!("skipped: this cannot be set up: {error}");
    }
    let (seconds, only) = (variable("HUGEFORK_STRESS_SECONDS"), variable("HUGEFORK_STRESS_MEMORY"));
    let first = variable("HUGEFORK_STRESS_SEED").unwrap_or(ORDINARY);
    let each: Vec<Option<u64>> = match (only, seconds) {
        (Some(_), _) => vec![only],
        (None, Some(_)) if memory > 1 => (0..memory).map(Some).collect(),
        (None, _) => vec![None],
    };
    for memory in each {
        let started = Instant::now();
        for turn in 0.. {
            let seed = first + 100 * turn;
            // SAFETY: no other thread of this process uses the environment: the other tests wait.
            unsafe {
                std::env::set_var("HUGEFORK_STRESS_TURN", seed.to_string());
                match memory {
                    Some(nth) => std::env::set_var("HUGEFORK_STRESS_MEMORY", nth.to_string()),
                    None => std::env::remove_var("HUGEFORK_STRESS_MEMORY"),
                }
            }
            let _repeat = Repeat { test: name, seed, memory };
            test();
            println!("seed {seed}, memory {memory:?}: done after {} s", started.elapsed().as_secs());
            if seconds.is_none_or(|seconds| started.elapsed() >= Duration::from_secs(seconds)) {
                break;
            }
        }
    }
}

fn is_long() -> bool {
    variable("HUGEFORK_STRESS_SECONDS").is_some()
}

/// In the ordinary tests, only the first kind.
fn few<const N: usize>(memory: [Memory; N]) -> impl Iterator<Item = Memory> {
    memory.into_iter().take(if is_long() { N } else { 1 })
}

/// In the ordinary tests, no setting is changed.
fn in_long_ones<const N: usize>(lend: [fn() -> io::Result<Lent>; N]) -> io::Result<Vec<Lent>> {
    if is_long() { lend.into_iter().map(|lend| lend()).collect() } else { Ok(Vec::new()) }
}

/// All kinds of memory that need no setting of their own.
fn every_backing() -> impl Iterator<Item = Memory> {
    HUGETLB.into_iter().chain(is_long().then_some(GIGANTIC_BASE)).chain(SHMEM).chain(BASE)
}

#[test]
fn on_every_backing() {
    let lend = || {
        in_long_ones([
            || settings::huge_pages(false, 260),
            || settings::huge_pages(true, GIGANTIC),
            || settings::shmem("advise"),
        ])
    };
    again_and_again("on_every_backing", every_backing().count() as u64, lend, || {
        alone(|| rounds(every_backing(), Lacks::Nothing)).well();
    });
}

#[test]
fn in_a_tmpfs_of_its_own() {
    let lend = || in_long_ones([|| settings::shmem("never")]);
    again_and_again("in_a_tmpfs_of_its_own", 1, lend, || {
        alone(|| rounds(few(SHMEM), Lacks::Nothing)).well();
    });
}

#[test]
fn on_collapsed_pages() {
    let lend = || in_long_ones([|| settings::shmem("never")]);
    again_and_again("on_collapsed_pages", 1, lend, || {
        alone(|| {
            refuse(every(libc::SYS_fsopen, libc::EPERM));
            rounds(few(SHMEM), Lacks::Nothing);
        })
        .well();
    });
}

#[test]
fn with_few_mappings() {
    let lend = || in_long_ones([|| settings::most_mappings(3000)]);
    again_and_again("with_few_mappings", 1, lend, || {
        alone(|| {
            leave(ENOUGH);
            MAY_GIVE_UP.store(true, Ordering::Relaxed);
            rounds(few([BASE[2], BASE[1]]), Lacks::Mappings);
        })
        .well();
    });
}

#[test]
fn while_memory_is_short() {
    let lend = || Ok((settings::swap(512 << 20)?, Short::enter(SHORT)?));
    again_and_again("while_memory_is_short", 1, lend, || {
        alone(|| rounds(few([BASE[1], BASE[0], SHMEM[0]]), Lacks::Memory)).well();
    });
}
