//! The contents of a region, its forks and its snapshots, with real memory and real faults.

use crate::common::{BACKINGS, pool};
use hugefork::{Backing, BlockSize, RegionError};

const BLOCK: usize = 2 << 20;

#[test]
fn a_region_reads_as_zeros_and_keeps_what_is_written() {
    for backing in BACKINGS {
        let Some(pool) = pool(backing, 8 * BLOCK, BlockSize::MIB_2) else { continue };
        let mut region = pool.region(4 * BLOCK).unwrap();
        assert!(region.as_mut_slice().iter().all(|&byte| byte == 0));
        assert_eq!(pool.stats().faults.faults(), 0, "reads do not fault into hugefork");
        for (block, offset) in [(0, 0), (1, BLOCK - 1), (3, 4096 * 77 + 5)] {
            region.as_mut_slice()[block * BLOCK + offset] = 7;
        }
        let written: Vec<usize> = (0..4 * BLOCK).filter(|&at| region.as_mut_slice()[at] != 0).collect();
        assert_eq!(written, [0, 2 * BLOCK - 1, 3 * BLOCK + 4096 * 77 + 5]);
        let stats = region.stats();
        assert_eq!((stats.faults.demand_zero, stats.blocks_present), (3, 3));
        assert_eq!(stats.faults.handler.count(), 3);
    }
}

#[test]
fn a_used_block_is_never_shown_to_the_next_owner() {
    for backing in BACKINGS {
        let Some(pool) = pool(backing, 4 * BLOCK, BlockSize::MIB_2) else { continue };
        for round in 0..3 {
            let mut region = pool.region(4 * BLOCK).unwrap();
            for block in 0..4 {
                region.as_mut_slice()[block * BLOCK + 4096 * 100 + round] = 1;
            }
            let set = region.as_mut_slice().iter().filter(|&&byte| byte != 0).count();
            assert_eq!(set, 4, "round {round} on {backing}");
            region.as_mut_slice().fill(0xaa);
        }
        assert_eq!(pool.stats().blocks_free, 4);
        assert!(pool.stats().faults.blocks_cleared >= 8);
    }
}

#[test]
fn forks_and_snapshots_are_what_the_region_was() {
    for backing in BACKINGS {
        let Some(pool) = pool(backing, 16 * BLOCK, BlockSize::MIB_2) else { continue };
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice()[..3 * BLOCK].fill(1);
        let snapshot = region.snapshot().unwrap();
        let mut fork = region.fork().unwrap();
        region.as_mut_slice()[5] = 2;
        fork.as_mut_slice()[BLOCK + 5] = 3;
        let mut fork_of_fork = fork.fork().unwrap();
        let snapshot_of_fork = fork.snapshot().unwrap();
        drop(fork);
        fork_of_fork.as_mut_slice()[3 * BLOCK] = 4;
        let mut fork_of_snapshot = snapshot.fork().unwrap();
        fork_of_snapshot.as_mut_slice()[0] = 5;

        let expect = |changes: &[(usize, u8)]| {
            let mut bytes = vec![1u8; 4 * BLOCK];
            bytes[3 * BLOCK..].fill(0);
            changes.iter().for_each(|&(at, value)| bytes[at] = value);
            bytes
        };
        assert!(snapshot[..] == expect(&[])[..]);
        assert!(region.as_mut_slice() == expect(&[(5, 2)]));
        assert!(snapshot_of_fork[..] == expect(&[(BLOCK + 5, 3)])[..]);
        assert!(fork_of_fork.as_mut_slice() == expect(&[(BLOCK + 5, 3), (3 * BLOCK, 4)]));
        assert!(fork_of_snapshot.as_mut_slice() == expect(&[(0, 5)]));
        drop((region, snapshot, snapshot_of_fork, fork_of_fork, fork_of_snapshot));
        assert_eq!(pool.stats().blocks_free, 16);
        assert_eq!(pool.stats().blocks_leaked, 0);
    }
}

