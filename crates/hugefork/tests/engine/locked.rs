//! Programs that lock all of their memory (`mlockall(2)`). The engine must take memory only for what is used, and
//! everything must go on as before.

use crate::common::alone::alone;
use crate::common::{BACKINGS, pool};
use hugefork::{Backing, BlockSize, CopyGrain, Pool, Region, RegionOptions};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;
/// The capacity of a pool. A region has a quarter of it.
const CAPACITY: usize = 4 << 30;
/// The bytes that the test uses.
const USED: usize = 10 << 20;
/// The most memory that the engine obtains before it is written to.
const AHEAD: usize = 32 << 20;
/// The most memory that the rest of the program and page tables use.
const OTHERS: usize = 64 << 20;

/// Bytes of memory in this process's page tables, without hugetlb pages.
fn resident() -> usize {
    procfs::process::Process::myself().unwrap().status().unwrap().vmrss.unwrap() as usize * 1024
}

/// Bytes of memory that a pool has.
fn memory_of(pool: &Pool) -> usize {
    let stats = pool.stats();
    stats.bytes_huge.unwrap() + stats.bytes_base.unwrap()
}

fn lock_all(flags: i32) {
    // SAFETY: changes no contents.
    let locked = unsafe { libc::mlockall(flags) };
    assert_eq!(locked, 0, "{}", std::io::Error::last_os_error());
}

/// Writes to all pages of the first bytes, and to single pages further on.
fn write(region: &mut Region, value: u8) {
    let bytes = region.as_mut_slice();
    bytes[..USED].chunks_mut(PAGE).for_each(|page| page[7] = value);
    bytes.chunks_mut(256 << 20).for_each(|part| part[9] = value);
}

fn check(bytes: &[u8], value: u8) {
    assert!(bytes[..USED].chunks(PAGE).all(|page| page[7] == value && page[8] == 0));
    assert!(bytes.chunks(256 << 20).all(|part| part[9] == value && part[10] == 0));
}

/// Does everything with a region whose written pages have `value`.
fn go_on(pool: &Pool, region: &mut Region, mut value: u8) {
    for _ in 0..3 {
        let (snapshot, mut fork) = (region.snapshot().unwrap(), region.fork().unwrap());
        check(&snapshot, value);
        write(&mut fork, 77);
        write(region, value + 1);
        check(&snapshot, value);
        check(fork.as_mut_slice(), 77);
        region.reset_to(&snapshot).unwrap();
        check(region.as_mut_slice(), value);
        value += 1;
        write(region, value);
        region.lazy_free(USED..USED + BLOCK).unwrap();
        region.discard(USED + BLOCK..USED + 3 * BLOCK).unwrap();
        drop((snapshot, fork));
        pool.reclaim(usize::MAX).unwrap();
        pool.trim().unwrap();
        check(region.as_mut_slice(), value);
    }
}

/// Checks the memory of the process and of the pool.
fn check_memory(when: &str, pool: &Pool, most: usize) {
    let (resident, memory) = (resident(), memory_of(pool));
    println!("{when}: {} MiB resident, {} MiB in the pool", resident >> 20, memory >> 20);
    assert!(memory <= most, "{when}: the pool has {} MiB", memory >> 20);
    assert!(resident <= 4 * most + OTHERS, "{when}: {} MiB are resident", resident >> 20);
}

fn everything(flags: i32) {
    for backing in BACKINGS {
        let capacity = if backing == Backing::Hugetlb { 64 * BLOCK } else { CAPACITY };
        for size in [BlockSize::MIB_2, BlockSize::KIB_64] {
            for grain in [CopyGrain::Auto, CopyGrain::Page, CopyGrain::Block] {
                // Small blocks only once, since they take long.
                if size < BlockSize::MIB_2 && (backing == Backing::Hugetlb || grain != CopyGrain::Auto) {
                    continue;
                }
                let Some(pool) = pool(backing, capacity, size) else { continue };
                let options = RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page);
                let mut region = pool.region_with(capacity / 4, options).unwrap();
                write(&mut region, 1);
                let before = memory_of(&pool);
                lock_all(flags);
                let name = format!("{backing} by {size}, {grain:?}");
                check_memory(&format!("{name}, locked"), &pool, 2 * before + AHEAD + (16 << 20));
                go_on(&pool, &mut region, 1);
                lock_all(flags);
                check_memory(&format!("{name}, again"), &pool, 3 * before + (64 << 20));
                go_on(&pool, &mut region, 4);
                // SAFETY: changes no contents.
                assert_eq!(unsafe { libc::munlockall() }, 0);
                go_on(&pool, &mut region, 7);
            }
        }
    }
}

fn may_lock() -> bool {
    // SAFETY: only asks for the user of this process.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("skipped: this takes root, to lock memory");
    }
    is_root
}

#[test]
fn what_is_there_is_locked_and_no_more_comes() {
    alone(|| {
        if may_lock() {
            everything(libc::MCL_CURRENT);
        }
    })
    .well();
}

#[test]
fn what_comes_is_locked_too_and_no_more_comes() {
    alone(|| {
        if may_lock() {
            everything(libc::MCL_CURRENT | libc::MCL_FUTURE);
        }
    })
    .well();
}

/// This pool is built after the program has asked to lock all memory.
#[test]
fn a_pool_that_is_built_later_gets_no_more_than_is_used() {
    alone(|| {
        if !may_lock() {
            return;
        }
        for flags in [libc::MCL_FUTURE, libc::MCL_FUTURE | libc::MCL_ONFAULT] {
            lock_all(flags);
            for backing in [Backing::ShmemHuge, Backing::ShmemBase] {
                let Some(pool) = pool(backing, CAPACITY, BlockSize::MIB_2) else { continue };
                let mut region = pool.region(CAPACITY / 4).unwrap();
                write(&mut region, 1);
                check_memory(&format!("{backing}, {flags}"), &pool, USED + (128 << 20));
                go_on(&pool, &mut region, 1);
                check_memory(&format!("{backing}, {flags}, later"), &pool, USED + (128 << 20));
            }
        }
    })
    .well();
}

/// The kernel can also lock a range, and has calls that touch all pages of a range.
#[test]
fn a_region_that_is_locked_or_touched_takes_no_blocks_for_what_was_never_written() {
    alone(|| {
        if !may_lock() {
            return;
        }
        for backing in [Backing::ShmemHuge, Backing::ShmemBase] {
            let Some(pool) = pool(backing, CAPACITY, BlockSize::MIB_2) else { continue };
            let mut region = pool.region(CAPACITY / 4).unwrap();
            write(&mut region, 1);
            let (at, len, before) = (region.as_mut_ptr().cast(), region.len(), pool.stats());
            let of_pool = memory_of(&pool);
            // SAFETY: these change no contents.
            unsafe {
                assert_eq!(libc::mlock(at, len), 0);
                assert_eq!(libc::munlock(at, len), 0);
                assert_eq!(libc::mlock2(at, len, libc::MLOCK_ONFAULT as _), 0);
                assert_eq!(libc::madvise(at.cast(), len, libc::MADV_POPULATE_READ), 0);
                libc::madvise(at.cast(), len, libc::MADV_WILLNEED);
            }
            let after = pool.stats();
            assert_eq!(after.blocks_free, before.blocks_free);
            check_memory(&format!("{backing}"), &pool, of_pool + (64 << 20));
            go_on(&pool, &mut region, 1);
        }
    })
    .well();
}
