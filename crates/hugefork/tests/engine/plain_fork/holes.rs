//! In a child of `fork(2)`, the addresses of regions, snapshots and pools are holes. There is neither the parent's
//! memory nor memory of the child's own: pointers and borrows from before the fork would reach it.

use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::alone::{Ended, alone};
use crate::common::forked::{check_fork, in_fork, in_raw_fork, pool_mappings, region_of_all_kinds};
use crate::common::{BACKINGS, pool};
use hugefork::{Advice, BlockSize, Pool, Region, RegionError, Snapshot};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;

/// Maps memory, at `wish` if nothing is there.
fn map(wish: usize, len: usize) -> Range<usize> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(ptr::without_provenance_mut(wish), len, access, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.expose_provenance()..at.addr() + len
}

/// Allocates and maps memory, at addresses that the kernel chooses and at those where regions were, and checks that
/// none of it lies in `forbidden`.
fn check_that_nothing_new_lies_in(forbidden: &[Range<usize>]) {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let check = |new: Range<usize>| {
        let clash = forbidden.iter().find(|old| new.start < old.end && old.start < new.end);
        assert_eq!(clash, None, "{new:x?}");
    };
    for old in forbidden {
        for wish in [old.start, old.start + PAGE, old.end - PAGE] {
            check(map(wish, PAGE));
        }
        check(map(old.start, old.len()));
    }
    for round in 0..300 {
        check(map(0, PAGE << (round % 12)));
        let new = vec![1; 1000 << (round % 14)];
        check(new.as_ptr().addr()..new.as_ptr().addr() + new.len());
        kept.push(new);
    }
}

/// The ranges of addresses that the child must not get.
fn places(pool: &Pool, regions: &[&Region], snapshot: &Snapshot) -> Vec<Range<usize>> {
    // The direct map, and the mappings from which read-only and private mappings are made. Their used parts have other
    // rights.
    let mut whole: Vec<Range<usize>> = Vec::new();
    for map in pool_mappings().into_iter().map(|map| map.address.0 as usize..map.address.1 as usize) {
        match whole.last_mut().filter(|last| last.end == map.start) {
            Some(last) => last.end = map.end,
            None => whole.push(map),
        }
    }
    let mut places: Vec<_> = whole.into_iter().filter(|map| map.len() == pool.capacity()).collect();
    let ranges =
        regions.iter().map(|region| (region.as_ptr(), region.len())).chain([(snapshot.as_ptr(), snapshot.len())]);
    places.extend(ranges.map(|(at, len)| at.addr()..at.addr() + len));
    places
}

#[test]
fn nothing_of_a_childs_own_lies_where_regions_and_pools_were() {
    alone(|| {
        for backing in BACKINGS {
            let Some(pool) = pool(backing, 32 * BLOCK, BlockSize::MIB_2) else { continue };
            let (region, fork, snapshot) = region_of_all_kinds(&pool);
            // One region that is gone, and one that has lost its middle.
            drop(pool.region(3 * BLOCK).unwrap());
            let holey = pool.region(5 * BLOCK).unwrap();
            holey.populate().unwrap();
            holey.discard(2 * BLOCK..3 * BLOCK).unwrap();
            let places = places(&pool, &[&region, &fork, &holey], &snapshot);
            assert!((5..=7).contains(&places.len()), "{places:x?}");
            check_fork(|| {
                check_that_nothing_new_lies_in(&places);
                check_fork(|| check_that_nothing_new_lies_in(&places));
            });
        }
    })
    .well();
}

/// Uses a borrow from before the fork in a child that has mapped a lot of memory of its own.
fn use_a_borrow_in_a_child(access: impl FnOnce(&mut [u8], &[u8])) {
    let pool = Pool::builder().capacity(16 * BLOCK).build().unwrap();
    let (mut region, fork, snapshot) = region_of_all_kinds(&pool);
    let places = places(&pool, &[&region, &fork], &snapshot);
    let (bytes, old) = (region.as_mut_slice(), snapshot.map().unwrap());
    let status = in_fork(|| {
        check_that_nothing_new_lies_in(&places);
        access(bytes, old);
        0
    });
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status}");
}

#[track_caller]
fn check_says_why(ended: Ended) {
    let said = ended.stderr.lines().filter(|line| line.contains("regions do not cross fork(2)")).count();
    assert_eq!(said, 1, "{ended}");
    ended.well();
}

#[test]
fn a_write_to_a_region_borrowed_before_the_fork_is_a_fault_that_says_why() {
    check_says_why(alone(|| use_a_borrow_in_a_child(|region, _| region[BLOCK] = 1)));
}

#[test]
fn a_read_of_a_region_borrowed_before_the_fork_is_a_fault_that_says_why() {
    check_says_why(alone(|| use_a_borrow_in_a_child(|region, _| assert_eq!(std::hint::black_box(region)[0], 2))));
}

