//! Snapshots beside pinned pages. A pin keeps its pages writable while a snapshot copies their block. Everything else
//! in the snapshot must still show one moment: stores to other pages of such blocks, and stores beside the pages that
//! the engine itself pins while it reads a file.
//!
//! ```text
//!   writer   a := n, b := n, c := n, d := n, then n + 1
//!            a in a pinned block, b in another one, c in a pinned page, d where snapshots are held
//!            a cut shows   n n n n   or   n n n-1 n-1   and so on, along that order
//! ```

use std::collections::VecDeque;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::alone::alone;
use crate::common::wait::until;
use crate::common::{Over, may_hold, pool};
use hugefork::{Backing, BlockSize, CopyGrain, Region, RegionOptions, Snapshot};

const PAGE: usize = 4096;
const CUTS: usize = 150;

/// Backings and block sizes whose blocks can be protected in parts; hugetlb blocks cannot.
const DIVISIBLE: [(Backing, BlockSize); 3] = [
    (Backing::ShmemHuge, BlockSize::MIB_2),
    (Backing::ShmemBase, BlockSize::MIB_2),
    (Backing::ShmemBase, BlockSize::KIB_64),
];

/// The offsets of a, b, c and d.
fn places(block: usize) -> [usize; 4] {
    [3 * PAGE, 2 * block - PAGE, 8 * PAGE, 2 * block + PAGE]
}

fn stored(region: &Region, at: usize) -> &AtomicU64 {
    &region.as_atomic_u64s()[at / 8]
}

/// Stores the next number at each place in turn, until the test is over.
fn store(region: &Region, places: &[usize], rounds: &AtomicUsize, over: &AtomicBool) {
    for number in 1.. {
        places.iter().for_each(|at| stored(region, *at).store(number, Ordering::Release));
        rounds.fetch_add(1, Ordering::Release);
        if over.load(Ordering::Relaxed) {
            break;
        }
    }
}

/// Checks that a snapshot shows the places as they were at one moment.
#[track_caller]
fn check(snapshot: &Snapshot, places: &[usize]) {
    let number = |at: &usize| u64::from_ne_bytes(snapshot[*at..][..8].try_into().unwrap());
    let seen: Vec<_> = places.iter().map(number).collect();
    let is_a_moment = seen.is_sorted_by(|earlier, later| earlier >= later) && seen[0] - seen[seen.len() - 1] <= 1;
    assert!(is_a_moment, "a write is there without one that happened before it: {seen:?}");
}

/// Takes snapshots beside the writer, checks them, and keeps some of them.
fn check_cuts(region: &Region, places: &[usize], rounds: &AtomicUsize) {
    let mut kept: Vec<Snapshot> = Vec::new();
    for nth in 0..CUTS {
        let before = rounds.load(Ordering::Acquire);
        until("a store", || rounds.load(Ordering::Acquire) > before);
        if kept.len() == 3 {
            kept.remove(nth % 3);
        }
        kept.push(region.snapshot().unwrap());
        check(&kept[kept.len() - 1], places);
    }
}

#[test]
fn a_snapshot_is_one_moment_beside_pinned_pages() {
    alone(|| {
        for (backing, block_size) in DIVISIBLE {
            let block = block_size.bytes();
            let Some(pool) = pool(backing, 64 * block, block_size) else { continue };
            let (region, places) = (pool.region(4 * block).unwrap(), places(block));
            let pins = [0..1, 8 * PAGE..9 * PAGE, block..block + 1].map(|range| region.pin(range).unwrap());
            let (rounds, over) = (AtomicUsize::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let _over = Over(&over);
                scope.spawn(|| store(&region, &places, &rounds, &over));
                check_cuts(&region, &places, &rounds);
            });
            drop(pins);
            assert_eq!(region.stats().faults.failed, 0);
        }
    })
    .well();
}

