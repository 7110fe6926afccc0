//! Comparisons of snapshots with each other and with a region, on real memory: they report exactly the changes, even
//! while other threads write.

// Lists of ranges may have only one.
#![allow(clippy::single_range_in_vec_init)]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::alone::alone;
use crate::common::forked::check_fork;
use crate::common::random::Random;
use crate::common::{BACKINGS, Over, by_block, pool};
use hugefork::{Backing, BlockSize, Changes, CopyGrain, Pool, Region, RegionError, RegionOptions, Snapshot};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;

fn blocks(changes: &Changes<'_>) -> Vec<Range<usize>> {
    changes.blocks().map(Result::unwrap).collect()
}

fn pages(changes: &Changes<'_>) -> Vec<Range<usize>> {
    changes.pages().map(Result::unwrap).collect()
}

/// The runs of pages that differ, found by comparing all pages.
fn expected(newer: &[u8], older: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for at in (0..newer.len()).step_by(PAGE).filter(|&at| newer[at..at + PAGE] != older[at..at + PAGE]) {
        match runs.last_mut().filter(|run| run.end == at) {
            Some(run) => run.end += PAGE,
            None => runs.push(at..at + PAGE),
        }
    }
    runs
}

/// Checks the comparison of two snapshots, in both directions.
#[track_caller]
fn check(newer: &Snapshot, older: &Snapshot) {
    let expected = expected(newer, older);
    for changes in [newer.changed_since(older).unwrap(), older.changed_since(newer).unwrap()] {
        assert_eq!(pages(&changes), expected);
        check_blocks(&blocks(&changes), &expected, newer.pool().block_size().bytes());
    }
}

/// Checks that every page that differs lies in a reported block.
#[track_caller]
fn check_blocks(blocks: &[Range<usize>], expected: &[Range<usize>], block: usize) {
    let is_told = |at: usize| blocks.iter().any(|range| range.contains(&at));
    assert!(expected.iter().flat_map(|run| run.clone().step_by(PAGE)).all(is_told), "{blocks:?} for {expected:?}");
    assert!(blocks.iter().all(|range| range.start % block == 0 && range.end % block == 0));
}

/// Checks the comparison of a region, to which nobody writes.
#[track_caller]
fn check_region(region: &mut Region, older: &Snapshot) {
    let expected = expected(region.as_mut_slice(), older);
    let changes = region.changed_since(older).unwrap();
    assert_eq!(pages(&changes), expected);
    check_blocks(&blocks(&changes), &expected, region.pool().block_size().bytes());
}

#[test]
fn all_that_differs_is_told_on_each_backing_at_each_block_size_and_grain() {
    alone(|| {
        for backing in BACKINGS {
            for (size, count) in [(BlockSize::MIB_2, 3), (BlockSize::KIB_64, 40), (BlockSize::KIB_4, 600)] {
                if backing == Backing::Hugetlb && size < BlockSize::MIB_2 {
                    continue;
                }
                let Some(pool) = pool(backing, count * 12 * size.bytes(), size) else { continue };
                for grain in [CopyGrain::Auto, CopyGrain::Page, CopyGrain::Block] {
                    let len = count * size.bytes();
                    let mut region = pool
                        .region_with(len, RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page))
                        .unwrap();
                    let mut random = Random::new(7 + len as u64);
                    let mut taken: Vec<Snapshot> = Vec::new();
                    for round in 0..6_usize {
                        for _ in 0..[0, 1, 30, 3, 200, 0][round] {
                            let at = random.below(len);
                            // Sometimes the byte that is there already.
                            region.as_mut_slice()[at] = random.below(3) as u8;
                        }
                        if round == 3 {
                            region.discard(0..len / 3).unwrap();
                            region.as_mut_slice()[size.bytes()..][..PAGE].fill(0);
                        }
                        taken.iter().for_each(|older| check_region(&mut region, older));
                        let snapshot = region.snapshot().unwrap();
                        check_region(&mut region, &snapshot);
                        taken.iter().for_each(|older| check(&snapshot, older));
                        taken.push(snapshot);
                    }
                    // A fork, and a region that has the same bytes in other blocks.
                    let mut fork = taken[2].fork().unwrap();
                    fork.as_mut_slice()[len - 1] = 9;
                    taken.iter().for_each(|older| check_region(&mut fork, older));
                    drop(fork);
                    let mut other = pool.region(len).unwrap();
                    other.as_mut_slice().copy_from_slice(&taken[5]);
                    let same = other.snapshot().unwrap();
                    assert_eq!(pages(&same.changed_since(&taken[5]).unwrap()), [0..0; 0]);
                    assert_eq!(blocks(&same.changed_since(&taken[5]).unwrap()), [0..len]);
                    check(&same, &taken[4]);
                }
            }
        }
    })
    .well();
}

