//! When and in which pages blocks get their memory: in huge pages even if the blocks are small, ahead of snapshots, and
//! not for blocks that nobody needs.
//!
//! `.ci/run` runs this under `shmem_enabled=advise` and once more under `never`, where huge pages come from
//! `MADV_COLLAPSE`.

mod stock_and_streams;

use crate::common::alone::alone;
use crate::common::pool;
use crate::common::wait::{Asleep, asleep, named, until};
use hugefork::{Backing, BlockSize, CopyGrain, Fallback, Pool, RegionOptions};

const HUGE: usize = 2 << 20;
const PAGE: usize = 4 << 10;

/// A pool of huge pages that obtains no memory ahead, on a kernel that reports the sizes of its pages.
fn huge_pool(capacity: usize, block: usize) -> Option<Pool> {
    let size = BlockSize::new(block).unwrap();
    pool(Backing::ShmemHuge, capacity, size)?;
    let builder = Pool::builder().capacity(capacity).block_size(size).backing(Backing::ShmemHuge);
    let pool = builder.fallback(Fallback::Refused).obtain_ahead(0).build().unwrap();
    if pool.stats().bytes_huge.is_none() {
        println!("skipped: this kernel has no PAGEMAP_SCAN (Linux 6.7)");
        return None;
    }
    Some(pool)
}

/// The bytes of the pool in huge pages and in base pages.
fn made_of(pool: &Pool) -> (usize, usize) {
    let stats = pool.stats();
    (stats.bytes_huge.unwrap(), stats.bytes_base.unwrap())
}

#[test]
fn what_is_written_in_order_and_copied_in_order_is_all_huge() {
    alone(|| {
        let Some(pool) = huge_pool(64 << 20, HUGE) else { return };
        let before = made_of(&pool).0;
        let mut region = pool.region(32 << 20).unwrap();
        region.as_mut_slice().iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        // The memory that calibration used lies at the beginning, as the region does.
        assert_eq!(made_of(&pool), ((32 << 20).max(before), 0));
        let snapshot = region.snapshot().unwrap();
        region.as_mut_slice().iter_mut().step_by(PAGE).for_each(|byte| *byte += 1);
        assert_eq!(made_of(&pool), (64 << 20, 0));
        assert!(snapshot.iter().step_by(PAGE).all(|&byte| byte == 1));
        assert_eq!((pool.stats().not_collapsed, pool.stats().supply.blocks_late), (0, 32));
    })
    .well();
}

#[test]
fn blocks_below_a_huge_page_live_in_huge_pages() {
    alone(|| {
        for block in [PAGE, 64 << 10, 1 << 20] {
            let Some(pool) = huge_pool(32 << 20, block) else { continue };
            // A region of two windows and one that does not fill its huge page, far from each other.
            let (mut region, mut small) = (pool.region(16 << 20).unwrap(), pool.region(block).unwrap());
            for at in [5 * PAGE, (9 << 20) + 77] {
                region.as_mut_slice()[at] = 1;
            }
            small.as_mut_slice()[block - 1] = 1;
            assert_eq!(made_of(&pool).1, 0, "base pages under blocks of {block} bytes");
            let snapshot = region.snapshot().unwrap();
            region.as_mut_slice().iter_mut().step_by(PAGE).for_each(|byte| *byte += 2);
            let (huge, base) = made_of(&pool);
            assert!(huge >= 16 << 20, "{huge} bytes are huge under blocks of {block} bytes");
            assert_eq!((base, pool.stats().not_collapsed), (0, 0), "base pages under blocks of {block} bytes");
            let sum = |bytes: &[u8]| bytes.iter().map(|&byte| usize::from(byte)).sum::<usize>();
            assert_eq!((sum(&snapshot), sum(region.as_mut_slice()), sum(small.as_mut_slice())), (2, 2 + 2 * 4096, 1));
        }
    })
    .well();
}

