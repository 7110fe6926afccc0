//! Kernels that do not copy single pages, or stop telling which pages they have copied. Pools can still be built, say
//! why they have no page grain, and copy blocks. Nothing is lost.
//!
//! Each test refuses calls in a process of its own.

use crate::common::alone::alone;
use crate::common::seccomp::{Refused, every, refuse, with};
use hugefork::{Advice, Backing, CopyGrain, Fallback, Pool, Region, RegionError, RegionOptions};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;
const LEN: usize = 4 * BLOCK;
const SHMEM: [Backing; 2] = [Backing::ShmemHuge, Backing::ShmemBase];

/// The number of `ioctl(PAGEMAP_SCAN)`.
const PAGEMAP_SCAN: i32 = hugefork_linux::pagemap_scan::PAGEMAP_SCAN.cast_signed();

fn no_scan(errno: i32) -> Refused {
    with(libc::SYS_ioctl, 1, PAGEMAP_SCAN, errno)
}

/// A pool on shmem, or on the best backing that this machine grants instead.
fn pool(backing: Backing) -> Pool {
    let builder = Pool::builder().name("test").capacity(4 * LEN).backing(backing).obtain_ahead(0);
    builder.fallback(Fallback::Allowed).build().unwrap()
}

fn region(pool: &Pool, grain: CopyGrain) -> Region {
    let mut region =
        pool.region_with(LEN, RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page)).unwrap();
    region.as_mut_slice().fill(1);
    region
}

/// Checks that all blocks of the pool are free again.
#[track_caller]
fn check_all_is_back(pool: &Pool) {
    let stats = pool.stats();
    assert_eq!((stats.blocks_free, stats.blocks_leaked), (stats.blocks, 0));
}

/// Checks that the pool has no page grain, names `call` as the reason and says what to do, and that its regions copy
/// blocks.
#[track_caller]
fn check_blocks_alone(pool: &Pool, call: &str) {
    let why = pool.no_page_grain().expect("it has page grain");
    assert!(!pool.has_page_grain() && why.contains(call) && why.contains("needed"), "`{call}` in {why}");
    for grain in [CopyGrain::Page, CopyGrain::Auto] {
        let mut region = region(pool, grain);
        let snapshot = region.snapshot().unwrap();
        let mut fork =
            region.fork_with(RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page)).unwrap();
        for block in 0..3 {
            region.as_mut_slice()[block * BLOCK + 5 * PAGE] = 2;
        }
        fork.as_mut_slice()[7] = 3;
        let stats = region.stats();
        assert_eq!((stats.blocks_cow_mapped, stats.pages_private, stats.faults.cow_mapped), (0, 0, 0));
        assert_eq!((stats.faults.bytes_copied, stats.faults.failed), (3 * BLOCK as u64, 0));
        assert_eq!(fork.stats().faults.bytes_copied, BLOCK as u64);
        let mut expected = vec![1; LEN];
        assert!(snapshot[..] == expected);
        expected[7] = 3;
        assert!(fork.as_mut_slice() == expected);
        expected[7] = 1;
        (0..3).for_each(|block| expected[block * BLOCK + 5 * PAGE] = 2);
        let again = region.snapshot().unwrap();
        assert!(again[..] == expected && region.as_mut_slice() == expected);
    }
    check_all_is_back(pool);
}

#[test]
fn a_kernel_that_does_not_say_which_pages_are_private() {
    alone(|| {
        // Linux before 6.7, a kernel that is not Linux, a sandbox. The filter installed last decides.
        for errno in [libc::EINVAL, libc::ENOTTY, libc::EPERM] {
            refuse(no_scan(errno));
            SHMEM.iter().for_each(|&backing| check_blocks_alone(&pool(backing), "ioctl(PAGEMAP_SCAN)"));
            let why = pool(Backing::ShmemBase).no_page_grain().unwrap();
            assert!(!why.contains("error "), "{why}");
        }
    })
    .well();
}

#[test]
fn without_proc() {
    alone(|| {
        // A pool needs no other file.
        refuse(every(libc::SYS_openat, libc::ENOENT));
        let pool = pool(Backing::ShmemBase);
        check_blocks_alone(&pool, "open of /proc/self/pagemap");
        check_blocks_alone(&pool, "ENOENT");
    })
    .well();
}

#[test]
fn a_pagemap_that_may_not_be_read() {
    alone(|| {
        refuse(every(libc::SYS_openat, libc::EACCES));
        let pool = pool(Backing::ShmemBase);
        check_blocks_alone(&pool, "open of /proc/self/pagemap");
        check_blocks_alone(&pool, "EACCES");
    })
    .well();
}