#[test]
fn a_write_to_a_block_that_nobody_else_holds_any_more_copies_nothing() {
    for backing in BACKINGS {
        let Some(pool) = pool(backing, 4 * BLOCK, BlockSize::MIB_2) else { continue };
        let mut region = pool.region(2 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        drop(region.snapshot().unwrap());
        region.as_mut_slice()[7] = 2;
        let faults = region.stats().faults;
        assert_eq!((faults.reused, faults.copied), (1, 0));
        assert_eq!(region.as_mut_slice()[8], 1);
    }
}

#[test]
fn discarded_ranges_read_as_zeros_and_give_their_blocks_back() {
    for backing in BACKINGS {
        let Some(pool) = pool(backing, 8 * BLOCK, BlockSize::MIB_2) else { continue };
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        let snapshot = region.snapshot().unwrap();
        region.discard(BLOCK / 2..3 * BLOCK + 17).unwrap();
        let bytes = region.as_mut_slice();
        assert!(bytes[..BLOCK / 2].iter().all(|&byte| byte == 1));
        assert!(bytes[BLOCK / 2..3 * BLOCK + 17].iter().all(|&byte| byte == 0));
        assert!(bytes[3 * BLOCK + 17..].iter().all(|&byte| byte == 1));
        assert!(snapshot.iter().all(|&byte| byte == 1));
        assert_eq!(region.stats().blocks_present, 2);
        drop(snapshot);
        assert_eq!(pool.stats().blocks_free, 6);
        region.as_mut_slice()[2 * BLOCK] = 9;
        assert_eq!(region.as_mut_slice()[2 * BLOCK + 1], 0);
    }
}

#[test]
fn prepared_memory_takes_system_calls_that_write() {
    let Some(pool) = pool(Backing::Auto, 8 * BLOCK, BlockSize::MIB_2) else { return };
    let mut region = pool.region(2 * BLOCK).unwrap();
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    let read = |region: &mut hugefork::Region| {
        use std::os::unix::fs::FileExt;
        zeros.read_at(&mut region.as_mut_slice()[BLOCK - 100..BLOCK + 100], 0)
    };
    assert_eq!(read(&mut region).unwrap_err().raw_os_error(), Some(libc::EFAULT));
    region.prepare_write(BLOCK - 100..BLOCK + 100).unwrap();
    assert_eq!(read(&mut region).unwrap(), 200);
    assert_eq!(region.stats().blocks_present, 2);
}

#[test]
fn blocks_of_every_size_work() {
    for shift in [12, 13, 16, 20, 21, 22] {
        let size = BlockSize::new(1 << shift).unwrap();
        let pool = pool(Backing::Auto, 32 << 20, size).unwrap();
        let mut region = pool.region(8 << 20).unwrap();
        for at in (0..8 << 20).step_by(333_333) {
            region.as_mut_slice()[at] = 1;
        }
        let snapshot = region.snapshot().unwrap();
        for at in (0..8 << 20).step_by(333_333) {
            region.as_mut_slice()[at] += 1;
        }
        assert!((0..8 << 20).step_by(333_333).all(|at| snapshot[at] == 1), "{size}");
        assert!((0..8 << 20).step_by(333_333).all(|at| region.as_mut_slice()[at] == 2), "{size}");
        assert_eq!(snapshot.iter().map(|&byte| byte as usize).sum::<usize>(), (8usize << 20).div_ceil(333_333));
        let faults = region.stats().faults;
        assert!(faults.copied + faults.cow_mapped > 0, "{faults:?}");
        drop((region, snapshot));
        assert_eq!(pool.stats().blocks_free, pool.stats().blocks);
    }
}

#[test]
fn snapshots_are_read_without_being_mapped() {
    let pool = pool(Backing::Auto, 8 * BLOCK, BlockSize::MIB_2).unwrap();
    let mut region = pool.region(3 * BLOCK).unwrap();
    region.as_mut_slice()[BLOCK - 1] = 1;
    region.as_mut_slice()[2 * BLOCK] = 2;
    let snapshot = region.snapshot().unwrap();
    let mut bytes = vec![9; BLOCK + 2];
    snapshot.read_at(BLOCK - 1, &mut bytes).unwrap();
    assert_eq!((bytes[0], bytes[BLOCK + 1]), (1, 2));
    assert!(bytes[1..=BLOCK].iter().all(|&byte| byte == 0));
    let outside = snapshot.read_at(3 * BLOCK - 1, &mut bytes[..2]).unwrap_err();
    assert!(matches!(outside, RegionError::OutOfRange { .. }));
    assert!(snapshot.read_at(usize::MAX, &mut bytes).is_err());
}

#[test]
fn threads_populate_a_region_and_say_how_far_they_are() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let pool = pool(Backing::Auto, 200 << 20, BlockSize::MIB_2).unwrap();
    let mut region = pool.region(180 << 20).unwrap();
    let (calls, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let report = |done| {
        calls.fetch_add(1, Ordering::Relaxed);
        most.fetch_max(done, Ordering::Relaxed);
    };
    region.populate_with(3, report).unwrap();
    assert_eq!((calls.into_inner(), most.into_inner()), (3, 180 << 20));
    assert_eq!(region.stats().blocks_present, 90);
    let before = region.stats().faults.faults();
    region.as_mut_slice().iter_mut().step_by(4096).for_each(|byte| *byte += 1);
    assert_eq!(region.stats().faults.faults(), before, "nothing faults any more");
    assert!(region.as_mut_slice().iter().step_by(4096).all(|&byte| byte == 1));
    let (full, rest) = (pool.region(180 << 20).unwrap(), |_| {});
    assert!(matches!(full.populate_with(2, rest), Err(RegionError::PoolFull { .. })));
}

#[test]
fn no_more_threads_populate_a_region_than_there_is_work_for() {
    let pool = pool(Backing::Auto, 8 << 20, BlockSize::MIB_2).unwrap();
    let region = pool.region(8 << 20).unwrap();
    region.populate_with(usize::MAX, |_| {}).unwrap();
    assert_eq!(region.stats().blocks_present, 4);
}

#[test]
fn a_panic_ends_the_work_of_all_threads() {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    let pool = pool(Backing::Auto, 640 << 20, BlockSize::MIB_2).unwrap();
    let region = pool.region(640 << 20).unwrap();
    let end = |_| resume_unwind(Box::new("enough"));
    let populate = AssertUnwindSafe(|| region.populate_with(2, end));
    let panic = catch_unwind(populate).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"enough"));
    assert!(region.stats().blocks_present <= 2 * 32, "each thread has done what it had begun");
}
