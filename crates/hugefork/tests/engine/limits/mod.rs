//! Limits of the process that count addresses, with memory behind them or not: `RLIMIT_DATA` counts writable private
//! mappings, `RLIMIT_AS` counts all mappings. If the kernel refuses to copy pages, a write copies the block. If it
//! refuses everything, calls return errors, and nothing is lost.

mod exhaustion;
mod mappings;

use core::sync::atomic::{AtomicU64, Ordering};

use crate::common::alone::alone;
use crate::common::by_block;
use crate::common::signals::handle;
use hugefork::{CopyGrain, Pool, Region, RegionOptions};
use libc::{SIG_DFL, SIGBUS};
use rustix::process::{Resource, Rlimit, setrlimit};

const BLOCK: usize = 2 << 20;
const PAGE: usize = 4096;

fn limit(resource: Resource, bytes: Option<u64>) {
    setrlimit(resource, Rlimit { current: bytes, maximum: None }).unwrap();
}

/// Limits the process to 1.5 MiB more data than it has: enough for heaps, and less than a block.
fn limit_data() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmData:")?.trim().strip_suffix(" kB")?.parse().ok());
    let data: u64 = kib.expect("the kernel counts data");
    limit(Resource::Data, Some((data << 10) + (3 << 19)));
}

/// A word of a page.
fn word(region: &Region, page: usize) -> &AtomicU64 {
    &region.as_atomic_u64s()[page * PAGE / 8]
}

fn written(pool: &Pool, blocks: usize, options: RegionOptions) -> Region {
    let region = pool.region_with(blocks * BLOCK, options).unwrap();
    (0..region.len() / PAGE).for_each(|page| word(&region, page).store(page as u64, Ordering::Relaxed));
    region
}

/// Writes beside a snapshot in several rounds, also to pages that were written before.
fn write_beside_snapshots(pool: &Pool, options: RegionOptions) {
    let region = written(pool, 16, options);
    let pages = region.len() / PAGE;
    let mut older = Vec::new();
    for round in 1..4 {
        let snapshot = region.snapshot().unwrap();
        for page in (0..pages).step_by(97) {
            word(&region, page).store(round << 32 | page as u64, Ordering::Relaxed);
        }
        older.push((round - 1, snapshot));
        for (before, snapshot) in &older {
            for page in 0..pages {
                let expected = if page % 97 == 0 { before << 32 | page as u64 } else { page as u64 };
                let bytes = snapshot[page * PAGE..][..8].try_into().unwrap();
                assert_eq!(u64::from_ne_bytes(bytes), expected, "page {page} of the snapshot before round {round}");
            }
        }
    }
    let is_as_before =
        |region: &Region| (0..pages).all(|page| word(region, page).load(Ordering::Relaxed) == page as u64);
    let fork = older[1].1.fork_with(options).unwrap();
    (0..pages).step_by(5).for_each(|page| word(&fork, page).store(7, Ordering::Relaxed));
    let of_snapshot = |page| if page % 97 == 0 { 1 << 32 | page as u64 } else { page as u64 };
    let is_written = |page| if page % 5 == 0 { 7 } else { of_snapshot(page) };
    assert!((0..pages).all(|page| word(&fork, page).load(Ordering::Relaxed) == is_written(page)));
    let pin = region.pin(0..3 * PAGE).unwrap();
    region.prepare_write(BLOCK..2 * BLOCK).unwrap();
    drop(pin);
    region.reset_to(&older[0].1).unwrap();
    assert!(is_as_before(&region));
    (0..pages).step_by(7).for_each(|page| word(&region, page).store(9, Ordering::Relaxed));
    region.prepare_snapshot().unwrap();
    drop(older.split_off(1));
    region.reset_to(&older[0].1).unwrap();
    assert!(is_as_before(&region));
    assert_eq!((region.stats().faults.failed, fork.stats().faults.failed), (0, 0));
    drop((region, fork, older));
    let stats = pool.stats();
    assert_eq!((stats.blocks_free, stats.blocks_leaked), (stats.blocks, 0));
}

#[test]
fn a_pool_copies_blocks_where_private_mappings_of_its_size_would_be_too_much_data() {
    alone(|| {
        handle(SIGBUS, SIG_DFL, 0, &[]);
        limit(Resource::Data, Some(64 << 20));
        let pool = Pool::builder().capacity(128 * BLOCK).build().unwrap();
        let why = pool.no_page_grain().expect("it has page grain");
        assert!(why.contains("RLIMIT_DATA") && why.contains("raise the limit"), "{why}");
        for options in [RegionOptions::new(), RegionOptions::new().copy_grain(CopyGrain::Page), by_block()] {
            write_beside_snapshots(&pool, options);
        }
    })
    .well();
}

