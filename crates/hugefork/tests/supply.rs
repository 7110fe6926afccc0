//! Where blocks get their memory: in huge pages however small the blocks are, ahead of the writes, and not where nobody
//! needs it.
//!
//! `.ci/run` runs this under `shmem_enabled=advise` and once more under `never`, where huge pages come by
//! `MADV_COLLAPSE`.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{by_block, pool};
use hugefork::{Backing, BlockSize, Fallback, Pool};

const HUGE: usize = 2 << 20;
const PAGE: usize = 4 << 10;

/// The tests find a thread by its name, which those of all pools share.
static ONE_POOL: Mutex<()> = Mutex::new(());

/// A pool of huge pages that gets nothing ahead, on a kernel that tells what its memory is made of.
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

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what} did not come");
        std::thread::yield_now();
    }
}

#[test]
fn what_is_written_in_order_and_copied_in_order_is_all_huge() {
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
}

#[test]
fn blocks_below_a_huge_page_live_in_huge_pages() {
    for block in [PAGE, 64 << 10, 1 << 20] {
        let Some(pool) = huge_pool(32 << 20, block) else { continue };
        // Two windows, and a window that does not fill its huge page, far from each other.
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
}

#[test]
fn a_hole_has_memory_before_it_is_written_to() {
    for block in [64 << 10, HUGE] {
        let Some(pool) = huge_pool(16 << 20, block) else { continue };
        let mut region = pool.region(HUGE).unwrap();
        let has = |pool: &Pool| made_of(pool).0 + made_of(pool).1;
        // At the beginning of a huge page and inside it: MADV_COLLAPSE accepts one and refuses the other.
        for first in [0, 3] {
            region.as_mut_slice().fill(1);
            let all = has(&pool);
            region.lazy_free(first * PAGE..(first + 4) * PAGE).unwrap();
            assert_eq!(pool.reclaim(usize::MAX).unwrap(), 4 * PAGE);
            assert_eq!(has(&pool), all - 4 * PAGE);
            // The write itself would report missing memory by a signal. This returns an error.
            region.prepare_write((first + 1) * PAGE..(first + 2) * PAGE).unwrap();
            assert_eq!(has(&pool), all, "page {first} of blocks of {block} bytes");
            let bytes = region.as_mut_slice();
            let zeros = (0..HUGE).step_by(PAGE).filter(|&at| bytes[at] == 0).map(|at| at / PAGE);
            assert!(zeros.eq(first..first + 4), "blocks of {block} bytes");
        }
    }
}

/// The directory of the thread that gets memory ahead.
fn thread() -> Option<PathBuf> {
    let is_it = |path: &Path| fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "hugefork-ahead");
    fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path()).find(|path| is_it(path))
}

/// How often the thread has gone to sleep.
fn sleeps(thread: &Path) -> String {
    let status = fs::read_to_string(thread.join("status")).unwrap();
    status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap().to_owned()
}

#[test]
fn a_pool_with_all_defaults_has_memory_ready_that_is_zero_and_sleeps_once_it_has() {
    let _alone = ONE_POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = Pool::builder().capacity(256 << 20).build().unwrap();
    let supply = || pool.stats().supply;
    assert!(supply().running && supply().blocks_ahead == 0, "an unused pool gets nothing");
    let mut region = pool.region_with(128 << 20, by_block()).unwrap();
    region.as_mut_slice()[5] = 1;
    wait_until("16 MiB ahead", || supply().blocks_ahead >= 8 || supply().stopped > 0);
    if supply().stopped > 0 {
        println!("skipped: seven eighths of the machine's memory are in use");
        return;
    }
    let mut given_back = 0;
    for block in 1..64 {
        wait_until("memory for the next", || pool.stats().blocks_zeroed_free > 0 || supply().blocks_given_back > 0);
        given_back = supply().blocks_given_back;
        region.as_mut_slice()[block * HUGE + 12345] = 1;
    }
    // On a machine that stands still for a second, memory goes back in between.
    assert!(supply().blocks_late == 1 || given_back > 0, "only the first waited for memory");
    assert_eq!(region.as_mut_slice().iter().map(|&byte| usize::from(byte)).sum::<usize>(), 64);
    // It is woken when there is less than half of what is wanted, and may have slept at the last writes.
    wait_until("16 MiB ahead", || pool.stats().blocks_zeroed_free >= 8 || supply().blocks_given_back > given_back);
    // It gives back what nobody uses, is asleep, and does not wake by itself.
    wait_until("what nobody has used to go back", || pool.stats().blocks_zeroed_free == 0);
    if let (Some(huge), Some(base)) = (pool.stats().bytes_huge, pool.stats().bytes_base) {
        assert_eq!(huge + base, 64 * HUGE, "a program has the memory that it has written to");
    }
    let thread = thread().unwrap();
    let is_still = || {
        let before = sleeps(&thread);
        std::thread::sleep(Duration::from_millis(200));
        sleeps(&thread) == before
    };
    assert!((0..50).any(|_| is_still()), "the thread wakes for nothing");
    // Nothing is left for a trim, and the thread gets nothing back of what is given back.
    let ahead = supply().blocks_ahead;
    assert_eq!(pool.trim().unwrap(), 0);
    assert!((0..50).any(|_| is_still()));
    assert_eq!((pool.stats().blocks_zeroed_free, supply().blocks_ahead), (0, ahead));
    // The first write after that waits, and the next ones do not.
    let snapshot = region.snapshot().unwrap();
    region.as_mut_slice()[7] = 1;
    wait_until("memory again", || supply().blocks_ahead >= ahead + 8);
    drop((region, snapshot));
    drop(pool);
    // It has been joined; the kernel lists it for a moment longer.
    wait_until("its thread ends with the pool", || self::thread().is_none());
}

#[test]
fn small_pools_and_those_that_are_told_so_get_nothing_ahead() {
    let _alone = ONE_POOL.lock().unwrap_or_else(PoisonError::into_inner);
    for builder in [
        Pool::builder().capacity(64 << 20),
        Pool::builder().capacity(256 << 20).obtain_ahead(0),
        Pool::builder().capacity(128 << 20).commit(hugefork::Commit::Upfront),
    ] {
        let pool = builder.build().unwrap();
        pool.region(32 << 20).unwrap().as_mut_slice()[0] = 1;
        assert!(!pool.stats().supply.running && thread().is_none());
    }
    let pool = Pool::builder().capacity(64 << 20).obtain_ahead(8 << 20).build().unwrap();
    let mut region = pool.region(32 << 20).unwrap();
    region.as_mut_slice()[0] = 1;
    wait_until("8 MiB", || pool.stats().blocks_zeroed_free == 4 || pool.stats().supply.stopped > 0);
}
