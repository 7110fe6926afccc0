//! The engine's guarantees when memory is short, lazily freed, pinned or given back, in real processes: some die of a
//! failed access, others check how much memory the kernel counts.

mod physical;

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;

use crate::common::alone::{alone, check_one_line};
use crate::common::signals::handle;
use crate::common::{BACKINGS, by_block, exporting, pool};
use hugefork::{Backing, BlockSize, Pool, Region, RegionError, RegionOptions};
use libc::SIGBUS;
use physical::{Device, memory};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;

/// A plain load, which the compiler may not remove.
fn load(bytes: &[u8], at: usize) -> u8 {
    // SAFETY: the reference is valid.
    unsafe { std::ptr::from_ref(&bytes[at]).read_volatile() }
}

fn small_pool(blocks: usize) -> Pool {
    Pool::builder().name("test").capacity(blocks * BLOCK).build().unwrap()
}

/// The holder that `hold` made, whose first block the first region has taken back, and two regions that fill the pool.
fn revoked_from<H>(hold: impl FnOnce(&Region) -> H) -> (H, [Region; 2]) {
    let pool = small_pool(4);
    let mut region = pool.region_with(2 * BLOCK, by_block()).unwrap();
    region.as_mut_slice().fill(1);
    let holder = hold(&region);
    let rest = pool.region(2 * BLOCK).unwrap();
    rest.populate().unwrap();
    region.as_mut_slice()[7] = 2;
    assert_eq!((region.as_mut_slice()[7], region.stats().faults.blocks_revoked), (2, 1));
    (holder, [region, rest])
}

const TAKEN_AWAY: [&str; 4] =
    ["hugefork: pool `test`", "taken away from a fork or snapshot", "blocks reserved", "(SIGBUS)"];

#[test]
fn a_load_from_a_revoked_snapshot_is_a_bus_error_and_one_line() {
    let ended = alone(|| {
        handle(SIGBUS, libc::SIG_DFL, 0, &[]);
        let (snapshot, _others) = revoked_from(|region| {
            let snapshot = region.snapshot().unwrap();
            assert_eq!(load(&snapshot, 7), 1);
            snapshot
        });
        assert!(snapshot.is_revoked());
        assert_eq!((load(&snapshot, BLOCK), snapshot.read_at(7, &mut [0])), (1, Err(RegionError::Revoked)));
        println!("read {}", load(&snapshot, 7));
    });
    assert!(!ended.stdout.contains("read "), "{ended}");
    check_one_line(&ended.by(SIGBUS), &TAKEN_AWAY);
}

#[test]
fn a_load_from_a_revoked_fork_is_a_bus_error_and_one_line() {
    let ended = alone(|| {
        handle(SIGBUS, libc::SIG_DFL, 0, &[]);
        let (mut fork, _others) = revoked_from(|region| region.fork().unwrap());
        assert!(fork.is_revoked());
        assert_eq!(load(fork.as_mut_slice(), BLOCK), 1);
        println!("read {}", load(fork.as_mut_slice(), 7));
    });
    assert!(!ended.stdout.contains("read "), "{ended}");
    check_one_line(&ended.by(SIGBUS), &TAKEN_AWAY);
}

#[test]
fn a_revoked_fork_cannot_be_populated() {
    let (fork, _others) = revoked_from(|region| region.fork().unwrap());
    assert!(fork.is_revoked());
    assert_eq!(fork.populate(), Err(RegionError::Revoked));
    assert_eq!(fork.populate_with(2, |_| {}), Err(RegionError::Revoked));
    assert_eq!(fork.prepare_write(0..BLOCK), Err(RegionError::Revoked));
}

#[test]
fn a_store_to_a_revoked_fork_is_a_bus_error_and_one_line() {
    let ended = alone(|| {
        handle(SIGBUS, libc::SIG_DFL, 0, &[]);
        let (mut fork, _others) = revoked_from(|region| region.fork().unwrap());
        fork.as_mut_slice()[7] = 3;
    });
    check_one_line(&ended.by(SIGBUS), &TAKEN_AWAY);
}