#[test]
fn a_write_goes_by_block_where_the_limit_of_data_was_lowered_later() {
    alone(|| {
        handle(SIGBUS, SIG_DFL, 0, &[]);
        let pool = Pool::builder().capacity(128 * BLOCK).build().unwrap();
        if let Some(why) = pool.no_page_grain() {
            return println!("skipped: {why}");
        }
        for options in [RegionOptions::new(), RegionOptions::new().copy_grain(CopyGrain::Page)] {
            limit(Resource::Data, None);
            let (region, written_by_page) = (written(&pool, 16, options), written(&pool, 16, options));
            let before = (region.snapshot().unwrap(), written_by_page.snapshot().unwrap());
            let pages = region.len() / PAGE;
            let write = |region: &Region, value: u64| {
                (0..pages).step_by(97).for_each(|page| word(region, page).store(value, Ordering::Relaxed));
            };
            write(&written_by_page, 1 << 40);
            limit_data();
            write(&region, 2 << 40);
            // The mappings that this snapshot write-protects have pages.
            drop(written_by_page.snapshot());
            write(&written_by_page, 3 << 40);
            limit(Resource::Data, None);
            for (region, before, value) in [(&region, &before.0, 2 << 40), (&written_by_page, &before.1, 3 << 40)] {
                for page in 0..pages {
                    let now = if page % 97 == 0 { value } else { page as u64 };
                    assert_eq!(word(region, page).load(Ordering::Relaxed), now, "page {page}");
                    assert_eq!(before[page * PAGE..][..8], (page as u64).to_ne_bytes());
                }
                assert_eq!(region.stats().faults.failed, 0);
            }
            drop((region, written_by_page, before));
            let stats = pool.stats();
            assert_eq!((stats.blocks_free, stats.blocks_leaked), (stats.blocks, 0));
        }
    })
    .well();
}

/// Limits the process to fewer addresses than it has, so that the kernel refuses each new mapping.
fn lower_addresses() {
    // Later allocations reuse this memory: any process ends when its heap has no room.
    drop((0..2000).map(|nth| vec![0_u8; 16 + nth % 64 * 8]).collect::<Vec<_>>());
    limit(Resource::As, Some(1 << 30));
}

#[test]
fn calls_are_refused_where_the_limit_of_addresses_was_lowered_later() {
    alone(|| {
        handle(SIGBUS, SIG_DFL, 0, &[]);
        let pool = Pool::builder().capacity(64 * BLOCK).build().unwrap();
        for options in [RegionOptions::new(), RegionOptions::new().copy_grain(CopyGrain::Page), by_block()] {
            let (region, other) = (written(&pool, 8, options), written(&pool, 8, options));
            let pages = region.len() / PAGE;
            let before = region.snapshot().unwrap();
            let of_other = other.snapshot().unwrap();
            (0..pages).step_by(97).for_each(|page| word(&other, page).store(1 << 40, Ordering::Relaxed));
            let new = pool.region(4 * BLOCK).unwrap();
            // Leaves some room in the engine's own heap, too.
            drop((0..8).map(|_| other.snapshot().unwrap()).collect::<Vec<_>>());
            lower_addresses();
            let mut refused = vec![
                ("prepare_write", region.prepare_write(BLOCK..2 * BLOCK)),
                ("populate", new.populate()),
                ("snapshot", other.snapshot().map(drop)),
                ("fork", region.fork().map(drop)),
                ("fork of a snapshot", before.fork().map(drop)),
                ("region", pool.region(BLOCK).map(drop)),
                ("map", before.map().map(drop)),
                ("pin", region.pin(5 * BLOCK..6 * BLOCK).map(drop)),
                ("lazy_free", new.lazy_free(0..BLOCK).map(drop)),
                ("discard", new.discard(BLOCK / 2..2 * BLOCK)),
                ("reset", other.reset_to(&of_other).map_err(|error| error.reason)),
                ("prepare_snapshot", other.prepare_snapshot()),
                ("trim", pool.trim().map(drop)),
            ];
            limit(Resource::As, None);
            refused.retain(|(_, answer)| answer.is_err());
            assert!(refused.len() > 3, "{refused:?}");
            println!("{refused:?}");
            for page in 0..pages {
                assert_eq!(word(&region, page).load(Ordering::Relaxed), page as u64, "page {page}");
                assert_eq!(before[page * PAGE..][..8], (page as u64).to_ne_bytes(), "page {page}");
                assert_eq!(of_other[page * PAGE..][..8], (page as u64).to_ne_bytes(), "page {page}");
                word(&other, page).store(5, Ordering::Relaxed);
            }
            drop((region, other, new, before, of_other));
            let stats = pool.stats();
            assert_eq!((stats.blocks_free, stats.blocks_leaked), (stats.blocks, 0));
        }
    })
    .well();
}

#[test]
fn a_first_write_for_which_there_may_be_no_mapping_is_a_bus_error() {
    let said = alone(|| {
        handle(SIGBUS, SIG_DFL, 0, &[]);
        let pool = Pool::builder().name("test").capacity(8 * BLOCK).build().unwrap();
        let region = pool.region(4 * BLOCK).unwrap();
        lower_addresses();
        word(&region, 5).store(1, Ordering::Relaxed);
    })
    .by(SIGBUS);
    assert!(said.contains("pool `test`") && said.contains("RLIMIT_AS"), "{said}");
}

#[test]
fn a_write_beside_a_snapshot_for_which_there_may_be_no_mapping_is_a_bus_error() {
    let said = alone(|| {
        handle(SIGBUS, SIG_DFL, 0, &[]);
        let pool = Pool::builder().name("test").capacity(8 * BLOCK).build().unwrap();
        let region = written(&pool, 2, RegionOptions::new());
        let _snapshot = region.snapshot().unwrap();
        lower_addresses();
        word(&region, 5).store(1, Ordering::Relaxed);
    })
    .by(SIGBUS);
    assert!(said.contains("pool `test`") && said.contains("RLIMIT_AS"), "{said}");
}