/// While older snapshots are held, threads that write to captured pages are not kept off during a snapshot. Threads
/// that write to a block with pins are, since this block is copied after the moment of the cut.
#[test]
fn a_snapshot_has_no_pinned_write_without_an_earlier_one_to_a_page_that_was_captured() {
    alone(|| {
        const BLOCKS: usize = 256;
        let block = BlockSize::KIB_64.bytes();
        let Some(pool) = pool(Backing::ShmemBase, 8 * BLOCKS * block, BlockSize::KIB_64) else { return };
        let region = pool.region(BLOCKS * block).unwrap();
        let place = |number: u64| (1 + number as usize % (BLOCKS - 1)) * block + PAGE;
        let (pin, over) = (region.pin(0..8).unwrap(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _over = Over(&over);
            scope.spawn(|| {
                for number in 1.. {
                    stored(&region, place(number)).store(number, Ordering::Release);
                    stored(&region, 0).store(number, Ordering::Release);
                    (0..200).for_each(|_| std::hint::spin_loop());
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let mut kept: Vec<Snapshot> = Vec::new();
            for nth in 0..CUTS {
                let before = stored(&region, 0).load(Ordering::Acquire);
                until("a store", || stored(&region, 0).load(Ordering::Acquire) > before);
                if kept.len() == 3 {
                    kept.remove(nth % 3);
                }
                let saved = region.snapshot().unwrap();
                let number = |at: usize| u64::from_ne_bytes(saved[at..][..8].try_into().unwrap());
                let last = number(0);
                assert!(number(place(last)) >= last, "{last} is there, and what was stored before it is not");
                kept.push(saved);
            }
        });
        drop(pin);
    })
    .well();
}

/// The engine pins the pages that a read of a file fills, and no others.
#[test]
fn a_snapshot_is_one_moment_beside_reads_of_files() {
    alone(|| {
        for (backing, block_size) in DIVISIBLE {
            let block = block_size.bytes();
            let Some(pool) = pool(backing, 64 * block, block_size) else { continue };
            let region = pool.region(4 * block).unwrap();
            let [a, b, _, d] = places(block);
            let (places, file) = ([a, b, d], File::open(std::env::current_exe().unwrap()).unwrap());
            let (rounds, reads, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let _over = Over(&over);
                scope.spawn(|| store(&region, &places, &rounds, &over));
                for start in [block / 2, block] {
                    let (region, file, reads, over) = (&region, &file, &reads, &over);
                    scope.spawn(move || {
                        while !over.load(Ordering::Relaxed) {
                            let read = region.read_from_at(file, start..start + block / 4, 0).unwrap();
                            assert_eq!(read, block / 4);
                            reads.fetch_add(1, Ordering::Release);
                        }
                    });
                }
                until("a read", || reads.load(Ordering::Acquire) > 0);
                check_cuts(&region, &places, &rounds);
            });
        }
    })
    .well();
}

/// A reset undoes all writes up to one moment: if it undoes a write, it also undoes every write that happened before
/// it.
#[test]
fn a_reset_is_one_moment_beside_pinned_pages() {
    alone(|| {
        for (backing, block_size) in DIVISIBLE {
            let block = block_size.bytes();
            let Some(pool) = pool(backing, 64 * block, block_size) else { continue };
            let (region, [a, b, ..]) = (pool.region(4 * block).unwrap(), places(block));
            let _pins = [0..1, block..block + 1].map(|range| region.pin(range).unwrap());
            let (zeros, round, over) = (region.snapshot().unwrap(), AtomicU64::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let _over = Over(&over);
                // In each odd round it stores until the reset is over, and then reports that it has ended.
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let now = round.load(Ordering::Acquire);
                        if now % 2 == 0 {
                            std::thread::yield_now();
                            continue;
                        }
                        for number in 1..20_000 + now * 37 % 20_000 {
                            stored(&region, a).store(number, Ordering::Release);
                            stored(&region, b).store(number, Ordering::Release);
                        }
                        round.store(now + 1, Ordering::Release);
                    }
                });
                for nth in 0..2 * CUTS {
                    let now = 2 * nth as u64 + 1;
                    round.store(now, Ordering::Release);
                    (0..nth * 7919 % 60_000).for_each(|_| std::hint::spin_loop());
                    region.reset_to(&zeros).unwrap();
                    until("a round", || round.load(Ordering::Acquire) > now);
                    let left = [a, b].map(|at| stored(&region, at).load(Ordering::Acquire));
                    assert!(left[0] == 0 || left[1] > 0, "a write is gone, and one before it is not: {left:?}");
                    region.reset_to(&zeros).unwrap();
                }
            });
        }
    })
    .well();
}

#[test]
fn pinned_pages_stay_writable_for_system_calls_while_the_others_are_closed() {
    alone(|| {
        for (backing, block_size) in DIVISIBLE {
            let block = block_size.bytes();
            let Some(pool) = pool(backing, 64 * block, block_size) else { continue };
            let region = pool.region_with(2 * block, RegionOptions::new()).unwrap();
            let pins: Vec<_> =
                (0..block / PAGE).step_by(4).map(|page| region.pin(page * PAGE..(page + 1) * PAGE).unwrap()).collect();
            let (file, over) = (File::open("/dev/zero").unwrap(), AtomicBool::new(false));
            let reads = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                let _over = Over(&over);
                let (reads, pins, file, over) = (&reads, &pins, &file, &over);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        for pin in pins {
                            // SAFETY: pinned, and nobody else uses the page.
                            let read = unsafe { libc::pread(fd(file), pin.as_mut_ptr().cast(), PAGE, 0) };
                            assert_eq!(read, PAGE as isize, "{}", std::io::Error::last_os_error());
                        }
                        reads.fetch_add(1, Ordering::Release);
                    }
                });
                for _ in 0..20 {
                    let before = reads.load(Ordering::Acquire);
                    drop(region.snapshot().unwrap());
                    until("a read", || reads.load(Ordering::Acquire) > before);
                }
            });
            drop(pins);
            // All pages are writable again, and no mapping is left over.
            region.as_atomic_u64s().iter().step_by(PAGE / 8).for_each(|word| word.store(1, Ordering::Relaxed));
            assert_eq!(region.stats().faults.failed, 0);
        }
    })
    .well();
}