#[test]
fn a_kernel_that_does_not_duplicate_private_mappings() {
    alone(|| {
        // The engine tries it with one page. The zeros of these tests are made by the same call, but are longer.
        refuse(with(libc::SYS_mremap, 1, PAGE as i32, libc::EINVAL));
        check_blocks_alone(&pool(Backing::ShmemBase), "mremap of a private mapping");
    })
    .well();
}

#[test]
fn pools_of_hugetlb_pages_have_no_page_grain_and_say_so() {
    let Some(pool) = crate::common::pool(Backing::Hugetlb, 4 * LEN, hugefork::BlockSize::MIB_2) else { return };
    let why = pool.no_page_grain().unwrap();
    assert!(!pool.has_page_grain() && why.contains("hugetlb") && why.contains("Backing::ShmemHuge"), "{why}");
}

/// A pool with page grain; `None`, with a message, if this kernel has none.
fn paged(backing: Backing) -> Option<Pool> {
    let pool = pool(backing);
    if let Some(why) = pool.no_page_grain() {
        println!("skipped: {why}");
        return None;
    }
    Some(pool)
}

#[track_caller]
fn check_refused<T>(result: Result<T, RegionError>) {
    match result {
        Err(RegionError::System(error)) => assert_eq!(error.call(), "ioctl(PAGEMAP_SCAN)", "{error}"),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("nothing was refused"),
    }
}

/// Writes by page while a snapshot holds the region, and then loses the call that finds these pages, as a program does
/// that enters a sandbox late.
fn lose_the_call(backing: Backing, grain: CopyGrain, keeps_snapshot: bool) {
    let Some(pool) = paged(backing) else { return };
    let mut region = region(&pool, grain);
    let mut expected = vec![1; LEN];
    let snapshot = region.snapshot().unwrap();
    let mut write = |region: &mut Region, at: usize, value: u8| {
        region.as_mut_slice()[at] = value;
        expected[at] = value;
        assert!(region.as_mut_slice() == expected, "after the write to {at}");
    };
    (0..3).for_each(|block| write(&mut region, block * BLOCK + 5 * PAGE, 2));
    assert!(region.stats().pages_private >= 3, "{:?}", region.stats());

    refuse(no_scan(libc::EPERM));
    let snapshot = keeps_snapshot.then_some(snapshot);
    for round in 3..6 {
        check_refused(region.snapshot());
        check_refused(region.fork());
        // To a private page, to another page of that block, and to a block without private pages.
        [5 * PAGE + 1, BLOCK + round * 7 * PAGE, 3 * BLOCK + round * PAGE]
            .iter()
            .for_each(|&at| write(&mut region, at, round as u8));
        assert!(snapshot.as_ref().is_none_or(|snapshot| snapshot[..] == vec![1; LEN]));
    }
    assert_eq!(region.stats().faults.failed, 0);
    drop((region, snapshot));
    check_all_is_back(&pool);
}

#[test]
fn a_call_that_is_lost_while_a_snapshot_holds_what_is_shown_by_page() {
    alone(|| lose_the_call(Backing::ShmemHuge, CopyGrain::Auto, true)).well();
}

#[test]
fn a_call_that_is_lost_while_no_snapshot_holds_what_is_shown_by_page() {
    alone(|| lose_the_call(Backing::ShmemHuge, CopyGrain::Auto, false)).well();
}

#[test]
fn a_call_that_is_lost_where_the_kernel_copies_whatever_comes() {
    alone(|| lose_the_call(Backing::ShmemBase, CopyGrain::Page, true)).well();
}

#[test]
fn a_call_that_is_lost_where_the_kernel_copied_whatever_came() {
    alone(|| lose_the_call(Backing::ShmemBase, CopyGrain::Page, false)).well();
}

/// A copy of a block would have to contain its private pages.
#[test]
fn writes_of_whole_blocks_go_on_by_page_where_their_pages_are_not_found() {
    alone(|| {
        let Some(pool) = paged(Backing::ShmemHuge) else { return };
        let mut region = region(&pool, CopyGrain::Auto);
        let snapshot = region.snapshot().unwrap();
        region.as_mut_slice()[5 * PAGE] = 2;
        refuse(no_scan(libc::EPERM));
        check_refused(region.snapshot());
        check_refused(region.pin(0..PAGE));
        region.advise(Advice::Whole);
        let failed = region.stats().faults.failed;
        let mut expected = vec![1; LEN];
        expected[5 * PAGE] = 2;
        for block in 0..4 {
            region.as_mut_slice()[block * BLOCK] = 3;
            expected[block * BLOCK] = 3;
            assert!(region.as_mut_slice() == expected && snapshot[..] == vec![1; LEN]);
        }
        assert_eq!(region.stats().faults.failed, failed, "each write went on");
        drop((region, snapshot));
        check_all_is_back(&pool);
    })
    .well();
}