#[test]
fn a_read_of_a_snapshot_mapped_before_the_fork_is_a_fault_that_says_why() {
    check_says_why(alone(|| use_a_borrow_in_a_child(|_, old| assert_eq!(std::hint::black_box(old)[0], 0))));
}

/// Calls every accessor in a child, which may have memory of its own where the region was.
fn check_accessors(region: &mut Region, snapshot: &Snapshot) {
    let says_why = |result: std::thread::Result<()>| {
        let panic = result.expect_err("it hands out memory that is not there");
        let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        assert!(said.is_some_and(|said| said.contains("do not cross fork(2)")), "{said:?}");
    };
    std::panic::set_hook(Box::new(|_| {}));
    says_why(catch_unwind(AssertUnwindSafe(|| region.as_mut_slice()[0] = 9)));
    says_why(catch_unwind(AssertUnwindSafe(|| assert_eq!(snapshot[0], 9))));
    let _ = std::panic::take_hook();
    fn refused<T>(result: Result<T, RegionError>) {
        assert_eq!(result.err(), Some(RegionError::ForkedChild));
    }
    refused(snapshot.map());
    refused(snapshot.read_at(0, &mut [0]));
    refused(snapshot.fork());
    refused(region.pin(0..1));
    refused(region.pin_owned(0..1));
    refused(region.lazy_free(0..BLOCK));
    refused(region.cancel_lazy_free(0..BLOCK));
    refused(region.discard(0..BLOCK));
    refused(region.populate());
    refused(region.populate_with(2, |_| {}));
    refused(region.prepare_write(0..1));
    refused(region.fork());
    refused(region.snapshot());
    refused(region.pool().reclaim(1));
    refused(region.pool().trim());
    refused(region.pool().region(BLOCK));
    hugefork::reinstall_fault_handler().unwrap();
    // These calls touch no memory of the region.
    region.advise(Advice::Whole);
    assert_eq!((region.stats().blocks, region.len()), (4, snapshot.len()));
    assert!(!region.is_revoked() && !snapshot.is_revoked() && !region.as_ptr().is_null());
    assert_eq!(region.pool().stats().regions, 0);
}

#[test]
fn no_accessor_of_a_child_hands_out_memory_however_it_was_made() {
    alone(|| {
        let pool = Pool::builder().capacity(16 * BLOCK).build().unwrap();
        let (mut region, _fork, snapshot) = region_of_all_kinds(&pool);
        check_fork(|| {
            check_accessors(&mut region, &snapshot);
            check_fork(|| check_accessors(&mut region, &snapshot));
        });
        // The C library's handlers do not run in this child, so it can get memory there.
        let at = region.as_ptr().addr();
        let status = in_raw_fork(|| {
            assert_eq!(map(at, region.len()).start, at, "or there is nothing to be seen");
            check_accessors(&mut region, &snapshot);
            // SAFETY: this is the child's own memory, just mapped.
            assert_eq!(unsafe { region.as_ptr().read_volatile() }, 0);
            0
        });
        assert!(status.success(), "{status}");
        assert_eq!((region.as_mut_slice()[0], snapshot[0]), (2, 0));
    })
    .well();
}

static WISH: AtomicUsize = AtomicUsize::new(0);
static GOT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Maps memory and writes to it, as an earlier library's handler may do in a child.
extern "C" fn get_memory() {
    let got: *mut u8 = ptr::with_exposed_provenance_mut(map(WISH.load(Ordering::Relaxed), 3 * PAGE).start);
    // SAFETY: mapped above.
    unsafe { got.write(77) };
    GOT.store(got, Ordering::Relaxed);
}

#[test]
fn what_an_earlier_handler_got_in_the_child_stays_with_the_child() {
    alone(|| {
        // SAFETY: the handler is for children, and does what may be done there.
        assert_eq!(unsafe { libc::pthread_atfork(None, None, Some(get_memory)) }, 0);
        let pool = Pool::builder().capacity(16 * BLOCK).build().unwrap();
        let (mut region, fork, snapshot) = region_of_all_kinds(&pool);
        let wish = region.as_ptr().addr() + BLOCK + 5 * PAGE;
        WISH.store(wish, Ordering::Relaxed);
        let places = places(&pool, &[&region, &fork], &snapshot);
        check_fork(|| {
            let got = GOT.load(Ordering::Relaxed);
            assert_eq!(got.addr(), wish, "or there is nothing to be seen");
            // SAFETY: this is the child's own memory.
            assert_eq!(unsafe { got.read_volatile() }, 77);
            check_that_nothing_new_lies_in(&places);
            // SAFETY: as above.
            assert_eq!(unsafe { got.add(3 * PAGE - 1).read_volatile() }, 0);
            check_accessors(&mut region, &snapshot);
        });
    })
    .well();
}
