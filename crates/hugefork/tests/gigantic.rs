//! Blocks of 1 GiB, on gigantic hugetlb pages and on shmem. hugefork clears and copies them straight through; several
//! threads populate them.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use hugefork::{Backing, BlockSize, Fallback, Granted, Pool};

const BLOCK: usize = 1 << 30;

/// Free hugetlb pages of 1 GiB. `.ci/run` sets up two if the machine has the memory.
fn gigantic_pages() -> usize {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages");
    free.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn memory_available() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn skipped(name: &str, why: &str) {
    let required = std::env::var("HUGEFORK_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|required| required == name), "required, but {why}");
    println!("skipped: {why}");
}

/// Populates two blocks, snapshots, copies and discards them, and uses them again.
fn live(pool: &Pool) {
    let mut region = pool.region_with(BLOCK, common::by_block()).unwrap();
    let most = AtomicUsize::new(0);
    region
        .populate_with(2, |done| {
            most.fetch_max(done, Ordering::Relaxed);
        })
        .unwrap();
    assert_eq!(most.into_inner(), BLOCK, "progress ends at the whole");
    let pages = || (0..BLOCK).step_by(4096);
    let bytes = region.as_mut_slice();
    assert!(pages().all(|at| bytes[at] == 0));
    pages().for_each(|at| bytes[at] = 1);

    let snapshot = region.snapshot().unwrap();
    region.as_mut_slice()[BLOCK - 1] = 7;
    assert!(pages().all(|at| snapshot[at] == 1 && region.as_mut_slice()[at] == 1));
    assert_eq!((snapshot[BLOCK - 1], region.as_mut_slice()[BLOCK - 1]), (0, 7));
    let faults = region.stats().faults;
    assert_eq!((faults.copied, faults.bytes_copied), (1, BLOCK as u64));
    assert_eq!(pool.stats().blocks_free, 0);

    drop(snapshot);
    region.discard(0..BLOCK).unwrap();
    assert_eq!(pool.stats().blocks_free, 2);
    // The block is a used one this time, so hugefork clears it.
    region.as_mut_slice()[BLOCK / 2] = 1;
    assert!(pages().all(|at| region.as_mut_slice()[at] == u8::from(at == BLOCK / 2)));
    assert_eq!(region.stats().faults.bytes_cleared, BLOCK as u64);
}

fn build(backing: Backing) -> Pool {
    let builder = Pool::builder().name("gigantic").capacity(2 * BLOCK).block_size(BlockSize::GIB_1);
    builder.backing(backing).fallback(Fallback::Refused).build().unwrap()
}

#[test]
fn blocks_of_1_gib_live_on_gigantic_pages() {
    if gigantic_pages() < 2 {
        return skipped("hugetlb-1g", "two free hugetlb pages of 1GiB are needed");
    }
    let pool = build(Backing::Hugetlb);
    assert_eq!(pool.backing(), Granted::Hugetlb);
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    assert!(smaps.lines().any(|line| line.starts_with("KernelPageSize:") && line.contains("1048576 kB")));
    live(&pool);
}

#[test]
fn blocks_of_1_gib_live_on_shmem() {
    if memory_available() < 3 * BLOCK {
        return skipped("3gib", "3 GiB of free memory are needed");
    }
    live(&build(Backing::ShmemBase));
}
