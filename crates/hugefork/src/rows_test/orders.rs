//! Runs writers, snapshots, forks, exports, resets, write-backs, promotions, frees and reclaim beside each other on the
//! software MMU, in orders that a checker (shuttle) chooses. The tasks take turns at each use of a lock, an entry, a
//! count or the free list, and at each system call, load and store (steps.rs).
//!
//! ```text
//!   writer    counts up in places of its own, in their order, so the states that a cut may show are known
//!   cutter    takes a cut and checks it, keeps a second (as an export does) or forks it, and checks again
//!   maintainer writes back and promotes, as the pool's thread does
//!   resetter  resets the region: there is a moment before which all of a writer's writes are gone
//!   taker     lazily frees and reclaims where no block is free
//! ```
//! Afterwards all blocks, reservations and addresses must be back. Half of the orders are random; the other half
//! interrupts tasks only a few times, at places where this may hurt (PCT).
//!
//! `HUGEFORK_ORDERS_SECONDS=600` makes each test try other orders for that long. `HUGEFORK_ORDER` takes the schedule
//! that a failure prints: run only the test that printed it.

use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::thread::{Scope, scope};
use shuttle::{Config, MaxSteps, Runner};

use super::*;
use crate::pool::density;
use crate::pool::frames::{Content, Frames};
use crate::pool::holders::CowMappingHolder;
use crate::region::reset::reset_all;
use crate::region::state::Unresolved;
use crate::snapshot::changes::{Found, Precision};
use crate::sync::steps::checked;

/// Orders of each kind in an ordinary test run.
const ORDERS: usize = 150;

/// Entries of the region, in two windows. The tasks use only a few of them.
const ENTRIES: usize = 34;

/// The first entry of the second window.
const SECOND: usize = 32;

/// Runs a scenario in many orders.
fn in_many_orders(scenario: fn()) {
    let seconds = std::env::var("HUGEFORK_ORDERS_SECONDS").ok().map(|seconds| seconds.parse().expect("seconds"));
    let seed = seconds.map_or(15, |_: u64| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs());
    let orders = if seconds.is_some() { usize::MAX } else { ORDERS };
    let mut config = Config::new();
    (config.stack_size, config.max_steps) = (1 << 20, MaxSteps::FailAfter(1_000_000));
    (config.max_time, config.silence_warnings) = (seconds.map(|seconds| Duration::from_secs(seconds / 2)), true);
    let go = |scheduler: Box<dyn Scheduler + Send>| {
        println!("{} orders", Runner::new(scheduler, config.clone()).run(scenario));
    };
    match std::env::var("HUGEFORK_ORDER") {
        Ok(order) => go(Box::new(ReplayScheduler::new_from_encoded(&order))),
        Err(_) => {
            go(Box::new(RandomScheduler::new_from_seed(seed, orders)));
            go(Box::new(PctScheduler::new_from_seed(seed, 3, orders)));
        }
    }
}

/// Starts tasks and waits for them.
fn beside_each_other<'env>(start: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>)) {
    checked(|| scope(start));
}

/// Runs a scenario in a pool of its own. All blocks of the pool must be free afterwards.
fn in_a_pool(blocks: usize, scenario: impl FnOnce(&World<Soft>)) {
    let world = World::<Soft> { pool: Soft::pool(blocks).unwrap() };
    scenario(&world);
    assert_eq!((world.free(), world.reserved()), (blocks, 0), "free and reserved blocks when all is dropped");
    assert_eq!(world.pool.leaked.load(Ordering::Relaxed), 0);
    assert!(!world.pool.sys.holds_anything(), "somebody would wait for ever");
}

fn at(block: usize, page: usize) -> usize {
    block * Soft::BLOCK + page * BASE_PAGE + 100
}

/// A region with blocks at some entries, all zero where the writers write.
fn region_with_blocks(world: &World<Soft>, grain: CopyGrain, blocks: &[usize]) -> Region<Soft> {
    let options = RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page);
    let region = Region::new(RegionCore::zeros(&world.pool, ENTRIES * Soft::BLOCK, options).unwrap());
    blocks.iter().for_each(|block| region.write(block * Soft::BLOCK, 0xff));
    region
}

/// Writes 1 to all places in their order, then 2, and so on up to `most`.
fn count_up(region: &Region<Soft>, places: &[usize], most: u8) {
    for count in 1..=most {
        for &place in places {
            assert_eq!(region.read(place), Some(count - 1), "a write to {place:#x} was lost");
            region.write(place, count);
        }
    }
}

