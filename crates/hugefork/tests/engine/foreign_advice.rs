//! Calls by which a program tells the kernel something about the addresses of a region (`madvise` and its like), and
//! their effects: the kernel refuses few of them. The documentation of `Region` has the rule.

use crate::common::alone::alone;
use hugefork::{Pool, Region};

const BLOCK: usize = 2 << 20;
const PAGE: usize = 4096;

/// The offset at which the tests write pages.
const AT: usize = 3 * BLOCK + 21 * PAGE;

/// Calls `madvise` on all of a region. Returns zero or an `errno`.
fn advise(region: &Region, advice: i32) -> i32 {
    // SAFETY: the test reads the contents that are left.
    let refused = unsafe { libc::madvise(region.as_mut_ptr().cast(), region.len(), advice) } != 0;
    if refused { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
}

fn pool() -> Option<Pool> {
    let pool = Pool::builder().capacity(16 * BLOCK).build().unwrap();
    let why = pool.no_page_grain();
    why.inspect(|why| println!("skipped: {why}")).is_none().then_some(pool)
}

/// A region with two snapshots, so that the pages written after the first one are captured.
fn captured(pool: &Pool) -> (Region, [hugefork::Snapshot; 2]) {
    let mut region = pool.region(8 * BLOCK).unwrap();
    region.as_mut_slice().fill(1);
    let first = region.snapshot().unwrap();
    // The order makes no stream, for which the engine would copy whole blocks.
    (0..20).for_each(|page| region.as_mut_slice()[AT + 7 * ((3 + 11 * page) % 20) * PAGE] = 2);
    let second = region.snapshot().unwrap();
    (region, [first, second])
}

/// A block whose pages were written beside a snapshot is shown through a private mapping, for which the kernel refuses
/// some advice.
#[test]
fn what_the_kernel_refuses_of_private_mappings_harms_nothing() {
    alone(|| {
        let Some(pool) = pool() else { return };
        let (mut region, [first, second]) = captured(&pool);
        assert_eq!(advise(&region, libc::MADV_REMOVE), libc::EACCES);
        assert_eq!(advise(&region, libc::MADV_FREE), libc::EINVAL);
        assert_eq!((first[AT], second[AT], region.as_mut_slice()[AT], region.as_mut_slice()[0]), (1, 2, 2, 1));
    })
    .well();
}

#[test]
fn what_only_says_how_memory_is_used_harms_nothing() {
    alone(|| {
        let Some(pool) = pool() else { return };
        let (mut region, [first, second]) = captured(&pool);
        for advice in [libc::MADV_WILLNEED, libc::MADV_COLD, libc::MADV_PAGEOUT, libc::MADV_POPULATE_READ] {
            // The answer does not matter.
            advise(&region, advice);
            let third = region.snapshot().unwrap();
            assert_eq!((first[AT], second[AT], third[AT], region.as_mut_slice()[AT]), (1, 2, 2, 2));
        }
        // SAFETY: changes no contents.
        let locked = unsafe { libc::mlock(region.as_mut_ptr().cast(), region.len()) } == 0;
        region.as_mut_slice()[AT] = 3;
        let third = region.snapshot().unwrap();
        assert_eq!((first[AT], second[AT], third[AT], region.as_mut_slice()[AT]), (1, 2, 3, 3), "locked: {locked}");
    })
    .well();
}

/// If the program drops pages by `madvise`, a debug build notices that at the next snapshot.
#[test]
fn dropped_pages_are_found_in_a_debug_build() {
    if !cfg!(debug_assertions) {
        return println!("skipped: this build checks nothing");
    }
    let ended = alone(|| {
        let Some(pool) = pool() else { return println!("nothing is captured") };
        let (region, _snapshots) = captured(&pool);
        if region.stats().pages_private == 0 {
            return println!("nothing is captured");
        }
        assert_eq!(advise(&region, libc::MADV_DONTNEED), 0);
        let _ = region.snapshot();
    });
    if ended.stdout.contains("nothing is captured") {
        return println!("skipped: this machine captures no pages");
    }
    assert!(!ended.status.success() && ended.stderr.contains("20 pages of the block at"), "{ended}");
    assert!(ended.stderr.contains("not by `madvise`"), "{ended}");
}