#[test]
fn a_snapshot_with_a_limit_is_refused_and_changes_nothing() {
    let region = small_pool(4).region(2 * BLOCK).unwrap();
    let options = RegionOptions::new().max_cow_bytes(BLOCK);
    let refused = region.snapshot_with(options).map(drop);
    assert_eq!(refused, Err(RegionError::LimitOnSnapshot));
    assert!(refused.unwrap_err().to_string().contains("leave it out"));
    assert_eq!(region.stats().faults.snapshots, 0);
    assert_eq!(region.fork_with(options).map(|fork| fork.len()), Ok(2 * BLOCK));
}

#[test]
fn a_device_and_the_region_see_each_others_writes_through_a_pin() {
    alone(|| {
        for backing in BACKINGS {
            let Some(pool) = exporting(backing, 6 * BLOCK, BlockSize::MIB_2) else { continue };
            let region = pool.region(2 * BLOCK).unwrap();
            region.populate().unwrap();
            let pin = region.pin(BLOCK + 5..BLOCK + 6).unwrap();
            let at = region.as_mut_ptr().wrapping_add(BLOCK);
            let device = Device::at(at.addr(), BLOCK);
            device.write(100, 7);
            // SAFETY: inside the region.
            assert_eq!(unsafe { at.add(100).read_volatile() }, 7);
            let snapshot = region.snapshot().unwrap();
            device.write(100, 8);
            // SAFETY: it is inside the region, and pinned, so no other memory takes its place.
            unsafe { at.add(101).write_volatile(9) };
            assert_eq!((device.read(100), device.read(101)), (8, 9), "on {backing}");
            assert_eq!((snapshot[BLOCK + 100], snapshot[BLOCK + 101]), (7, 0), "the snapshot has a copy");
            region.lazy_free(0..2 * BLOCK).unwrap();
            device.write(102, 10);
            pool.reclaim(usize::MAX).unwrap();
            drop(pin);
            pool.reclaim(usize::MAX).unwrap();
            // SAFETY: inside the region.
            assert_eq!([100, 101, 102].map(|by| unsafe { at.add(by).read_volatile() }), [8, 9, 10], "on {backing}");
        }
    })
    .well();
}

#[test]
fn read_works_into_a_pinned_range_even_right_after_a_snapshot() {
    for backing in BACKINGS {
        let Some(pool) = pool(backing, 6 * BLOCK, BlockSize::MIB_2) else { continue };
        let mut region = pool.region(2 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        let path = std::env::temp_dir().join(format!("hugefork-promises-{}-{backing}", std::process::id()));
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(&[2; 3 * PAGE]).unwrap();
        let range = BLOCK - PAGE..BLOCK + 2 * PAGE;
        let read = |region: &mut Region, file: &mut File| {
            file.rewind().unwrap();
            file.read(&mut region.as_mut_slice()[range.clone()])
        };
        let snapshot = region.snapshot().unwrap();
        let failed = read(&mut region, &mut file).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EFAULT), "what the pin is for");
        let pin = region.pin(range.clone()).unwrap();
        let later = region.snapshot().unwrap();
        file.rewind().unwrap();
        // SAFETY: this is the pinned range.
        let count = unsafe { libc::read(file.as_raw_fd(), pin.as_mut_ptr().cast(), pin.range().len()) };
        assert_eq!(count, 3 * PAGE as isize, "on {backing}: {}", std::io::Error::last_os_error());
        drop(pin);
        let bytes = region.as_mut_slice();
        assert!(bytes[range.clone()].iter().all(|&byte| byte == 2));
        assert_eq!((bytes[range.start - 1], bytes[range.end]), (1, 1));
        assert!([&snapshot, &later].iter().all(|snapshot| snapshot.iter().all(|&byte| byte == 1)));
    }
}