/// The values that a cut shows at a writer's places, which must be its state at one moment. An error if a block was
/// taken away.
fn seen_by(frozen: &SnapshotCore<SoftMmu>, places: &[usize]) -> Result<Vec<u8>, RegionError> {
    let seen = places.iter().map(|&place| read_at(frozen, place)).collect::<Result<Vec<u8>, _>>()?;
    let (first, last) = (seen[0], seen[seen.len() - 1]);
    assert!(seen.is_sorted_by(|a, b| a >= b) && first <= last + 1, "no moment was like that: {seen:?}");
    Ok(seen)
}

fn maintain(region: &Region<Soft>, times: usize) {
    let _signals = SignalsBlocked::new();
    for _ in 0..times {
        let mut next = Some(0);
        while let Some(from) = next {
            next = region.maintain(from);
        }
        let _ = region.are_alike(1);
    }
}

/// Takes a cut and checks it, then a second snapshot that outlives it, and a fork that is written to.
fn cut(region: &Region<Soft>, places: &[usize]) {
    let frozen = region.snapshot();
    let seen = seen_by(&frozen, places).unwrap();
    let kept = frozen.keep().unwrap();
    let fork = Region::<Soft>::new(RegionCore::of_snapshot(&frozen, RegionOptions::new()).unwrap());
    drop(frozen);
    places.iter().for_each(|&place| fork.write(place + 1, 0xee));
    let of_fork: Vec<u8> = places.iter().map(|&place| fork.read(place).unwrap()).collect();
    assert_eq!((&of_fork, seen_by(&kept, places).as_ref().unwrap()), (&seen, &seen), "a cut has changed");
    drop(fork);
    assert!(places.iter().all(|&place| read_at(&kept, place + 1) == Ok(0)), "a write to a fork is in a cut");
}

fn cuts_and_write_backs(grain: CopyGrain) {
    in_a_pool(24, |world| {
        let region = &region_with_blocks(world, grain, &[0, 1, SECOND]);
        // Places of the two writers lie in the same windows.
        let places = [[at(0, 1), at(SECOND, 2), at(1, 3)], [at(0, 2), at(1, 3) + 8, at(SECOND, 5)]];
        beside_each_other(|tasks| {
            for own in &places {
                tasks.spawn(move || count_up(region, own, 2));
            }
            tasks.spawn(|| (0..2).for_each(|nth| cut(region, &places[nth])));
            tasks.spawn(|| maintain(region, 3));
        });
        assert!(places.iter().flatten().all(|&place| region.read(place) == Some(2)), "a write was lost");
        maintain(region, 1);
        assert!(places.iter().flatten().all(|&place| region.read(place) == Some(2)), "a write-back has lost a write");
    });
}

#[test]
fn cuts_beside_writers_and_write_backs_by_choice() {
    in_many_orders(|| cuts_and_write_backs(CopyGrain::Auto));
}

#[test]
fn cuts_beside_writers_and_write_backs_by_page() {
    in_many_orders(|| cuts_and_write_backs(CopyGrain::Page));
}

/// A writer writes so densely that blocks are promoted, while other tasks give up the blocks below.
#[test]
fn promotions_beside_writers_and_snapshots() {
    in_many_orders(|| {
        in_a_pool(24, |world| {
            let region = &region_with_blocks(world, CopyGrain::Auto, &[0, SECOND]);
            let dense = density::promoted_pages(world.pool.block_size) + 1;
            let places: Vec<usize> = (1..=dense).flat_map(|page| [at(0, page), at(SECOND, page)]).collect();
            let first = Mutex::new(Some(region.snapshot()));
            beside_each_other(|tasks| {
                tasks.spawn(|| count_up(region, &places, 2));
                tasks.spawn(|| maintain(region, 3));
                tasks.spawn(|| {
                    let first = first.lock().unwrap().take();
                    let second = region.snapshot();
                    let seen = seen_by(&second, &places);
                    drop(first);
                    assert_eq!(seen_by(&second, &places).unwrap(), seen.unwrap(), "a cut has changed");
                });
            });
            assert!(places.iter().all(|&place| region.read(place) == Some(2)), "a write was lost");
        });
    });
}

/// A task writes and then compares with a snapshot, while another writes to the same block: a fault of the other may
/// have made the block writable a moment ago.
fn told_of_own_writes(grain: CopyGrain) {
    in_a_pool(24, |world| {
        let region = &region_with_blocks(world, grain, &[0, 1, SECOND]);
        let frozen = &region.snapshot();
        let places = [[at(0, 1), at(SECOND, 2)], [at(0, 2), at(SECOND, 1)]];
        beside_each_other(|tasks| {
            for own in &places {
                tasks.spawn(move || {
                    for &place in own {
                        region.write(place, 1);
                        let told: Result<Vec<_>, _> = Found::new(&**region, frozen, Precision::Page).collect();
                        let is_told = told.unwrap().iter().any(|range| range.contains(&place));
                        assert!(is_told, "nothing is told of the write to {place:#x}");
                    }
                });
            }
            tasks.spawn(|| maintain(region, 2));
        });
    });
}

