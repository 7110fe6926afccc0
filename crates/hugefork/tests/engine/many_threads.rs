//! Many threads that write to the same block, or to the last free one, beside forks and with signals in between.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::common::alone::alone;
use crate::common::signals::handle;
use crate::common::wait::until;
use crate::common::{BACKINGS, by_block, pool};
use hugefork::{Backing, BlockSize, FaultStats, Pool, Region};
use libc::siginfo_t;

const BLOCK: usize = 2 << 20;
const THREADS: usize = 8;

/// A byte of a region, for threads that write beside each other.
fn byte(region: &Region, at: usize) -> &AtomicU8 {
    assert!(at < region.len());
    // SAFETY: it is inside the region, which the reference borrows. The tests use these bytes only as atomics while
    // other threads may write.
    unsafe { AtomicU8::from_ptr(region.as_mut_ptr().add(at)) }
}

/// Eight threads write to one block at once, each to a byte of its own. Checks that every byte has arrived.
fn write_at_once(region: &Region, block: usize, value: u8) {
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                byte(region, block * BLOCK + thread * (BLOCK / THREADS)).store(value, Ordering::Relaxed);
            });
        }
    });
    for thread in 0..THREADS {
        assert_eq!(byte(region, block * BLOCK + thread * (BLOCK / THREADS)).load(Ordering::Relaxed), value);
    }
}

/// By how much `after` exceeds `before`: demand-zero, copied, reused, raced, failed.
fn more(before: &FaultStats, after: &FaultStats) -> [u64; 5] {
    let kinds = |stats: &FaultStats| [stats.demand_zero, stats.copied, stats.reused, stats.raced, stats.failed];
    let (before, after) = (kinds(before), kinds(after));
    std::array::from_fn(|kind| after[kind] - before[kind])
}

#[test]
fn threads_that_write_to_the_same_block_at_once_take_one_block() {
    alone(|| {
        for backing in BACKINGS {
            let Some(pool) = pool(backing, 4 * BLOCK, BlockSize::MIB_2) else { continue };
            let (mut all_raced, mut round) = (0, 0);
            // Goes on until two threads have met.
            while round < 40 || all_raced == 0 {
                let region = pool.region_with(BLOCK, by_block()).unwrap();
                let before = pool.stats().faults;
                write_at_once(&region, 0, 1);
                let zero = pool.stats();
                assert_eq!(zero.blocks_free, 3);
                let [demand_zero, copied, reused, raced, failed] = more(&before, &zero.faults);
                assert_eq!((demand_zero, copied, reused, failed), (1, 0, 0, 0), "round {round} on {backing}");
                assert!(raced < THREADS as u64);

                let snapshot = region.snapshot().unwrap();
                write_at_once(&region, 0, 2);
                let copy = pool.stats();
                assert_eq!(copy.blocks_free, 2);
                assert_eq!(more(&zero.faults, &copy.faults)[..3], [0, 1, 0], "round {round} on {backing}");
                assert!((0..THREADS).all(|thread| snapshot[thread * (BLOCK / THREADS)] == 1));

                drop(region.snapshot().unwrap());
                drop(snapshot);
                write_at_once(&region, 0, 3);
                assert_eq!(more(&copy.faults, &pool.stats().faults)[..3], [0, 0, 1], "round {round} on {backing}");
                all_raced += pool.stats().faults.raced - before.raced;
                round += 1;
            }
            println!("{backing}: {all_raced} of {} faults found the work done", pool.stats().faults.faults());
        }
    })
    .well();
}

#[test]
fn two_racers_for_the_last_block_both_succeed() {
    alone(|| {
        for backing in BACKINGS {
            let Some(pool) = pool(backing, 2 * BLOCK, BlockSize::MIB_2) else { continue };
            let mut held = pool.region_with(BLOCK, by_block()).unwrap();
            held.as_mut_slice()[0] = 1;
            for _ in 0..40 {
                let region = pool.region(BLOCK).unwrap();
                write_at_once(&region, 0, 1);
                assert_eq!((pool.stats().blocks_free, pool.stats().faults.failed), (0, 0));
            }
            for value in 2..42 {
                // The last block is left for a copy.
                let snapshot = held.snapshot().unwrap();
                write_at_once(&held, 0, value);
                assert_eq!((pool.stats().blocks_free, pool.stats().faults.failed), (0, 0));
                drop(snapshot);
            }
        }
    })
    .well();
}

#[test]
fn no_write_fails_while_small_blocks_are_free() {
    alone(|| {
        let size = BlockSize::KIB_4.bytes();
        let builder = Pool::builder().name("test").capacity(1024 * size).block_size(BlockSize::KIB_4);
        let pool = builder.backing(Backing::ShmemBase).build().unwrap();
        for _ in 0..60 {
            // Half of the pool is free, and no two free blocks are neighbours. Two regions will each write to half of
            // them.
            let every_other = pool.region(1024 * size).unwrap();
            every_other.populate().unwrap();
            (0..1024).step_by(2).for_each(|at| every_other.discard(at * size..(at + 1) * size).unwrap());
            assert_eq!(pool.stats().blocks_free, 512);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let region = pool.region(512 * size).unwrap();
                        (0..256).for_each(|at| byte(&region, at * size).store(1, Ordering::Relaxed));
                    });
                }
            });
            assert_eq!(pool.stats().faults.failed, 0);
        }
    })
    .well();
}