#[test]
fn trim_gives_the_memory_of_free_blocks_back() {
    alone(|| {
        for (backing, size) in [
            (Backing::ShmemHuge, BlockSize::MIB_2),
            (Backing::ShmemHuge, BlockSize::KIB_64),
            (Backing::ShmemBase, BlockSize::MIB_2),
            (Backing::ShmemBase, BlockSize::KIB_64),
            (Backing::ShmemBase, BlockSize::KIB_4),
        ] {
            let Some(pool) = exporting(backing, 8 * BLOCK, size) else { continue };
            let mut region = pool.region(8 * BLOCK).unwrap();
            region.as_mut_slice().fill(1);
            assert_eq!(memory(), 8 * BLOCK);
            assert_eq!((pool.trim().unwrap(), memory()), (0, 8 * BLOCK), "none is free");
            region.discard(2 * BLOCK..7 * BLOCK).unwrap();
            assert_eq!(memory(), 8 * BLOCK, "{backing}, {size}: free blocks keep theirs");
            assert_eq!((pool.trim().unwrap(), memory()), (5 * BLOCK, 3 * BLOCK), "{backing}, {size}");
            assert_eq!(pool.trim().unwrap(), 0);
            region.lazy_free(0..BLOCK).unwrap();
            assert_eq!((pool.trim().unwrap(), pool.reclaim(usize::MAX).unwrap()), (0, BLOCK));
            assert_eq!((pool.trim().unwrap(), memory()), (BLOCK, 2 * BLOCK), "{backing}, {size}");
            let bytes = region.as_mut_slice();
            assert!(
                bytes
                    .iter()
                    .enumerate()
                    .all(|(at, &byte)| byte == u8::from((BLOCK..2 * BLOCK).contains(&at) || at >= 7 * BLOCK))
            );
            bytes.fill(2);
            assert_eq!(memory(), 8 * BLOCK);
        }
    })
    .well();
}

#[test]
fn trim_leaves_hugetlb_pages_with_the_pool() {
    alone(|| {
        let Some(pool) = pool(Backing::Hugetlb, 4 * BLOCK, BlockSize::MIB_2) else { return };
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        drop(region);
        assert_eq!((pool.trim().unwrap(), memory()), (0, 4 * BLOCK));
    })
    .well();
}

#[test]
fn reclaiming_a_part_of_a_block_gives_the_memory_of_its_pages_back() {
    alone(|| {
        for (backing, size) in [
            (Backing::ShmemHuge, BlockSize::MIB_2),
            (Backing::ShmemHuge, BlockSize::KIB_64),
            (Backing::ShmemBase, BlockSize::MIB_2),
            (Backing::ShmemBase, BlockSize::KIB_64),
        ] {
            let Some(pool) = exporting(backing, 2 * BLOCK, size) else { continue };
            let mut region = pool.region(2 * BLOCK).unwrap();
            region.as_mut_slice().fill(1);
            let part = 3 * PAGE..10 * PAGE;
            region.lazy_free(part.clone()).unwrap();
            assert_eq!((region.stats().blocks_split, memory()), (1, 2 * BLOCK), "{backing}, {size}");
            assert_eq!(pool.reclaim(usize::MAX).unwrap(), part.len());
            assert_eq!(memory(), 2 * BLOCK - part.len(), "{backing}, {size}");
            assert!(region.as_mut_slice().iter().enumerate().all(|(at, &byte)| byte == u8::from(!part.contains(&at))));
            region.as_mut_slice()[part.clone()].fill(2);
            assert_eq!((region.stats().blocks_split, memory()), (0, 2 * BLOCK), "whole again: {backing}, {size}");
        }
    })
    .well();
}

