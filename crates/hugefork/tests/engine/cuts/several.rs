//! Snapshots and resets of several regions are one consistent cut. If a write is in one of the snapshots, every write
//! that happened before it is in them too, whichever region it went to. If a reset undoes a write, it undoes every
//! write that happened before it.
//!
//! ```text
//!   relay   the thread with the token writes its number to a region of its own and hands number + 1 on
//!           a cut shows     as many successive numbers as there are writers
//!           a reset leaves  zeros, or the last of the numbers
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::alone::alone;
use crate::common::{Over, pool};
use hugefork::{Backing, BlockSize, CopyGrain, Pool, Region, RegionOptions};

const WRITERS: usize = 3;
const CUTS: usize = 20;
const TIME: Duration = Duration::from_millis(300);

fn slot(region: &Region) -> &AtomicU64 {
    &region.as_atomic_u64s()[700]
}

fn relay(region: &Region, writer: usize, token: &AtomicU64, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let turn = token.load(Ordering::Acquire);
        if turn % WRITERS as u64 == writer as u64 {
            slot(region).store(turn, Ordering::Release);
            token.store(turn + 1, Ordering::Release);
        }
        std::thread::yield_now();
    }
}

fn check(pool: &Pool, grain: CopyGrain) {
    let options = RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page);
    let regions: [Region; WRITERS] = std::array::from_fn(|_| pool.region_with(4 << 20, options).unwrap());
    // Neither in the order of age nor in that of addresses.
    let order = [&regions[1], &regions[2], &regions[0]];
    let (token, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for (writer, region) in regions.iter().enumerate() {
            let (token, over) = (&token, &over);
            scope.spawn(move || relay(region, writer, token, over));
        }
        while token.load(Ordering::Acquire) < WRITERS as u64 {
            std::thread::yield_now();
        }
        // A thread that snapshots the regions one by one, in another order, must not disturb the cut.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                regions.iter().for_each(|region| drop(region.snapshot().unwrap()));
                drop(Region::snapshot_all(&[&regions[2], &regions[1]]).unwrap());
            }
        });
        let started = Instant::now();
        let mut cuts = 0;
        while cuts < CUTS || started.elapsed() < TIME {
            let cut = Region::snapshot_all(&order).unwrap();
            let mut seen: Vec<u64> = cut
                .iter()
                .map(|snapshot| {
                    let mut bytes = [0; 8];
                    snapshot.read_at(700 * 8, &mut bytes).unwrap();
                    u64::from_ne_bytes(bytes)
                })
                .collect();
            seen.sort_unstable();
            assert!(seen.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{grain:?}: {seen:?}");
            cuts += 1;
        }
    });
}

#[test]
fn a_cut_through_several_regions_is_consistent() {
    alone(|| {
        for backing in [Backing::ShmemHuge, Backing::ShmemBase] {
            for (block_size, capacity) in [(BlockSize::MIB_2, 128 << 20), (BlockSize::KIB_64, 64 << 20)] {
                let Some(pool) = pool(backing, capacity, block_size) else { continue };
                for grain in [CopyGrain::Auto, CopyGrain::Page, CopyGrain::Block] {
                    check(&pool, grain);
                }
            }
        }
    })
    .well();
}

#[test]
fn the_snapshots_come_in_the_order_that_was_asked_for_and_each_is_one_of_its_region() {
    let (one, two) =
        (Pool::builder().capacity(8 << 20).build().unwrap(), Pool::builder().capacity(16 << 20).build().unwrap());
    let (mut first, mut second) = (one.region(2 << 20).unwrap(), two.region(4 << 20).unwrap());
    first.as_mut_slice()[0] = 1;
    second.as_mut_slice()[0] = 2;
    let cut = Region::snapshot_all(&[&second, &first]).unwrap();
    assert_eq!((cut[0].len(), cut[1].len(), cut[0][0], cut[1][0]), (4 << 20, 2 << 20, 2, 1));
    assert_eq!((second.origin(), first.origin()), (Some(cut[0].id()), Some(cut[1].id())));
    assert!(Region::snapshot_all(&[]).unwrap().is_empty());
}

#[test]
#[should_panic(expected = "named twice")]
fn a_region_cannot_be_named_twice() {
    let pool = Pool::builder().capacity(8 << 20).build().unwrap();
    let region = pool.region(2 << 20).unwrap();
    let _ = Region::snapshot_all(&[&region, &region]);
}

/// Number of regions that are reset together.
const RESET: usize = 6;