#[test]
fn threads_write_every_block_while_forks_come_and_go() {
    alone(|| {
        const BLOCKS: usize = 16;
        for (backing, block_size) in [
            (Backing::ShmemHuge, BlockSize::MIB_2),
            (Backing::ShmemBase, BlockSize::KIB_64),
            (Backing::ShmemBase, BlockSize::KIB_4),
        ] {
            let size = block_size.bytes();
            let Some(pool) = pool(backing, 8 * BLOCKS * size, block_size) else { continue };
            let region = pool.region(BLOCKS * size).unwrap();
            let place = |block, thread| block * size + thread * (size / THREADS);
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let writers: Vec<_> = (0..THREADS)
                    .map(|thread| {
                        let (region, over) = (&region, &over);
                        scope.spawn(move || {
                            let mut rounds = 0u8;
                            while !over.load(Ordering::Relaxed) {
                                for block in (0..BLOCKS).map(|block| (block + thread) % BLOCKS) {
                                    let mine = byte(region, place(block, thread));
                                    assert_eq!(mine.load(Ordering::Relaxed), rounds, "a write was lost");
                                    mine.store(rounds.wrapping_add(1), Ordering::Relaxed);
                                }
                                rounds = rounds.wrapping_add(1);
                            }
                            rounds
                        })
                    })
                    .collect();
                let started = Instant::now();
                let mut held = Vec::new();
                for turn in 0..200 {
                    let mut fork = region.fork().unwrap();
                    (0..BLOCKS).step_by(3).for_each(|block| fork.as_mut_slice()[block * size + 1] = 255);
                    held.push(fork);
                    if held.len() == 4 {
                        held.swap_remove(turn % 4);
                    }
                    if started.elapsed() > Duration::from_millis(700) {
                        break;
                    }
                }
                over.store(true, Ordering::Relaxed);
                for (thread, writer) in writers.into_iter().enumerate() {
                    let rounds = writer.join().unwrap();
                    for block in 0..BLOCKS {
                        assert_eq!(byte(&region, place(block, thread)).load(Ordering::Relaxed), rounds);
                        assert_eq!(byte(&region, place(block, thread) + 1).load(Ordering::Relaxed), 0, "a fork's byte");
                    }
                }
            });
            println!("{backing}, {block_size}: {:?}", region.stats().faults);
            drop(region);
            assert_eq!((pool.stats().blocks_free, pool.stats().blocks_leaked), (8 * BLOCKS, 0));
        }
    })
    .well();
}

#[test]
fn signals_may_come_at_any_moment_of_calls_and_faults() {
    static ALARMS: AtomicU64 = AtomicU64::new(0);
    static PREPARED: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
    extern "C" fn on_alarm(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: this is a byte of a region that lives as long as the process.
        unsafe { AtomicU8::from_ptr(PREPARED.load(Ordering::Relaxed)) }.fetch_add(1, Ordering::Relaxed);
        ALARMS.fetch_add(1, Ordering::Relaxed);
    }
    fn alarms() -> u64 {
        ALARMS.load(Ordering::Relaxed)
    }
    fn every(period: Duration) {
        let time = libc::timeval { tv_sec: 0, tv_usec: period.as_micros() as _ };
        let timer = libc::itimerval { it_interval: time, it_value: time };
        // SAFETY: reads `timer`.
        assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) }, 0);
    }
    fn use_everything(pool: &Pool, value: u8) {
        let size = pool.block_size().bytes();
        let mut region = pool.region(4 * size).unwrap();
        region.as_mut_slice()[0] = value;
        region.populate().unwrap();
        let snapshot = region.snapshot().unwrap();
        let mut fork = snapshot.fork().unwrap();
        region.as_mut_slice()[0] += 1;
        fork.as_mut_slice()[0] += 2;
        region.prepare_write(0..3 * size).unwrap();
        region.discard(size / 2..3 * size + 5).unwrap();
        let mut first = [0];
        snapshot.read_at(0, &mut first).unwrap();
        assert_eq!((first[0], snapshot[0]), (value, value));
        assert_eq!((region.as_mut_slice()[0], fork.as_mut_slice()[0]), (value + 1, value + 2));
        drop((region, snapshot));
        assert_eq!(fork.fork().unwrap().as_mut_slice()[0], value + 2);
    }
    alone(|| {
        let of_the_handler = Pool::builder().capacity(BLOCK).build().unwrap().region(BLOCK).unwrap();
        of_the_handler.prepare_write(0..1).unwrap();
        PREPARED.store(of_the_handler.as_mut_ptr(), Ordering::Relaxed);
        handle(libc::SIGALRM, on_alarm as *const () as usize, libc::SA_SIGINFO | libc::SA_RESTART, &[]);
        every(Duration::from_micros(70));
        for (backing, block_size) in [
            (Backing::ShmemHuge, BlockSize::MIB_2),
            (Backing::Hugetlb, BlockSize::MIB_2),
            (Backing::ShmemBase, BlockSize::KIB_4),
        ] {
            let Some(pool) = pool(backing, 24 * block_size.bytes(), block_size) else { continue };
            let (started, before) = (Instant::now(), alarms());
            std::thread::scope(|scope| {
                for value in [1, 101] {
                    let pool = &pool;
                    scope.spawn(move || {
                        // It goes on until enough alarms have come, however long that takes.
                        while started.elapsed() < Duration::from_millis(500) || alarms() <= before + 100 {
                            use_everything(pool, value);
                        }
                    });
                }
            });
            assert_eq!(pool.stats().blocks_free, 24);
        }
        every(Duration::ZERO);
        // Another thread may still be handling the last alarm.
        let counted = || byte(&of_the_handler, 0).load(Ordering::Relaxed);
        until("every alarm in the region", || counted() == alarms() as u8);
        // The region must outlive any alarm.
        std::mem::forget(of_the_handler);
    })
    .well();
}