#[test]
fn zeros_and_a_block_of_zeros_differ_by_block_and_not_by_page() {
    let pool = Pool::builder().capacity(16 * BLOCK).build().unwrap();
    let mut region = pool.region(3 * BLOCK).unwrap();
    let empty = region.snapshot().unwrap();
    region.as_mut_slice()[BLOCK] = 0;
    let zeros = region.snapshot().unwrap();
    for changes in [zeros.changed_since(&empty).unwrap(), empty.changed_since(&zeros).unwrap()] {
        assert_eq!((blocks(&changes), pages(&changes)), (vec![BLOCK..2 * BLOCK], vec![]));
    }
    assert_eq!(pages(&zeros.changed_since(&zeros).unwrap()), [0..0; 0]);
    assert_eq!(blocks(&zeros.changed_since(&zeros).unwrap()), [0..0; 0]);
}

#[test]
fn what_was_lazily_freed_counts_as_what_it_reads_as() {
    let pool = Pool::builder().capacity(16 * BLOCK).build().unwrap();
    let mut region = pool.region(2 * BLOCK).unwrap();
    let empty = region.snapshot().unwrap();
    region.as_mut_slice().fill(1);
    // One block as a whole, and some pages of another.
    region.lazy_free(0..BLOCK + 8 * PAGE).unwrap();
    assert_eq!(pages(&region.changed_since(&empty).unwrap()), [0..2 * BLOCK]);
    pool.reclaim(usize::MAX).unwrap();
    let left = pages(&region.changed_since(&empty).unwrap());
    assert!(left == [BLOCK + 8 * PAGE..2 * BLOCK] || left == [BLOCK..2 * BLOCK], "{left:?}");
    let memory = pool.stats().bytes_base;
    assert_eq!(pages(&region.changed_since(&empty).unwrap()), left);
    assert_eq!(pool.stats().bytes_base, memory, "to look at dropped pages takes no memory");
}

#[test]
fn what_does_not_go_together_is_an_error() {
    let (pool, other) = (
        Pool::builder().name("one").capacity(16 * BLOCK).build().unwrap(),
        Pool::builder().name("two").capacity(16 * BLOCK).build().unwrap(),
    );
    let region = pool.region(2 * BLOCK).unwrap();
    let (mine, longer, foreign) = (
        region.snapshot().unwrap(),
        pool.region(3 * BLOCK).unwrap().snapshot().unwrap(),
        other.region(2 * BLOCK).unwrap().snapshot().unwrap(),
    );
    for error in [mine.changed_since(&longer).unwrap_err(), region.changed_since(&longer).unwrap_err()] {
        assert!(
            matches!(error, RegionError::AnotherLength { len, other, .. } if (len, other) == (2 * BLOCK, 3 * BLOCK))
        );
        assert!(error.to_string().contains("same length"), "{error}");
    }
    for error in [mine.changed_since(&foreign).unwrap_err(), region.changed_since(&foreign).unwrap_err()] {
        assert!(matches!(&error, RegionError::AnotherPool { pool, other, .. } if pool == "one" && other == "two"));
    }
}

#[test]
fn what_was_taken_away_is_an_error_where_it_is_come_upon() {
    let pool = Pool::builder().capacity(4 * BLOCK).build().unwrap();
    let mut region = pool.region_with(4 * BLOCK, by_block()).unwrap();
    region.as_mut_slice().fill(1);
    let (first, second) = (region.snapshot().unwrap(), region.snapshot().unwrap());
    region.as_mut_slice()[2 * BLOCK] = 2;
    assert!(first.is_revoked() && second.is_revoked());
    for changes in [region.changed_since(&first).unwrap(), second.changed_since(&first).unwrap()] {
        for iterator in [changes.blocks(), changes.pages()] {
            let told: Vec<_> = iterator.collect();
            assert_eq!(told, [Err(RegionError::Revoked)]);
        }
    }
    assert!(RegionError::Revoked.to_string().contains("Reserve::Full"), "it says what to do");
    // A new snapshot can be compared with the region again.
    drop((first, second));
    let third = region.snapshot().unwrap();
    check_region(&mut region, &third);
}