/// Relays beside resets, which `begun` and `ended` count. If no reset was under way meanwhile, each of the last writes
/// is either still in its region or undone, and the undone ones are the first of them.
fn relay_beside_resets(
    regions: &[Region],
    writer: usize,
    token: &AtomicU64,
    resets: [&AtomicU64; 2],
    over: &AtomicBool,
) {
    let [begun, ended] = resets;
    let _over = Over(over);
    while !over.load(Ordering::Relaxed) {
        let turn = token.load(Ordering::Acquire);
        if turn % RESET as u64 == writer as u64 {
            let before = ended.load(Ordering::SeqCst);
            let last: Vec<u64> = (turn - RESET as u64..turn).collect();
            let seen: Vec<u64> =
                last.iter().map(|&turn| slot(&regions[turn as usize % RESET]).load(Ordering::SeqCst)).collect();
            if begun.load(Ordering::SeqCst) == before {
                let gone = seen.iter().take_while(|&&number| number == 0).count();
                assert_eq!(seen[gone..], last[gone..], "a write is gone, and one that happened before it is not");
            }
            slot(&regions[writer]).store(turn, Ordering::SeqCst);
            token.store(turn + 1, Ordering::Release);
        }
        std::thread::yield_now();
    }
}

fn check_resets(pool: &Pool, grain: CopyGrain) {
    let options = RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page);
    let regions: [Region; RESET] = std::array::from_fn(|_| pool.region_with(4 << 20, options).unwrap());
    regions.iter().for_each(|region| slot(region).store(0, Ordering::Release));
    let cut = Region::snapshot_all(&regions.each_ref()).unwrap();
    // Neither in the order of age nor in that of addresses.
    let pairs = [1, 5, 2, 0, 4, 3].map(|nth| (&regions[nth], &cut[nth]));
    let (token, over) = (AtomicU64::new(RESET as u64), AtomicBool::new(false));
    let [begun, ended] = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for writer in 0..RESET {
            let (regions, token, resets, over) = (&regions, &token, [&begun, &ended], &over);
            scope.spawn(move || relay_beside_resets(regions, writer, token, resets, over));
        }
        // A thread that snapshots some of the regions, in another order, must not disturb the resets.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                regions.iter().for_each(|region| drop(region.snapshot().unwrap()));
                drop(Region::snapshot_all(&[&regions[2], &regions[1]]).unwrap());
                std::thread::yield_now();
            }
        });
        let started = Instant::now();
        let mut resets = 0;
        while resets < CUTS as u64 || started.elapsed() < TIME {
            let enough = token.load(Ordering::Acquire) + 2 * RESET as u64;
            while token.load(Ordering::Acquire) < enough && !over.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            resets += 1;
            begun.store(resets, Ordering::SeqCst);
            Region::reset_all(&pairs).unwrap();
            ended.store(resets, Ordering::SeqCst);
        }
    });
    assert_eq!(pool.stats().faults.failed, 0);
}

#[test]
fn a_reset_of_several_regions_is_consistent() {
    alone(|| {
        for backing in [Backing::ShmemHuge, Backing::ShmemBase] {
            for (block_size, capacity) in [(BlockSize::MIB_2, 128 << 20), (BlockSize::KIB_64, 64 << 20)] {
                let Some(pool) = pool(backing, capacity, block_size) else { continue };
                for grain in [CopyGrain::Auto, CopyGrain::Page, CopyGrain::Block] {
                    check_resets(&pool, grain);
                }
            }
        }
    })
    .well();
}

#[test]
fn a_reset_of_several_regions_says_how_far_it_came() {
    let pool = Pool::builder().capacity(16 << 20).build().unwrap();
    let (mut first, mut second) = (pool.region(2 << 20).unwrap(), pool.region(4 << 20).unwrap());
    let cut = Region::snapshot_all(&[&first, &second]).unwrap();
    first.as_mut_slice()[0] = 1;
    second.as_mut_slice()[0] = 2;
    let refused = Region::reset_all(&[(&first, &cut[0]), (&second, &cut[0])]).unwrap_err();
    assert_eq!((refused.done, refused.code()), (0, hugefork::ErrorCode::AnotherLength));
    assert_eq!((first.as_mut_slice()[0], second.as_mut_slice()[0]), (1, 2));
    Region::reset_all(&[(&second, &cut[1]), (&first, &cut[0])]).unwrap();
    assert_eq!((first.as_mut_slice()[0], second.as_mut_slice()[0]), (0, 0));
    assert_eq!((first.origin(), second.origin()), (Some(cut[0].id()), Some(cut[1].id())));
    first.as_mut_slice()[0] = 1;
    Region::reset_all(&[(&first, &cut[0])]).unwrap();
    Region::reset_all(&[]).unwrap();
    assert_eq!(first.as_mut_slice()[0], 0);
}

#[test]
#[should_panic(expected = "named twice")]
fn a_region_cannot_go_back_twice() {
    let pool = Pool::builder().capacity(8 << 20).build().unwrap();
    let region = pool.region(2 << 20).unwrap();
    let snapshot = region.snapshot().unwrap();
    let _ = Region::reset_all(&[(&region, &snapshot), (&region, &snapshot)]);
}