#[test]
fn who_has_written_is_told_of_it_by_block() {
    in_many_orders(|| told_of_own_writes(CopyGrain::Block));
}

#[test]
fn who_has_written_is_told_of_it_by_page() {
    in_many_orders(|| told_of_own_writes(CopyGrain::Page));
}

/// Checks the values that a reset beside a writer may leave at the writer's places.
fn check_reset(places: &[usize], most: u8, region: &Region<Soft>) {
    let seen: Vec<u8> = places.iter().map(|&place| region.read(place).unwrap()).collect();
    let last_after = |moment: usize| {
        let last = |nth: usize| {
            let writes = (0..usize::from(most)).rev().find(|count| count * places.len() + nth >= moment);
            writes.map_or(0, |count| count as u8 + 1)
        };
        (0..places.len()).map(last).collect::<Vec<u8>>()
    };
    let is_possible = (0..=places.len() * usize::from(most)).any(|moment| last_after(moment) == seen);
    assert!(is_possible, "no moment of a reset leaves {seen:?}");
}

fn resets(grain: CopyGrain, times: usize) {
    in_a_pool(24, |world| {
        const MOST: u8 = 2;
        let region = &region_with_blocks(world, grain, &[0, 1, SECOND]);
        let places = &[at(0, 1), at(SECOND, 2), at(1, 3), at(0, 4)];
        let frozen = &region.snapshot();
        beside_each_other(|tasks| {
            tasks.spawn(|| {
                for count in 1..=MOST {
                    for &place in places {
                        let before = region.read(place).unwrap();
                        assert!(before == 0 || before == count - 1, "{place:#x} shows {before} before {count}");
                        region.write(place, count);
                        let after = region.read(place).unwrap();
                        assert!(after == 0 || after == count, "{place:#x} shows {after} and not {count}");
                    }
                }
            });
            tasks.spawn(|| (0..times).for_each(|_| region.reset_to(frozen).unwrap()));
            tasks.spawn(|| maintain(region, 2));
        });
        check_reset(places, MOST, region);
        assert!(places.iter().all(|&place| read_at(frozen, place) == Ok(0)), "a write is in the snapshot");
        region.reset_to(frozen).unwrap();
        assert!(places.iter().all(|&place| region.read(place) == Some(0)));
    });
}

#[test]
fn resets_beside_writers_and_write_backs_by_choice() {
    in_many_orders(|| resets(CopyGrain::Auto, 2));
}

#[test]
fn resets_beside_writers_and_write_backs_by_page() {
    in_many_orders(|| resets(CopyGrain::Page, 2));
}

/// Writers find the pool full: they take blocks from snapshots, and lazily freed ones, but none of an export's.
#[test]
fn a_full_pool_beside_snapshots_and_lazy_frees() {
    in_many_orders(|| {
        in_a_pool(10, |world| {
            let region = &region_with_blocks(world, CopyGrain::Block, &[0, 1, SECOND]);
            let places = &[at(0, 1), at(SECOND, 2), at(1, 3)];
            let kept_region = region_with_blocks(world, CopyGrain::Block, &[0]);
            kept_region.write(at(0, 1), 9);
            let frozen = kept_region.snapshot();
            let kept = frozen.keep().unwrap();
            drop((frozen, kept_region));
            let other = world.region(3);
            other.populate(0..other.len()).unwrap();
            let rest = world.fill();
            beside_each_other(|tasks| {
                tasks.spawn(|| count_up(region, places, 2));
                tasks.spawn(|| {
                    for _ in 0..2 {
                        if let Err(error) = seen_by(&region.snapshot(), places) {
                            assert!(matches!(error, RegionError::Revoked), "{error}");
                        }
                    }
                });
                tasks.spawn(|| {
                    other.lazy_free(0..other.len()).unwrap();
                    world.reclaim(Soft::BLOCK);
                    (0..3).for_each(|block| {
                        assert_eq!(other.read(block * Soft::BLOCK), Some(0), "it shows what is not its own");
                    });
                });
            });
            assert!(places.iter().all(|&place| region.read(place) == Some(2)), "a write was lost");
            assert_eq!(read_at(&kept, at(0, 1)), Ok(9), "an export has lost what it keeps");
            drop((rest, other));
        });
    });
}