#[test]
fn a_hole_has_memory_before_it_is_written_to() {
    alone(|| {
        for block in [64 << 10, HUGE] {
            let Some(pool) = huge_pool(16 << 20, block) else { continue };
            let mut region = pool.region(HUGE).unwrap();
            let has = |pool: &Pool| made_of(pool).0 + made_of(pool).1;
            // At the beginning of a huge page, where MADV_COLLAPSE works, and inside it, where it is refused.
            for first in [0, 3] {
                region.as_mut_slice().fill(1);
                let all = has(&pool);
                region.lazy_free(first * PAGE..(first + 4) * PAGE).unwrap();
                assert_eq!(pool.reclaim(usize::MAX).unwrap(), 4 * PAGE);
                assert_eq!(has(&pool), all - 4 * PAGE);
                // The write itself would report missing memory by a signal; this call returns an error.
                region.prepare_write((first + 1) * PAGE..(first + 2) * PAGE).unwrap();
                assert_eq!(has(&pool), all, "page {first} of blocks of {block} bytes");
                let bytes = region.as_mut_slice();
                let zeros = (0..HUGE).step_by(PAGE).filter(|&at| bytes[at] == 0).map(|at| at / PAGE);
                assert!(zeros.eq(first..first + 4), "blocks of {block} bytes");
            }
        }
    })
    .well();
}

#[test]
fn a_pool_with_all_defaults_has_memory_ready_for_what_a_snapshot_will_hold_and_gives_it_back() {
    alone(|| {
        let pool = Pool::builder().capacity(512 << 20).build().unwrap();
        if !pool.has_page_grain() {
            return println!("skipped: no pages are copied here");
        }
        let supply = || pool.stats().supply;
        let mut region = pool.region_with(128 << 20, RegionOptions::new().copy_grain(CopyGrain::Page)).unwrap();
        region.as_mut_slice().fill(1);
        assert!(supply().running && supply().blocks_ahead == 0, "first writes get nothing ahead");
        assert_eq!(supply().blocks_late, 64);
        let snapshots = [region.snapshot().unwrap(), region.snapshot().unwrap()];
        let mut write = |pages| (0..64).for_each(|block| region.as_mut_slice()[block * HUGE..][..pages * PAGE].fill(2));
        let sleeps = || asleep(named("hugefork-maint").unwrap());
        write(1);
        // The thread slept without a time limit until the first page was copied. Only what is copied after its first
        // look counts for the next snapshot.
        until("a look at the copies", || sleeps().is_some_and(|asleep| !asleep.is_until_woken()));
        write(64);
        until("memory for 16 MiB of pages", || supply().blocks_ahead >= 4 || supply().stopped > 0);
        if supply().stopped > 0 {
            return println!("skipped: seven eighths of the machine's memory are in use");
        }
        drop(snapshots);
        // The thread gives back unused memory, goes to sleep, and does not wake by itself.
        until("what nobody has used to go back", || pool.stats().blocks_zeroed_free == 0);
        until("the thread to sleep", || sleeps().is_some_and(Asleep::is_until_woken));
        assert!(supply().blocks_given_back > 0);
        assert_eq!(
            region.as_mut_slice().iter().map(|&byte| usize::from(byte)).sum::<usize>(),
            (128 << 20) + 64 * 64 * PAGE
        );
    })
    .well();
}

#[test]
fn small_pools_and_those_that_are_told_so_get_nothing_ahead() {
    alone(|| {
        for builder in [
            Pool::builder().capacity(64 << 20),
            Pool::builder().capacity(256 << 20).obtain_ahead(0),
            Pool::builder().capacity(128 << 20).commit(hugefork::Commit::Upfront),
        ] {
            assert!(!builder.build().unwrap().stats().supply.running);
        }
        let pool = Pool::builder().capacity(64 << 20).obtain_ahead(8 << 20).build().unwrap();
        assert_eq!(pool.stats().supply.running, pool.has_page_grain());
    })
    .well();
}
