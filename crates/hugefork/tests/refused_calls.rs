//! System calls fail while other threads work. Threads write by block and by page, take and drop forks and snapshots,
//! free, discard and pin; the pool's own threads write back and promote; one call in a few is refused. round/mod.rs
//! describes the writers and the bytes that must be there.
//!
//! `HUGEFORK_REFUSED_SECONDS=1800` goes on for that long, in one process after the other. `HUGEFORK_REFUSED_SEED` takes
//! the seed that a failure prints; it decides the work of the threads, but not which thread is first.

mod common;
mod round;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::alone::alone;
use common::random::Random;
use common::refusals::{KINDS, Kind, Refusals};
use common::signals::handle_info;
use hugefork::{Backing, BlockSize, CopyGrain};
use round::{Plan, repeat, round};

/// Rounds of the ordinary test.
const ROUNDS: usize = 12;
/// The number of cuts that each cutter makes in a round.
const CUTS: usize = 6;

/// One round.
fn plan(seed: u64) -> Plan {
    let mut random = Random::new(seed);
    let backing = [Backing::ShmemHuge, Backing::ShmemBase, Backing::ShmemBase, Backing::Hugetlb][random.below(4)];
    let block = match backing {
        Backing::Hugetlb => BlockSize::MIB_2,
        _ => [BlockSize::MIB_2, BlockSize::KIB_64, BlockSize::KIB_64, BlockSize::KIB_4][random.below(4)],
    };
    let grain = [CopyGrain::Auto, CopyGrain::Auto, CopyGrain::Page, CopyGrain::Page, CopyGrain::Block][random.below(5)];
    // In some rounds only calls of one kind are refused, but more often. If a region cannot be unmapped, its blocks are
    // lost, so that is tried in only some rounds; and never with hugetlb, because later rounds would have too few
    // pages.
    let mut kinds: Vec<Kind> = KINDS.into_iter().filter(|&kind| kind != Kind::Hide).collect();
    let mut one_in = [4, 10, 30, 100][random.below(4)];
    match random.below(6) {
        0 if backing != Backing::Hugetlb => kinds.push(Kind::Hide),
        1 => (kinds, one_in) = (vec![kinds[random.below(kinds.len())], Kind::Look], 2),
        _ => {}
    }
    Plan {
        seed,
        backing,
        block,
        blocks: 8,
        has_stage: true,
        grain,
        is_tight: random.one_in(4),
        is_limited: random.one_in(8),
        has_stock: random.one_in(3),
        cuts: CUTS,
        may_fail: true,
        one_in,
        kinds,
    }
}

/// The seed of the ordinary test.
const ORDINARY: u64 = 15;

/// The seed of this process. In the ordinary test it is always the same.
fn seed(is_long: bool) -> u64 {
    match std::env::var("HUGEFORK_REFUSED_SEED") {
        Ok(seed) => seed.parse().expect("HUGEFORK_REFUSED_SEED is a number"),
        Err(_) if is_long => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 & 0xffff_ffff,
        Err(_) => ORDINARY,
    }
}

fn rounds(is_long: bool) {
    let seed = seed(is_long);
    println!("seed {seed}");
    let refusals = match Refusals::start(seed) {
        Ok(refusals) => refusals,
        Err(error) => return println!("skipped: no supervised system calls: {error}"),
    };
    handle_info(libc::SIGBUS, repeat);
    let mut done = 0;
    for nth in 0..ROUNDS as u64 {
        let plan = plan(seed.wrapping_add(nth));
        // Printed before the round, so that a round that does not end is known too.
        println!("round {nth}: {plan:?}");
        if let Some(what) = round(&plan, &refusals, &|_, _, _| ()) {
            println!("  {what}");
            done += 1;
        }
    }
    println!("{done} rounds; {}", refusals.table());
    for kind in [Kind::Remap, Kind::Protect, Kind::Look, Kind::Populate, Kind::Scan] {
        // With other seeds, some kinds may never be called.
        let is_enough = done == 0 || seed != ORDINARY || refusals.refused(kind) > 0;
        assert!(is_enough, "{kind:?} was never refused: {}", refusals.table());
    }
}

#[test]
fn nothing_is_lost_or_shown_to_others_while_calls_are_refused() {
    if cfg!(target_env = "musl") {
        println!("skipped: musl's malloc maps memory under its lock, and the thread that refuses calls needs malloc");
        return;
    }
    let seconds = std::env::var("HUGEFORK_REFUSED_SECONDS").ok().map(|seconds| seconds.parse().expect("seconds"));
    let (started, is_long) = (Instant::now(), seconds.is_some());
    loop {
        alone(|| rounds(is_long)).well();
        if seconds.is_none_or(|seconds| started.elapsed() >= Duration::from_secs(seconds)) {
            break;
        }
    }
}