/// The older region was reset to a snapshot of the younger one. So the younger takes a block away from the older,
/// against the order in which a reset of both takes their locks.
#[test]
fn a_full_pool_beside_resets_of_regions_that_went_to_each_others_snapshots() {
    in_many_orders(|| {
        in_a_pool(8, |world| {
            let older = region_with_blocks(world, CopyGrain::Block, &[]);
            let younger = region_with_blocks(world, CopyGrain::Block, &[0, SECOND]);
            let places = &[at(0, 1), at(SECOND, 2)];
            let frozen = older.snapshot();
            older.reset_to(&younger.snapshot()).unwrap();
            let rest = world.fill();
            beside_each_other(|tasks| {
                tasks.spawn(|| places.iter().for_each(|&place| younger.write(place, 1)));
                tasks.spawn(|| {
                    let other = younger.snapshot();
                    match reset_all(&[(&*older, &*frozen), (&*younger, &*other)]) {
                        Ok(()) => {}
                        Err(error) => assert!(matches!(error.reason, RegionError::Revoked), "{error}"),
                    }
                });
            });
            drop((rest, frozen, older, younger));
        });
    });
}

/// Writes to a region that may lose blocks; false if it has lost this one.
fn may_write(region: &Region<Soft>, place: usize, value: u8) -> bool {
    while region.pool().sys.store(region.addresses.base() + place, value).is_err() {
        match region.resolve(place) {
            Ok(_) => {}
            Err(Unresolved::Revoked) => return false,
            Err(error) => panic!("{error:?}"),
        }
    }
    true
}

/// A writer finds the pool full and takes blocks away from a fork that has written to them by page. Meanwhile windows
/// of the fork are locked: its pages are written back, it is snapshotted, and it writes.
fn revocations_beside_write_backs(options: RegionOptions) {
    in_a_pool(12, |world| {
        let region = &region_with_blocks(world, CopyGrain::Block, &[0, 1, SECOND]);
        let places = &[at(0, 1), at(SECOND, 2), at(1, 3)];
        let fork = &Region::<Soft>::new(RegionCore::of_snapshot(&region.snapshot(), options).unwrap());
        let own = &[at(0, 4), at(SECOND, 5), at(1, 6)];
        own.iter().for_each(|&place| fork.write(place, 0));
        let rest = world.fill();
        beside_each_other(|tasks| {
            tasks.spawn(|| count_up(region, places, 2));
            tasks.spawn(|| maintain(fork, 2));
            tasks.spawn(|| {
                for count in 1..=2 {
                    for &place in own {
                        let there = fork.read(place);
                        assert!(there.is_none() || there == Some(count - 1), "a write of the fork was lost: {there:?}");
                        may_write(fork, place, count);
                    }
                    match fork.freeze() {
                        Ok(frozen) => drop(frozen),
                        Err(error) => {
                            assert!(matches!(error, RegionError::Revoked | RegionError::PoolFull { .. }), "{error}")
                        }
                    }
                }
            });
        });
        assert!(places.iter().all(|&place| region.read(place) == Some(2)), "a write was lost");
        assert!(own.iter().all(|&place| region.read(place) == Some(0)), "a write of the fork is in the region");
        for place in places {
            let there = fork.read(*place);
            assert!(there.is_none() || there == Some(0), "the fork shows what was written later: {there:?}");
        }
        drop(rest);
    });
}

#[test]
fn a_full_pool_beside_forks_that_write_back_by_choice() {
    in_many_orders(|| revocations_beside_write_backs(RegionOptions::new()));
}

#[test]
fn a_full_pool_beside_forks_that_write_back_by_page() {
    in_many_orders(|| {
        revocations_beside_write_backs(RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true));
    });
}

/// A task that clears a used free block owns it. A block that was given back to the system meanwhile has no memory, and
/// its place in the pool's own mapping is closed.
#[test]
fn what_is_taken_as_used_is_used() {
    in_many_orders(|| {
        let frames = &Frames::new(3);
        let blocks = || (0..3).map(BlockId);
        blocks().for_each(|block| {
            assert!(frames.take_exactly(block));
            frames.put_back(block, Content::Used);
        });
        beside_each_other(|tasks| {
            tasks.spawn(move || {
                for from in 0..3 {
                    let Some(block) = frames.take_used(from) else { break };
                    assert_eq!(frames.content(block), Content::Used);
                    frames.put_back(block, Content::Used);
                }
            });
            tasks.spawn(move || {
                for block in blocks().filter(|block| frames.take_exactly(*block)) {
                    frames.put_back(block, Content::Fresh);
                }
            });
        });
    });
}
