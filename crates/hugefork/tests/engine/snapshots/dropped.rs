//! Dropped snapshots hold nothing. The drop of the last one gives back all pages captured for snapshots. While older
//! ones live, the pool keeps pages that make the next snapshot cheap, but gives them to a thread that finds no block.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::alone::alone;
use crate::common::wait::until;
use crate::common::{Over, pool};
use hugefork::{Backing, BlockSize, Pool, Region, RegionOptions, Reserve, Snapshot};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;
const BLOCKS: usize = 32;
/// The region that has snapshots.
const LEN: usize = 8 * BLOCK;

/// A pool in which snapshots capture pages.
fn pool_by_page() -> Option<Pool> {
    let pool = pool(Backing::ShmemBase, BLOCKS * BLOCK, BlockSize::MIB_2)?;
    if pool.has_page_grain() {
        return Some(pool);
    }
    println!("skipped: {:?}", pool.no_page_grain());
    None
}

fn write(region: &Region, page: usize, value: u64) {
    region.as_atomic_u64s()[page * PAGE / 8].store(value, Ordering::Relaxed);
}

fn read(snapshot: &Snapshot, page: usize) -> u64 {
    u64::from_ne_bytes(snapshot[page * PAGE..][..8].try_into().unwrap())
}

/// The writes between two snapshots: `pages` pages of each block, others in each round. None is the first or last page
/// of its block, where a write would copy the whole block.
#[derive(Clone, Copy)]
struct Rounds {
    rounds: usize,
    pages: usize,
}

impl Rounds {
    fn page(block: usize, nth: usize, round: usize) -> usize {
        block * BLOCK / PAGE + 3 + 8 * nth + round
    }

    /// Writes all of a region and takes a snapshot, then takes one after each round of writes.
    fn taken(self, region: &Region) -> Vec<Snapshot> {
        (0..LEN / PAGE).for_each(|page| write(region, page, 1));
        let mut taken = vec![region.snapshot().unwrap()];
        for round in 0..self.rounds {
            for block in 0..LEN / BLOCK {
                (0..self.pages).for_each(|nth| write(region, Rounds::page(block, nth, round), 10 + round as u64));
            }
            taken.push(region.snapshot().unwrap());
        }
        taken
    }

    /// The value of a page after all rounds.
    fn last(self, page: usize) -> u64 {
        let block = page / (BLOCK / PAGE);
        let is_written = |round: &usize| (0..self.pages).any(|nth| Rounds::page(block, nth, *round) == page);
        (0..self.rounds).find(is_written).map_or(1, |round| 10 + round as u64)
    }
}

const MANY: Rounds = Rounds { rounds: 7, pages: 12 };

/// As MANY, but with so few pages between two snapshots and in all that the pool's thread gives the region no blocks of
/// its own for them.
const FEW: Rounds = Rounds { rounds: 2, pages: 10 };

#[track_caller]
fn check_nothing_is_held(pool: &Pool) {
    let stats = pool.stats();
    assert_eq!((stats.pages_held, stats.blocks_of_pages), (0, 0), "dropped snapshots hold pages");
    assert_eq!(stats.blocks - stats.blocks_free, LEN / BLOCK, "the region has its blocks, and nobody any other");
}

#[test]
fn the_last_snapshot_that_is_dropped_gives_everything_back_at_once() {
    alone(|| {
        let Some(pool) = pool_by_page() else { return };
        let orders: [fn(Vec<Snapshot>); 4] = [
            drop,
            |taken| taken.into_iter().rev().for_each(drop),
            |mut taken| drop(taken.swap_remove(3)),
            |taken| std::thread::scope(|scope| taken.into_iter().for_each(|one| drop(scope.spawn(move || drop(one))))),
        ];
        for order in orders {
            let region = pool.region(LEN).unwrap();
            let taken = MANY.taken(&region);
            assert!(pool.stats().pages_held > 0);
            order(taken);
            check_nothing_is_held(&pool);
            let other = pool.region((BLOCKS - LEN / BLOCK) * BLOCK).unwrap();
            other.populate().unwrap();
            let saved = region.snapshot().unwrap();
            (0..LEN / PAGE).for_each(|page| assert_eq!(read(&saved, page), MANY.last(page), "page {page}"));
        }
    })
    .well();
}

#[test]
fn the_last_fork_gives_back_what_was_captured_for_it() {
    alone(|| {
        let Some(pool) = pool_by_page() else { return };
        let region = pool.region(LEN).unwrap();
        (0..LEN / PAGE).for_each(|page| write(&region, page, 1));
        let mut forks = Vec::new();
        for round in 0..3 {
            forks.push(region.fork().unwrap());
            (0..20).for_each(|nth| write(&region, Rounds::page(0, nth, round), 10));
        }
        drop(region.snapshot().unwrap());
        drop(forks);
        check_nothing_is_held(&pool);
    })
    .well();
}