#[test]
fn a_child_of_fork_gets_an_error() {
    alone(|| {
        let pool = Pool::builder().capacity(16 * BLOCK).build().unwrap();
        let mut region = pool.region(2 * BLOCK).unwrap();
        let older = region.snapshot().unwrap();
        region.as_mut_slice()[0] = 1;
        let newer = region.snapshot().unwrap();
        let changes = newer.changed_since(&older).unwrap();
        let mut begun = changes.pages();
        check_fork(|| {
            assert_eq!(newer.changed_since(&older).unwrap_err(), RegionError::ForkedChild);
            assert_eq!(region.changed_since(&older).unwrap_err(), RegionError::ForkedChild);
            assert_eq!(changes.blocks().collect::<Vec<_>>(), [Err(RegionError::ForkedChild)]);
            assert_eq!(begun.next(), Some(Err(RegionError::ForkedChild)));
            assert_eq!(begun.next(), None);
        });
        assert_eq!(changes.pages().collect::<Vec<_>>(), [Ok(0..PAGE)]);
    })
    .well();
}

/// Writers raise a count in each page, at most one step after the last comparison. A comparison must find every page
/// that was written before it began.
#[test]
fn a_region_is_compared_while_others_write_write_back_and_snapshot_it() {
    alone(|| {
        for grain in [CopyGrain::Auto, CopyGrain::Page, CopyGrain::Block] {
            let pool = Pool::builder().capacity(64 * BLOCK).build().unwrap();
            let region = pool
                .region_with(4 * BLOCK, RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page))
                .unwrap();
            region.populate().unwrap();
            let older = region.snapshot().unwrap();
            let (words, is_over) = (region.as_atomic_u64s(), AtomicBool::new(false));
            let pages_of = |page: usize| &words[page * PAGE / 8 + 17];
            let count = region.len() / PAGE;
            let written: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
            std::thread::scope(|scope| {
                let over = Over(&is_over);
                for seed in [3, 5] {
                    let (written, is_over) = (&written, &is_over);
                    scope.spawn(move || {
                        let mut random = Random::new(seed);
                        while !is_over.load(Ordering::Relaxed) {
                            let page = random.below(count);
                            pages_of(page).fetch_add(1, Ordering::Relaxed);
                            written[page].store(1, Ordering::Release);
                        }
                    });
                }
                let (region, is_over) = (&region, &is_over);
                scope.spawn(move || {
                    let mut held = None;
                    while !is_over.load(Ordering::Relaxed) {
                        held = Some(region.snapshot().unwrap());
                        std::thread::yield_now();
                    }
                    drop(held);
                });
                for _ in 0..20 {
                    let before: Vec<usize> =
                        (0..count).filter(|&page| written[page].load(Ordering::Acquire) == 1).collect();
                    let found = pages(&region.changed_since(&older).unwrap());
                    let is_told = |page: &usize| found.iter().any(|range| range.contains(&(page * PAGE)));
                    assert_eq!(before.iter().filter(|page| !is_told(page)).count(), 0, "missed");
                    let cut = region.snapshot().unwrap();
                    assert_eq!(pages(&cut.changed_since(&older).unwrap()), expected(&cut, &older));
                }
                drop(over);
            });
            let changed: Vec<usize> = (0..count).filter(|&page| pages_of(page).load(Ordering::Relaxed) > 0).collect();
            let told: usize =
                pages(&region.changed_since(&older).unwrap()).iter().map(|range| range.len() / PAGE).sum();
            assert_eq!(told, changed.len());
        }
    })
    .well();
}