/// Another thread's read of a file also pins pages, without the knowledge of the thread that makes system calls.
#[test]
fn where_calls_wait_none_fails_beside_pins() {
    alone(|| {
        for (backing, block_size) in DIVISIBLE {
            let block = block_size.bytes();
            let Some(pool) = pool(backing, 64 * block, block_size) else { continue };
            let options = RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true);
            let (region, places) = (pool.region_with(4 * block, options).unwrap(), places(block));
            region.as_atomic_u64s().iter().step_by(PAGE / 8).for_each(|word| word.store(0, Ordering::Relaxed));
            if !may_hold() {
                return println!("skipped: nobody can be made to wait");
            }
            let pin = region.pin(0..1).unwrap();
            let [zeros, file] = ["/dev/zero", "/proc/self/exe"].map(|path| File::open(path).unwrap());
            let (rounds, calls, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let _over = Over(&over);
                let (region, calls, over) = (&region, &calls, &over);
                scope.spawn(|| store(region, &places, &rounds, over));
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        assert_eq!(region.read_from_at(&file, 12 * PAGE..13 * PAGE, 0), Ok(PAGE));
                    }
                });
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        // SAFETY: within the region, and nobody else uses the page.
                        let read =
                            unsafe { libc::pread(fd(&zeros), region.as_mut_ptr().add(10 * PAGE).cast(), PAGE, 0) };
                        assert_eq!(read, PAGE as isize, "{}", std::io::Error::last_os_error());
                        calls.fetch_add(1, Ordering::Release);
                    }
                });
                check_cuts(region, &places, &rounds);
                let saved = region.snapshot().unwrap();
                for _ in 0..CUTS {
                    let before = calls.load(Ordering::Acquire);
                    region.reset_to(&saved).unwrap();
                    until("a call", || calls.load(Ordering::Acquire) > before);
                }
            });
            drop(pin);
            assert_eq!(region.stats().faults.failed, 0);
        }
    })
    .well();
}

/// A pin makes a block the region's own. A cut may come at this moment, when no other block is CoW-mapped.
#[test]
fn a_block_that_a_pin_has_made_the_regions_own_beside_a_cut_keeps_its_bytes() {
    alone(|| {
        let Some(pool) = pool(Backing::ShmemBase, 64 * (2 << 20), BlockSize::MIB_2) else { return };
        let options = RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true);
        let region = pool.region_with(4 * (2 << 20), options).unwrap();
        region.populate().unwrap();
        if !may_hold() {
            return println!("skipped: nobody can be made to wait");
        }
        let over = AtomicBool::new(false);
        // The pauses shape the load, so that the pool's thread writes pages back meanwhile. The outcome does not depend
        // on them: the bytes must be there however fast the machine is.
        let pause = |us| std::thread::sleep(Duration::from_micros(us));
        std::thread::scope(|scope| {
            let _over = Over(&over);
            let (region, over) = (&region, &over);
            let pages = region.len() / PAGE;
            for thread in 0..6 {
                scope.spawn(move || {
                    for round in 1.. {
                        for page in (0..pages).step_by(8) {
                            let word = stored(region, page * PAGE + 8 * thread);
                            let before = word.load(Ordering::Relaxed);
                            assert_eq!(before, round - 1, "page {page} of thread {thread}");
                            word.store(round, Ordering::Relaxed);
                        }
                        if round % 4 == 0 {
                            pause(200);
                        }
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(move || {
                    let mut held = VecDeque::new();
                    while !over.load(Ordering::Relaxed) {
                        held.push_back(region.snapshot().unwrap());
                        held.drain(..held.len().saturating_sub(3));
                        pause(500);
                    }
                });
            }
            for nth in 0..1_000 {
                let page = nth * 1237 % pages;
                let pin = region.pin(page * PAGE..page * PAGE + 1).unwrap();
                pause(300);
                drop(pin);
                pause(500);
            }
        });
    })
    .well();
}

fn fd(file: &File) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(file)
}
