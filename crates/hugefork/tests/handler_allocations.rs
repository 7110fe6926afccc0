//! The fault handler allocates nothing on any path: it may have interrupted `malloc` half-way, with its locks held.
//!
//! This program's allocator ends the process if a thread calls it during a watched write to a region. Each test runs in
//! a process of its own.

mod common;

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicUsize, Ordering};
use std::alloc::{GlobalAlloc, Layout, System};

use common::alone::{Ended, alone};
use common::seccomp::{every, refuse, with};
use common::signals::{give_up, handle, handle_info};
use common::{BACKINGS, by_block, pool};
use hugefork::{Backing, BlockSize, Pool, Region, Snapshot};
use libc::{SIGABRT, SIGBUS, SIGSEGV};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;

/// The thread that must not allocate now, or 0. Other threads may allocate: the test runner has some.
static WATCHED: AtomicI32 = AtomicI32::new(0);

/// The number of watched writes.
static WRITES: AtomicUsize = AtomicUsize::new(0);

struct Watched;

fn this_thread() -> i32 {
    // SAFETY: the call only returns a number.
    unsafe { libc::gettid() }
}

fn look() {
    let watched = WATCHED.load(Ordering::Relaxed);
    if watched != 0 && watched == this_thread() {
        // A panic would allocate before it prints the reason.
        WATCHED.store(0, Ordering::SeqCst);
        eprintln!("{}", std::backtrace::Backtrace::force_capture());
        give_up("the handler allocated\n");
    }
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        look();
        // SAFETY: the caller guarantees the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        look();
        // SAFETY: the caller guarantees the contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// Ends the process if this thread allocates during `access`.
fn watched<T>(access: impl FnOnce() -> T) -> T {
    WATCHED.store(this_thread(), Ordering::SeqCst);
    let result = access();
    WATCHED.store(0, Ordering::SeqCst);
    WRITES.fetch_add(1, Ordering::Relaxed);
    result
}

/// Writes one byte of a region and reads it back.
fn write(region: &Region, offset: usize) {
    assert!(offset < region.len());
    let at = region.as_mut_ptr().wrapping_add(offset);
    // SAFETY: it is inside the region, or a fault that the test wants.
    let read = watched(|| unsafe {
        at.write_volatile(7);
        at.read_volatile()
    });
    assert_eq!(read, 7);
}

/// Loads one byte.
fn load(at: *const u8) -> u8 {
    // SAFETY: it is memory of a region or snapshot, or a fault that the test wants.
    watched(|| unsafe { at.read_volatile() })
}

/// The line that a watched write printed before it ended the process, without an allocation.
#[track_caller]
fn line(ended: Ended, signal: c_int) -> String {
    let said = ended.by(signal);
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

/// Restores the default action, so that the test sees what the kernel itself does.
fn default_for(signal: c_int) {
    handle(signal, libc::SIG_DFL, 0, &[]);
}

/// A pool without the thread that obtains memory ahead, since that thread allocates as it starts.
fn small_pool(blocks: usize) -> Pool {
    Pool::builder().obtain_ahead(0).name("test").capacity(blocks * BLOCK).backing(Backing::ShmemBase).build().unwrap()
}

/// A region of `blocks` written blocks, in a pool of `capacity` blocks.
fn written(blocks: usize, capacity: usize) -> Region {
    let region = small_pool(capacity).region_with(blocks * BLOCK, by_block()).unwrap();
    region.populate().unwrap();
    region
}

#[test]
fn an_allocation_would_be_seen() {
    let ended = alone(|| drop(watched(|| std::hint::black_box(Box::new(1)))));
    assert!(ended.stderr.contains("the handler allocated"), "{ended}");
}

#[test]
fn first_writes_copies_and_reuse() {
    alone(|| {
        for backing in BACKINGS {
            for size in [BlockSize::MIB_2, BlockSize::KIB_64, BlockSize::KIB_4] {
                if backing == Backing::Hugetlb && size < BlockSize::MIB_2 {
                    continue;
                }
                let Some(pool) = pool(backing, 16 * BLOCK, size) else { continue };
                let region = pool.region_with(4 * BLOCK, by_block()).unwrap();
                (0..4).for_each(|block| write(&region, block * BLOCK + 5000));
                let snapshot = region.snapshot().unwrap();
                write(&region, 0);
                drop(snapshot);
                write(&region, BLOCK);
                // The next writes get used blocks.
                region.discard(0..4 * BLOCK).unwrap();
                (0..4 * BLOCK).step_by(size.bytes().max(16 * PAGE)).for_each(|at| write(&region, at));
                let faults = region.stats().faults;
                assert!(faults.demand_zero > 4 && faults.copied > 0 && faults.reused > 0, "{faults:?}");
                assert_eq!(faults.failed, 0);
            }
        }
        assert!(WRITES.load(Ordering::Relaxed) > 100);
    })
    .well();
}

#[test]
fn writes_that_others_were_faster_with() {
    alone(|| {
        let pool = small_pool(8);
        let region = pool.region(4 * BLOCK).unwrap();
        // Two threads write to the same blocks at the same time, again and again.
        let (turn, done, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let race = || {
            let mut mine = 0;
            done.fetch_add(1, Ordering::SeqCst);
            while !over.load(Ordering::SeqCst) {
                if turn.load(Ordering::SeqCst) != mine {
                    mine += 1;
                    for block in 0..4 {
                        let at = region.as_mut_ptr().wrapping_add(block * BLOCK);
                        // SAFETY: it is inside the region, where both use atomics.
                        unsafe { AtomicU8::from_ptr(at) }.store(1, Ordering::Relaxed);
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                }
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let racers = [scope.spawn(race), scope.spawn(race)];
            let both_are_done = || {
                while done.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
            };
            both_are_done();
            while region.stats().faults.raced < 3 {
                region.discard(0..4 * BLOCK).unwrap();
                done.store(0, Ordering::SeqCst);
                watched(|| {
                    turn.fetch_add(1, Ordering::SeqCst);
                    both_are_done();
                });
            }
            over.store(true, Ordering::SeqCst);
            racers.into_iter().for_each(|racer| racer.join().unwrap());
        });
    })
    .well();
}

#[test]
fn writes_to_what_was_lazily_freed_dropped_or_split() {
    alone(|| {
        for size in [BlockSize::MIB_2, BlockSize::KIB_64] {
            let pool = pool(Backing::ShmemBase, 8 * BLOCK, size).unwrap();
            let region = pool.region(4 * BLOCK).unwrap();
            region.populate().unwrap();
            region.lazy_free(0..2 * BLOCK).unwrap();
            write(&region, 100);
            assert!(region.stats().faults.bytes_cancelled > 0);
            region.lazy_free(2 * BLOCK + PAGE..2 * BLOCK + 5 * PAGE).unwrap();
            assert_eq!(region.stats().blocks_split, 1);
            write(&region, 2 * BLOCK + 2 * PAGE);
            write(&region, 2 * BLOCK);
            pool.reclaim(usize::MAX).unwrap();
            // The pages get memory again one by one, until the block is whole.
            for page in 0..6 {
                write(&region, 2 * BLOCK + page * PAGE);
            }
            assert_eq!(region.stats().blocks_split, 0);
        }
    })
    .well();
}

#[test]
fn writes_that_drop_what_was_lazily_freed_or_take_a_block_back() {
    alone(|| {
        let pool = small_pool(4);
        let (old, new) = (pool.region(2 * BLOCK).unwrap(), pool.region_with(2 * BLOCK, by_block()).unwrap());
        old.populate().unwrap();
        old.lazy_free(0..2 * BLOCK).unwrap();
        let rest = pool.region(2 * BLOCK).unwrap();
        rest.populate().unwrap();
        write(&new, 0);
        assert_eq!(old.stats().faults.blocks_reclaimed, 2);
        write(&new, BLOCK);
        let (snapshot, fork) = (new.snapshot().unwrap(), new.fork().unwrap());
        assert_eq!(load(snapshot.as_ptr()), 7);
        write(&new, 0);
        assert!(snapshot.is_revoked() && fork.is_revoked());
        assert_eq!(load(snapshot.as_ptr().wrapping_add(BLOCK)), 7);
    })
    .well();
}

/// A snapshot and a fork that have lost their first block, and the region that took it away.
fn revoked() -> (Snapshot, Region, Region) {
    let region = written(2, 2);
    let (snapshot, fork) = (region.snapshot().unwrap(), region.fork().unwrap());
    assert_eq!(snapshot[0], 0);
    write(&region, 0);
    (snapshot, fork, region)
}

#[test]
fn a_read_of_what_was_taken_away_from_a_snapshot() {
    let ended = alone(|| {
        default_for(SIGBUS);
        let (snapshot, ..) = revoked();
        load(snapshot.as_ptr());
    });
    assert!(line(ended, SIGBUS).contains("taken away"));
}

#[test]
fn a_read_of_what_was_taken_away_from_a_fork() {
    let ended = alone(|| {
        default_for(SIGBUS);
        let (_snapshot, fork, _region) = revoked();
        load(fork.as_ptr());
    });
    assert!(line(ended, SIGBUS).contains("taken away"));
}

#[test]
fn a_write_to_what_was_taken_away() {
    let ended = alone(|| {
        default_for(SIGBUS);
        let (_snapshot, fork, _region) = revoked();
        write(&fork, 0);
    });
    assert!(line(ended, SIGBUS).contains("taken away"));
}

#[test]
fn a_write_that_finds_the_pool_full() {
    let ended = alone(|| {
        default_for(SIGBUS);
        let full = written(2, 2);
        write(&full.pool().region(BLOCK).unwrap(), 0);
    });
    assert!(line(ended, SIGBUS).contains("is full"));
}

#[test]
fn a_first_write_that_the_machine_has_no_memory_for() {
    let ended = alone(|| {
        default_for(SIGBUS);
        let region = small_pool(2).region_with(BLOCK, by_block()).unwrap();
        refuse(with(libc::SYS_madvise, 2, libc::MADV_POPULATE_WRITE, libc::ENOMEM));
        write(&region, 0);
    });
    check_names(&line(ended, SIGBUS), &["no memory", "MADV_POPULATE_WRITE", "ENOMEM"]);
}

#[test]
fn a_copy_that_the_machine_has_no_memory_for() {
    let ended = alone(|| {
        default_for(SIGBUS);
        let region = written(1, 2);
        let _snapshot = region.snapshot().unwrap();
        refuse(with(libc::SYS_madvise, 2, libc::MADV_POPULATE_WRITE, libc::ENOMEM));
        write(&region, 0);
    });
    check_names(&line(ended, SIGBUS), &["no memory", "MADV_POPULATE_WRITE", "ENOMEM"]);
}

#[test]
fn a_block_that_cannot_be_mapped() {
    let ended = alone(|| {
        default_for(SIGBUS);
        let region = small_pool(2).region_with(BLOCK, by_block()).unwrap();
        refuse(every(libc::SYS_mremap, libc::EAGAIN));
        write(&region, 0);
    });
    check_names(&line(ended, SIGBUS), &["cannot be mapped", "mremap", "EAGAIN"]);
}

#[test]
fn a_block_that_cannot_be_made_writable() {
    let ended = alone(|| {
        default_for(SIGBUS);
        let region = written(1, 2);
        drop(region.snapshot().unwrap());
        // No list of errors has this errno.
        refuse(with(libc::SYS_mprotect, 2, libc::PROT_READ | libc::PROT_WRITE, 777));
        write(&region, 0);
    });
    check_names(&line(ended, SIGBUS), &["cannot be mapped", "mprotect", "777"]);
}

#[test]
fn a_block_that_cannot_be_mapped_nor_what_was_there_before() {
    let ended = alone(|| {
        default_for(SIGABRT);
        let region = written(1, 2);
        let _snapshot = region.snapshot().unwrap();
        refuse(every(libc::SYS_mremap, libc::EAGAIN));
        refuse(every(libc::SYS_msync, libc::ENOMEM));
        write(&region, 0);
    });
    check_names(&line(ended, SIGABRT), &["put back what was there", "EAGAIN", "aborting"]);
}

#[test]
fn a_write_beyond_the_mapping_budget() {
    let ended = alone(|| {
        default_for(SIGBUS);
        let limit: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
        let len = (limit - 1100) * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        for page in (PAGE..len).step_by(2 * PAGE) {
            // SAFETY: it is inside the mapping, which nobody uses.
            assert_eq!(unsafe { libc::mprotect(start.byte_add(page), PAGE, libc::PROT_READ) }, 0);
        }
        let region = small_pool(256).region(256 * BLOCK).unwrap();
        (0..256).step_by(2).for_each(|block| write(&region, block * BLOCK));
    });
    check_names(&line(ended, SIGBUS), &["vm.max_map_count"]);
}

#[track_caller]
fn check_names(said: &str, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(said.contains(part), "`{part}` in {said}"));
}

#[test]
fn a_fault_that_is_passed_on() {
    alone(|| {
        handle_info(SIGSEGV, common::foreign::mend);
        let page = common::foreign::forbidden_page();
        let _region = written(1, 1);
        watched(|| common::foreign::write_to_be_mended(page));
    })
    .well();
}

#[test]
fn a_fault_that_ends_the_process() {
    alone(|| {
        default_for(SIGSEGV);
        let _region = written(1, 1);
        load(core::ptr::without_provenance(8));
    })
    .by(SIGSEGV);
}

#[test]
fn a_write_in_a_child_of_fork() {
    let ended = alone(|| {
        default_for(SIGSEGV);
        let region = written(1, 1);
        // SAFETY: this process has one thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            write(&region, 0);
            // SAFETY: ends the process.
            unsafe { libc::_exit(1) };
        }
        let mut status = 0;
        // SAFETY: writes the status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == SIGSEGV, "{status:#x}");
    });
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
    assert!(ended.stderr.contains("do not cross fork(2)"), "{ended}");
    ended.well();
}

#[test]
fn the_first_fault_of_a_process_where_the_kernel_does_not_hand_out_the_auxiliary_vector() {
    const PR_GET_AUXV: c_int = 0x4155_5856;
    alone(|| {
        // As before Linux 6.4. A search for the clock then reads /proc, into allocated memory.
        refuse(with(libc::SYS_prctl, 0, PR_GET_AUXV, libc::EINVAL));
        // SAFETY: nothing else runs in this process. With this setting, the pool measures no kernels when it is built.
        unsafe { std::env::set_var("HUGEFORK_KERNEL", "straight/rep") };
        let pool = small_pool(2);
        let region = pool.region(BLOCK).unwrap();
        write(&region, 0);
    })
    .well();
}
