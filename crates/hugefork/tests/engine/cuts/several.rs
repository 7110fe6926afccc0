//! Snapshots of several regions are one consistent cut: if a write is in one of the snapshots, every write that
//! happened before it is in them too, whichever region it went to.
//!
//! ```text
//!   relay   the thread with the token writes its number to a region of its own and hands number + 1 on
//!           a cut shows   as many successive numbers as there are writers
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
