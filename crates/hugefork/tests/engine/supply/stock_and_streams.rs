//! The zeroed stock, and faults that prepare more blocks than they need.

use std::time::Duration;

use crate::common::alone::alone;
use crate::common::pool;
use crate::common::wait::{Asleep, asleep, named, until};
use hugefork::{Advice, Backing, BlockSize, Commit, Fallback, Pool, Region, ZeroedStock};

const BLOCK: usize = 2 << 20;

fn pool_with_stock(blocks: usize, stock: ZeroedStock) -> Pool {
    let builder = Pool::builder().name("stock").capacity(blocks * BLOCK).fallback(Fallback::Allowed);
    builder.zeroed_stock(stock.cpu_percent(100)).build().unwrap()
}

/// Writes to every block of a region over the whole pool, and gives all of them back.
fn use_all_blocks(pool: &Pool) {
    pool.region(pool.capacity()).unwrap().as_mut_slice().fill(0xaa);
}

#[test]
fn used_blocks_are_zeroed_in_the_background_and_then_given_without_clearing() {
    alone(|| {
        let pool = pool_with_stock(16, ZeroedStock::keep(16 * BLOCK, 16 * BLOCK));
        assert!(pool.stats().stock.running);
        use_all_blocks(&pool);
        until("a full stock", || pool.stats().blocks_zeroed_free == 16);
        // A block is free a moment before it is counted.
        let counted = || pool.stats().stock;
        until("the count of it", || counted().blocks >= 16 && counted().time > Duration::ZERO);

        let mut region = pool.region(16 * BLOCK).unwrap();
        for block in 0..16 {
            region.as_mut_slice()[block * BLOCK + 12345] = 1;
        }
        assert_eq!(
            region.as_mut_slice().iter().map(|&byte| usize::from(byte)).sum::<usize>(),
            16,
            "zero everywhere else"
        );
        let faults = region.stats().faults;
        assert_eq!((faults.blocks_cleared, faults.blocks_zeroed_before), (0, 16));
        assert_eq!(pool.stats().blocks_zeroed_free, 0);
    })
    .well();
}

#[test]
fn the_stock_is_kept_between_its_watermarks_and_costs_nothing_when_it_is_full() {
    alone(|| {
        let pool = pool_with_stock(16, ZeroedStock::keep(4 * BLOCK, 8 * BLOCK));
        use_all_blocks(&pool);
        until("the high watermark", || pool.stats().blocks_zeroed_free == 8);
        until("an idle stock that sleeps", || {
            asleep(named("hugefork-zero").unwrap()).is_some_and(Asleep::is_until_woken)
        });
        assert_eq!(pool.stats().blocks_zeroed_free, 8);
        // Below the low watermark the stock is filled again.
        let mut region = pool.region(5 * BLOCK).unwrap();
        for block in 0..5 {
            region.as_mut_slice()[block * BLOCK + 5000] = 1;
        }
        until("the high watermark again", || pool.stats().blocks_zeroed_free >= 8);
    })
    .well();
}

#[test]
fn a_pool_with_a_stock_can_be_used_up_and_goes_at_once() {
    alone(|| {
        for _ in 0..20 {
            let pool = pool_with_stock(4, ZeroedStock::keep(4 * BLOCK, 4 * BLOCK));
            use_all_blocks(&pool);
            // The region takes every block while some are being zeroed: none may be missing, and none shown unzeroed.
            let mut region = pool.region(4 * BLOCK).unwrap();
            region.as_mut_slice().iter_mut().step_by(4096).for_each(|byte| *byte += 1);
            assert!(region.as_mut_slice().iter().step_by(4096).all(|&byte| byte == 1));
            assert_eq!(region.stats().faults.failed, 0);
        }
    })
    .well();
}

/// The number of faults that a write of the region from end to end takes.
fn faults_of_a_sweep(region: &mut Region) -> u64 {
    let before = region.stats().faults.faults();
    region.as_mut_slice().iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    region.stats().faults.faults() - before
}

#[test]
fn a_region_written_from_end_to_end_takes_fewer_faults_than_it_has_blocks() {
    for backing in crate::common::BACKINGS {
        let builder = Pool::builder().capacity(48 * BLOCK).backing(backing).commit(Commit::Upfront);
        let Some(_) = pool(backing, 48 * BLOCK, BlockSize::MIB_2) else { continue };
        let pool = builder.build().unwrap();
        let mut region = pool.region(16 * BLOCK).unwrap();
        let first = faults_of_a_sweep(&mut region);
        let snapshot = region.snapshot().unwrap();
        let copied = faults_of_a_sweep(&mut region);
        assert!(first <= 7 && copied <= 7, "{first} and {copied} faults for 16 blocks on {backing}");
        assert_eq!(region.stats().faults.blocks_copied, 16);
        drop(snapshot);

        region.discard(0..16 * BLOCK).unwrap();
        region.advise(Advice::Near);
        assert_eq!(faults_of_a_sweep(&mut region), 16, "nothing is prepared ahead when the program says so");
    }
}

#[test]
fn blocks_far_apart_are_never_prepared_ahead() {
    let Some(pool) = pool(Backing::Auto, 64 * BLOCK, BlockSize::MIB_2) else { return };
    let mut region = pool.region(32 * BLOCK).unwrap();
    for block in (0..32).rev().step_by(2) {
        region.as_mut_slice()[block * BLOCK] = 1;
    }
    assert_eq!(region.stats().blocks_present, 16);
}

#[test]
fn a_region_written_downwards_is_a_stream_too() {
    let pool = Pool::builder().capacity(48 * BLOCK).commit(Commit::Upfront).build().unwrap();
    let mut region = pool.region(16 * BLOCK).unwrap();
    region.as_mut_slice().iter_mut().rev().step_by(4096).for_each(|byte| *byte = 1);
    let first = region.stats().faults.faults();
    let snapshot = region.snapshot().unwrap();
    region.as_mut_slice().iter_mut().rev().step_by(4096).for_each(|byte| *byte += 1);
    let copied = region.stats().faults.faults() - first;
    assert!(first <= 7 && copied <= 7, "{first} and {copied} faults for 16 blocks");
    assert_eq!(region.stats().faults.blocks_copied, 16);
    assert!(snapshot.iter().rev().step_by(4096).all(|&byte| byte == 1));
    assert!(region.as_mut_slice().iter().rev().step_by(4096).all(|&byte| byte == 2));
}

/// Blocks that were prepared ahead and never written belong to the region, and are given back with it.
#[test]
fn blocks_prepared_ahead_are_given_back_by_a_discard() {
    let pool = Pool::builder().capacity(48 * BLOCK).commit(Commit::Upfront).build().unwrap();
    let mut region = pool.region(32 * BLOCK).unwrap();
    for block in 0..6 {
        region.as_mut_slice()[block * BLOCK] = 1;
    }
    let ahead = region.stats().blocks_present - 6;
    assert!((1..4).contains(&ahead), "{ahead} blocks ahead");
    // Only blocks that were never written.
    region.discard(6 * BLOCK..32 * BLOCK).unwrap();
    assert_eq!((region.stats().blocks_present, pool.stats().blocks_free), (6, 42));
    assert!(region.as_mut_slice()[6 * BLOCK..].iter().step_by(4096).all(|&byte| byte == 0));
    region.discard(0..32 * BLOCK).unwrap();
    assert_eq!(pool.stats().blocks_free, 48);
}