/// A reset at one moment moves private pages elsewhere and back. Meanwhile a scan does not find them at their
/// addresses.
#[test]
fn a_page_that_outlives_resets_of_another_thread_is_found() {
    alone(|| {
        let options = RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true);
        let pool = Pool::builder().capacity(32 * BLOCK).build().unwrap();
        let mut region = pool.region_with(8 * BLOCK, options).unwrap();
        region.as_mut_slice().fill(1);
        let first = region.snapshot().unwrap();
        let (words, is_over, mut value) = (region.as_atomic_u64s(), AtomicBool::new(false), 100);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    region.reset_to(&first).unwrap();
                }
            });
            for nth in 0..3000 {
                let pages_written = || (0..40).map(|page| page * 97 + 5);
                pages_written()
                    .zip(value..)
                    .for_each(|(page, value)| words[page * PAGE / 8].store(value, Ordering::SeqCst));
                let changes = region.changed_since(&first).unwrap();
                let found = match nth % 3 {
                    0 => pages(&changes),
                    1 => changes.written().map(Result::unwrap).collect(),
                    _ => blocks(&changes),
                };
                for (page, value) in pages_written().zip(value..) {
                    let is_still_there = words[page * PAGE / 8].load(Ordering::SeqCst) == value;
                    let is_found = found.iter().any(|range| range.contains(&(page * PAGE)));
                    assert!(is_found || !is_still_there, "call {nth} misses page {page}");
                }
                value += 40;
            }
            is_over.store(true, Ordering::Relaxed);
        });
    })
    .well();
}

#[test]
fn snapshots_form_a_tree() {
    let pool = Pool::builder().capacity(16 * BLOCK).build().unwrap();
    let region = pool.region(BLOCK).unwrap();
    assert_eq!(region.origin(), None);
    let fork_of_new = region.fork().unwrap();
    assert_eq!((region.origin(), fork_of_new.origin()), (None, None), "a fork is no snapshot");
    let first = region.snapshot().unwrap();
    let fork = region.fork().unwrap();
    assert_eq!((fork.origin(), region.origin()), (Some(first.id()), Some(first.id())));
    let second = region.snapshot().unwrap();
    let branch = first.fork().unwrap();
    let third = branch.snapshot().unwrap();
    let of_fork = fork.snapshot().unwrap();
    assert!(first.id() < second.id() && second.id() < third.id() && third.id() < of_fork.id());
    assert_eq!(
        [&first, &second, &third, &of_fork].map(Snapshot::parent),
        [None, Some(first.id()), Some(first.id()), Some(first.id())]
    );
    assert_eq!((branch.origin(), region.origin()), (Some(third.id()), Some(second.id())));
    drop(first);
    assert_eq!(second.parent().map(|id| id < second.id()), Some(true), "it is told of one that has gone");
    // A snapshot that fails leaves the region at the snapshot where it was.
    let most = RegionOptions::new().max_cow_bytes(BLOCK);
    let full = pool.region_with(16 * BLOCK - 2 * BLOCK, RegionOptions::new()).unwrap();
    full.populate().unwrap();
    let at = full.snapshot().unwrap();
    full.snapshot_with(most).unwrap_err();
    assert_eq!(full.origin(), Some(at.id()));
}

#[test]
fn snapshots_of_one_region_have_ids_in_the_order_of_their_cuts() {
    alone(|| {
        let pool = Pool::builder().capacity(64 * BLOCK).build().unwrap();
        let region = pool.region(BLOCK).unwrap();
        let (count, is_over) = (&region.as_atomic_u64s()[0], AtomicBool::new(false));
        let mut taken: Vec<(hugefork::SnapshotId, u64)> = std::thread::scope(|scope| {
            let over = Over(&is_over);
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            let take = || {
                let one = || {
                    let snapshot = region.snapshot().unwrap();
                    let mut word = [0; 8];
                    snapshot.read_at(0, &mut word).unwrap();
                    (snapshot.id(), u64::from_ne_bytes(word))
                };
                (0..300).map(|_| one()).collect::<Vec<_>>()
            };
            let other = scope.spawn(take);
            let mut taken = take();
            taken.extend(other.join().unwrap());
            drop(over);
            taken
        });
        taken.sort_by_key(|(id, _)| *id);
        assert!(taken.is_sorted_by_key(|(_, count)| *count) && taken.windows(2).all(|pair| pair[0].0 != pair[1].0));
    })
    .well();
}