#[test]
fn a_region_that_goes_gives_back_what_was_captured_of_it_while_its_snapshots_live() {
    alone(|| {
        let Some(pool) = pool_by_page() else { return };
        let region = pool.region(LEN).unwrap();
        let held = MANY.taken(&region).swap_remove(0);
        assert!(pool.stats().pages_held > 0, "kept for the next snapshot");
        drop(region);
        check_nothing_is_held(&pool);
        (0..LEN / PAGE).for_each(|page| assert_eq!(read(&held, page), 1, "page {page}"));
    })
    .well();
}

/// A way to take blocks from a pool: this many bytes, or all that can be had.
type Way = fn(&Pool, usize);

/// While an older snapshot is held, the pool keeps pages captured for dropped ones, to make the next snapshot cheap. A
/// thread that is short of blocks gets them, and nobody loses anything.
#[test]
fn whoever_is_short_of_blocks_has_those_of_dropped_snapshots() {
    alone(|| {
        let Some(pool) = pool_by_page() else { return };
        let ways: [(&str, Way); 4] = [
            ("a store", |pool, len| {
                let other = pool.region(len).unwrap();
                (0..len / PAGE).for_each(|page| write(&other, page, 3));
            }),
            ("populate", |pool, len| pool.region(len).unwrap().populate().unwrap()),
            ("a reservation", |pool, len| {
                drop(pool.region_with(len, RegionOptions::new().reserve(Reserve::Full)).unwrap());
            }),
            ("reclaim", |pool, _| {
                let held = pool.stats().blocks_of_pages;
                assert_eq!(pool.reclaim(usize::MAX).unwrap(), held * BLOCK);
            }),
        ];
        for (name, way) in ways {
            let region = pool.region(LEN).unwrap();
            let mut taken = vec![FEW.taken(&region).swap_remove(0)];
            let (held, free) = (pool.stats().blocks_of_pages, pool.stats().blocks_free);
            assert!(held > 0 && free + held == BLOCKS - LEN / BLOCK, "{held} of pages, {free} free");
            way(&pool, (free + held) * BLOCK);
            assert!(!taken[0].is_revoked(), "{name} took from a snapshot that lives");
            assert_eq!(pool.stats().blocks_of_pages, 0, "{name}");
            // The next snapshot captures the pages anew, with those written since.
            write(&region, Rounds::page(2, 1, 0), 99);
            taken.push(region.snapshot().unwrap());
            write(&region, Rounds::page(2, 1, 0), 98);
            for page in 0..LEN / PAGE {
                let now = if page == Rounds::page(2, 1, 0) { 99 } else { FEW.last(page) };
                let both = (read(&taken[0], page), read(&taken[1], page));
                assert_eq!(both, (1, now), "page {page} after {name}");
            }
            region.reset_to(&taken[0]).unwrap();
            region.reset_to(&taken[1]).unwrap();
            let again = region.snapshot().unwrap();
            (0..LEN / PAGE).for_each(|page| assert_eq!(read(&again, page), read(&taken[1], page), "page {page}"));
        }
    })
    .well();
}

/// A thread that prepares snapshots of the region at that moment does not prevent this.
#[test]
fn whoever_is_short_of_blocks_has_them_while_others_have_the_regions_turn() {
    alone(|| {
        let Some(pool) = pool_by_page() else { return };
        for _ in 0..10 {
            let region = pool.region(LEN).unwrap();
            let held = FEW.taken(&region).swap_remove(0);
            let other = pool.region(BLOCKS * BLOCK).unwrap();
            let mut pages = (0..BLOCKS).map(|block| block * BLOCK / PAGE);
            pages.by_ref().take(pool.stats().blocks_free).for_each(|page| write(&other, page, 3));
            assert_eq!(pool.stats().blocks_free, 0);
            let (turns, over) = (AtomicUsize::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let _over = Over(&over);
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        // The preparation may find no block itself.
                        let _ = region.prepare_snapshot();
                        turns.fetch_add(1, Ordering::Release);
                    }
                });
                until("a turn", || turns.load(Ordering::Acquire) > 0);
                write(&other, pages.next().unwrap(), 3);
            });
            assert!(!held.is_revoked(), "a snapshot that lives has lost a block");
        }
    })
    .well();
}

/// The snapshot that looks for a block has the region's turn itself.
#[test]
fn a_snapshot_that_finds_no_block_does_not_wait_for_its_own_turn() {
    alone(|| {
        let Some(pool) = pool_by_page() else { return };
        let region = pool.region(LEN).unwrap();
        let mut taken = FEW.taken(&region);
        // More pages than fit beside the captured ones, and no room for copies of their blocks.
        let others = (0..LEN / PAGE).filter(|page| (300..400).contains(&(page % (BLOCK / PAGE))));
        others.for_each(|page| write(&region, page, 20));
        let other = pool.region(pool.stats().blocks_free * BLOCK).unwrap();
        other.populate().unwrap();
        drop(taken.remove(1));
        let next = region.snapshot().unwrap();
        assert_eq!(read(&next, 300), 20);
    })
    .well();
}