/// One call holds the windows of 2 GiB at once.
#[test]
fn what_is_freed_over_several_gigabytes_is_counted_once() {
    alone(|| {
        const GIB: usize = 1 << 30;
        let Some(pool) = pool(Backing::ShmemBase, 5 * GIB, BlockSize::MIB_2) else { return };
        let mut region = pool.region_with(5 * GIB, by_block()).unwrap();
        let written = [0, GIB, 2 * GIB - BLOCK, 2 * GIB, 4 * GIB - BLOCK, 4 * GIB, 5 * GIB - BLOCK];
        written.iter().for_each(|&at| region.as_mut_slice()[at] = 1);
        let snapshot = region.snapshot().unwrap();
        written[..5].iter().for_each(|&at| region.as_mut_slice()[at] = 2);
        let done = region.lazy_free(0..5 * GIB).unwrap();
        assert_eq!((done.freed, done.shared, done.already), (5 * BLOCK, 2 * BLOCK, 5 * GIB - 7 * BLOCK));
        let again = region.lazy_free(0..5 * GIB).unwrap();
        assert_eq!((again.freed, again.shared, again.already), (0, 2 * BLOCK, 5 * GIB - 2 * BLOCK));
        assert_eq!(pool.reclaim(usize::MAX).unwrap(), 5 * BLOCK);
        assert_eq!(written.map(|at| region.as_mut_slice()[at]), [0, 0, 0, 0, 0, 1, 1]);
        assert!(written.iter().all(|&at| snapshot[at] == 1));
    })
    .well();
}

#[test]
fn metadata_at_4_kib_blocks_is_at_most_a_quarter_of_a_percent() {
    alone(|| {
        const CAPACITY: usize = 256 << 20;
        let pool = pool(Backing::ShmemBase, CAPACITY, BlockSize::KIB_4).unwrap();
        let mut region = pool.region(CAPACITY).unwrap();
        region.as_mut_slice()[..16 << 20].fill(1);
        region.lazy_free(0..8 << 20).unwrap();
        let pin = region.pin((12 << 20)..(12 << 20) + 1).unwrap();
        let (of_pool, of_region) = (pool.stats().metadata_bytes, region.stats().metadata_bytes);
        let share = (of_pool + of_region) as f64 / CAPACITY as f64 * 100.0;
        println!("{of_pool} + {of_region} bytes, {share:.4} % of {CAPACITY}");
        assert!(share <= 0.25 && of_region >= CAPACITY / PAGE * 4, "{share:.4} %");
        drop(pin);
    })
    .well();
}

/// The first and last byte of every page of the region.
fn ends_of_pages(bytes: &[u8]) -> Vec<[u8; 2]> {
    bytes.chunks(PAGE).map(|page| [page[0], page[PAGE - 1]]).collect()
}

/// The first and last byte of each page, read by plain loads: a mutable slice would cancel lazy free.
fn ends_now(region: &Region) -> Vec<[u8; 2]> {
    let byte = |at: usize| {
        // SAFETY: inside the region, which nobody else uses.
        unsafe { region.as_ptr().add(at).read_volatile() }
    };
    (0..region.len() / PAGE).map(|page| [byte(page * PAGE), byte((page + 1) * PAGE - 1)]).collect()
}

fn write_all(region: &mut Region, value: u8) {
    for page in region.as_mut_slice().chunks_mut(PAGE) {
        page[0] = value;
        page[PAGE - 1] = value;
    }
}

