//! A reset of several regions is one consistent cut: if it undoes a write, it undoes every write that happened before
//! it, whichever region the write went to.
//!
//! ```text
//!   relay   the thread with the token writes its number to a region of its own and hands number + 1 on
//!           a reset leaves   zeros, or the last of the numbers
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::alone::alone;
use crate::common::{Over, pool};
use hugefork::{Backing, BlockSize, CopyGrain, Pool, Region, RegionOptions};

/// Least number of resets for each kind of pool.
const RESETS: u64 = 20;
const TIME: Duration = Duration::from_millis(300);

fn slot(region: &Region) -> &AtomicU64 {
    &region.as_atomic_u64s()[700]
}

/// Number of regions that are reset together.
const REGIONS: usize = 6;

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
        if turn % REGIONS as u64 == writer as u64 {
            let before = ended.load(Ordering::SeqCst);
            let last: Vec<u64> = (turn - REGIONS as u64..turn).collect();
            let seen: Vec<u64> =
                last.iter().map(|&turn| slot(&regions[turn as usize % REGIONS]).load(Ordering::SeqCst)).collect();
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
    let regions: [Region; REGIONS] = std::array::from_fn(|_| pool.region_with(4 << 20, options).unwrap());
    regions.iter().for_each(|region| slot(region).store(0, Ordering::Release));
    let cut = Region::snapshot_all(&regions.each_ref()).unwrap();
    // Neither in the order of age nor in that of addresses.
    let pairs = [1, 5, 2, 0, 4, 3].map(|nth| (&regions[nth], &cut[nth]));
    let (token, over) = (AtomicU64::new(REGIONS as u64), AtomicBool::new(false));
    let [begun, ended] = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for writer in 0..REGIONS {
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
        while resets < RESETS || started.elapsed() < TIME {
            let enough = token.load(Ordering::Acquire) + 2 * REGIONS as u64;
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