/// Writes, takes a snapshot, forks, lazily frees, reclaims, discards, and drops.
fn live(pool: &Pool) {
    let size = pool.block_size().bytes();
    let len = pool.capacity() / 3 / size * size;
    let (pages, what) = (len / PAGE, format!("{}, {}", pool.backing(), pool.block_size()));
    let mut region = pool.region_with(len, by_block()).unwrap();
    write_all(&mut region, 1);
    let snapshot = region.snapshot().unwrap();
    write_all(&mut region, 2);
    assert_eq!(ends_of_pages(&snapshot), vec![[1; 2]; pages], "{what}");
    let mut fork = snapshot.fork().unwrap();
    write_all(&mut fork, 3);
    assert_eq!(ends_of_pages(region.as_mut_slice()), vec![[2; 2]; pages], "{what}");
    drop(fork);
    // All but the first and last page, and one byte more on each side. The backing decides whether parts of the blocks
    // at the ends are freed.
    let range = PAGE - 1..len - PAGE + 1;
    let done = region.lazy_free(range.clone()).unwrap();
    assert_eq!((done.freed + done.already + done.skipped(), done.unaligned), (range.len(), 2), "{what}: {done:?}");
    assert_eq!((done.already, done.shared, region.stats().bytes_lazy), (0, 0, done.freed), "{what}: {done:?}");
    assert!(done.freed >= len - 2 * size.max(PAGE), "{what}: {done:?}");
    assert_eq!(ends_now(&region), vec![[2; 2]; pages], "{what}");
    // SAFETY: inside the region, which nobody else uses.
    unsafe { region.as_mut_ptr().add(len / 2 + 1).write_volatile(9) };
    let kept = done.freed - region.stats().bytes_lazy;
    assert_eq!(kept, size, "{what}: a write takes back the block that it lies in");
    assert_eq!(pool.reclaim(usize::MAX).unwrap(), done.freed - kept, "{what}");
    let after = ends_now(&region);
    assert_eq!(after.iter().filter(|&&ends| ends == [2; 2]).count() * PAGE, len - done.freed + kept, "{what}");
    assert!(after.iter().all(|&ends| ends == [2; 2] || ends == [0; 2]), "{what}");
    assert_eq!((after[0], after[pages - 1], after[pages / 2]), ([2; 2], [2; 2], [2; 2]), "{what}");
    assert_eq!(region.as_mut_slice()[len / 2 + 1], 9, "{what}");
    assert_eq!(ends_of_pages(&snapshot), vec![[1; 2]; pages], "{what}");
    region.discard(1..len - 1).unwrap();
    let ends = region.as_mut_slice();
    assert!(ends[1..len - 1].iter().all(|&byte| byte == 0) && (ends[0], ends[len - 1]) == (2, 2), "{what}");
    write_all(&mut region, 4);
    assert_eq!(ends_of_pages(region.as_mut_slice()), vec![[4; 2]; pages], "{what}");
    drop((region, snapshot));
    let stats = pool.stats();
    assert_eq!((stats.blocks_free, stats.blocks_reserved, stats.blocks_leaked), (stats.blocks, 0, 0), "{what}");
}

#[test]
fn every_block_size_lives_on_every_backing() {
    alone(|| {
        for backing in BACKINGS {
            for kib in [4, 16, 64, 256, 1024, 2048, 4096] {
                let size = BlockSize::new(kib << 10).unwrap();
                if backing == Backing::Hugetlb && size < BlockSize::MIB_2 {
                    // Such blocks are smaller than the pages of this backing.
                    continue;
                }
                let capacity = (9 * size.bytes()).next_multiple_of(BLOCK).next_multiple_of(size.bytes());
                if let Some(pool) = pool(backing, capacity, size) {
                    live(&pool);
                }
            }
        }
    })
    .well();
}

#[test]
fn ranges_outside_of_a_region_are_refused_and_empty_ones_do_nothing() {
    let pool = small_pool(4);
    let mut region = pool.region_with(2 * BLOCK, by_block()).unwrap();
    region.as_mut_slice().fill(1);
    region.lazy_free(0..BLOCK).unwrap();
    let before = region.stats().bytes_lazy;
    #[allow(clippy::reversed_empty_ranges)]
    for range in
        [0..2 * BLOCK + 1, 2 * BLOCK..2 * BLOCK + 1, 5..4, usize::MAX..usize::MAX, 1..usize::MAX, usize::MAX..0]
    {
        let results = [
            region.discard(range.clone()),
            region.prepare_write(range.clone()),
            region.lazy_free(range.clone()).map(drop),
            region.cancel_lazy_free(range.clone()).map(drop),
            region.pin(range.clone()).map(drop),
        ];
        for result in results {
            let error = result.unwrap_err();
            assert!(matches!(error, RegionError::OutOfRange { .. }), "{range:?}: {error:?}");
            assert_eq!(error.to_string().contains("ends before it starts"), range.start > range.end, "{error}");
        }
    }
    for empty in [0..0, 5..5, 2 * BLOCK..2 * BLOCK] {
        region.discard(empty.clone()).unwrap();
        assert_eq!(region.lazy_free(empty.clone()), Ok(Default::default()));
        assert_eq!(region.cancel_lazy_free(empty.clone()), Ok(0));
        assert_eq!(region.pin(empty.clone()).unwrap().range(), empty);
    }
    assert_eq!(region.stats().bytes_lazy, before);
    assert!(region.as_mut_slice().iter().all(|&byte| byte == 1));
}
