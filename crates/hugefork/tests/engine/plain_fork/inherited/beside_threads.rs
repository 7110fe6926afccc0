//! Forks beside threads that write, beside operations, and in a signal handler: the regions of a child are of one
//! moment, no child sees a half of an operation, and each fork ends.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use super::{BLOCK, builder, until_free};
use crate::common::Over;
use crate::common::alone::alone;
use crate::common::forked::{check_fork, in_fork};
use crate::common::random::Random;
use crate::common::wait::{this_thread, until, until_it_waits};
use hugefork::{BeforeFork, Operations};

#[test]
fn the_regions_of_several_pools_are_of_one_moment_whoever_writes() {
    alone(|| {
        let pools = [builder(16).build().unwrap(), builder(16).build().unwrap()];
        let regions = [pools[0].region(4 * BLOCK).unwrap(), pools[1].region(4 * BLOCK).unwrap()];
        let words = regions.each_ref().map(|region| region.as_atomic_u64s());
        let (over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let _over = Over(&over);
            for thread in 0..4 {
                let (over, rounds) = (&over, &rounds);
                scope.spawn(move || {
                    let mut random = Random::new(thread as u64);
                    for round in 1.. {
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        let place = 512 * random.below(1000) + thread;
                        // First the one, then the other: no moment has the second without the first.
                        let old = words[0][place].load(Ordering::Relaxed);
                        words[0][place].store(old + 1, Ordering::SeqCst);
                        words[1][place].store(old + 1, Ordering::SeqCst);
                        rounds.store(round, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..300 {
                let status = in_fork(|| {
                    let is_right = |place: usize| {
                        let [first, second] =
                            [&words[0][place], &words[1][place]].map(|word| word.load(Ordering::SeqCst));
                        first == second || first == second + 1
                    };
                    i32::from(!(0..512 * 1000).all(|place| place % 512 >= 4 || is_right(place)))
                });
                assert!(status.success(), "{status}");
            }
            until("writes", || rounds.load(Ordering::Relaxed) > 100);
        });
    })
    .well();
}

/// A number from the environment, for longer runs.
fn count(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |count| count.parse().expect("a number"))
}

/// The pages that a writer writes to in each round, in this order, of all pages of a region.
fn pages_of(writer: usize) -> impl Iterator<Item = usize> {
    (0..32).map(move |nth| 8 * (2 * nth + writer % 2))
}

/// Writers 0 and 1 write to the first region, in order. Writers 2 and 3 write to the others, each round in an
/// operation. Every page has its number, too.
#[test]
fn many_children_come_and_go_and_many_live_at_once_beside_four_writers() {
    const PAGE_WORDS: usize = 512;
    alone(|| {
        let (forks, living) = (count("HUGEFORK_FORKS", 500), count("HUGEFORK_LIVING", 300));
        let pool = builder(living + 100).build().unwrap();
        let regions = [(); 3].map(|()| pool.region(BLOCK).unwrap());
        let words = regions.each_ref().map(|region| region.as_atomic_u64s());
        let operations = Operations::new();
        regions[1..].iter().for_each(|region| region.set_operations(&operations).unwrap());
        for (page, word) in words.iter().flat_map(|words| words.chunks(PAGE_WORDS).enumerate()) {
            word[1].store(page as u64 + 1, Ordering::Relaxed);
        }
        let read = |region: usize, page: usize| words[region][page * PAGE_WORDS].load(Ordering::Relaxed);
        // The last word of the first region is the number of the fork. A writer's first page is never older than
        // before the fork.
        let of_forks = &words[0][511 * PAGE_WORDS];
        let check = |fork: u64, before: [u64; 4]| {
            assert_eq!(of_forks.load(Ordering::Relaxed), fork);
            for (page, word) in words.iter().flat_map(|words| words.chunks(PAGE_WORDS).enumerate()) {
                assert_eq!([1, 511].map(|nth| word[nth].load(Ordering::Relaxed)), [page as u64 + 1, 0]);
            }
            let rounds = |region, writer| pages_of(writer).map(move |page| read(region, page)).collect::<Vec<_>>();
            for writer in 0..2 {
                let all = rounds(0, writer);
                assert!(all.is_sorted_by(|one, next| one >= next) && all[0] - all[31] <= 1, "{all:?}");
            }
            for writer in 2..4 {
                let (left, right) = (rounds(1, writer), rounds(2, writer));
                assert!(left == right && left[0] == left[31] && left.is_sorted(), "{left:?} {right:?}");
            }
            let now = first_pages(&read);
            assert!(before.iter().zip(now).all(|(before, now)| *before <= now), "{before:?} {now:?}");
            now
        };
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = Over(&over);
            for writer in 0..4 {
                let (over, words, operations) = (&over, &words, &operations);
                scope.spawn(move || {
                    for round in 1.. {
                        let _inside = (writer > 1).then(|| operations.enter());
                        for region in if writer > 1 { 1..3 } else { 0..1 } {
                            pages_of(writer)
                                .for_each(|page| words[region][page * PAGE_WORDS].store(round, Ordering::Release));
                        }
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            for fork in 0..forks as u64 {
                of_forks.store(fork, Ordering::Relaxed);
                let before = first_pages(&read);
                check_fork(|| _ = check(fork, before));
            }
            let mut ends = [0; 2];
            // SAFETY: makes two descriptors.
            assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
            let children: Vec<i32> = (0..living as u64)
                .map(|fork| {
                    of_forks.store(fork, Ordering::Relaxed);
                    let before = first_pages(&read);
                    // SAFETY: the child reads memory and makes system calls.
                    match unsafe { libc::fork() } {
                        0 => {
                            let body = || {
                                let then = check(fork, before);
                                // SAFETY: waits until the parent has closed the other end.
                                unsafe { (libc::close(ends[1]), libc::read(ends[0], [0_u8].as_mut_ptr().cast(), 1)) };
                                assert_eq!(check(fork, before), then);
                            };
                            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err();
                            // SAFETY: ends the child.
                            unsafe { libc::_exit(failed.into()) }
                        }
                        child => child,
                    }
                })
                .collect();
            // SAFETY: the test's own descriptor; writes the status.
            unsafe {
                libc::close(ends[1]);
                for (nth, child) in children.into_iter().enumerate() {
                    let mut status = -1;
                    assert_eq!((libc::waitpid(child, &raw mut status, 0), status), (child, 0), "child {nth}");
                }
            }
        });
        until_free(&pool, living + 97);
    })
    .well();
}

/// The rounds in which the writers are.
fn first_pages(read: &impl Fn(usize, usize) -> u64) -> [u64; 4] {
    [(0, 0), (0, 1), (1, 2), (1, 3)].map(|(region, writer)| read(region, pages_of(writer).next().unwrap()))
}

#[test]
fn a_child_sees_no_half_of_an_operation_unless_it_goes_on_inside() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let (left, right) = (pool.region(BLOCK).unwrap(), pool.region(BLOCK).unwrap());
        // Each has operations of its own.
        let operations = [Operations::new(), Operations::new()];
        left.set_operations(&operations[0]).unwrap();
        right.set_operations(&operations[1]).unwrap();
        let words = [left.as_atomic_u64s(), right.as_atomic_u64s()];
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = Over(&over);
            for side in 0..2 {
                let (over, words, operations) = (&over, &words, &operations);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let _inside = operations[side].enter();
                        for place in [0, 1000, 2000] {
                            words[side][place].store(words[side][place].load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let are_equal = |side: &[AtomicU64]| {
                let first = side[0].load(Ordering::Relaxed);
                side[1000].load(Ordering::Relaxed) == first && side[2000].load(Ordering::Relaxed) == first
            };
            for _ in 0..200 {
                let status = in_fork(|| i32::from(!words.iter().all(|side| are_equal(side))));
                assert!(status.success(), "{status}");
            }
        });
        let inside = operations[0].enter();
        words[0][0].store(u64::MAX, Ordering::Relaxed);
        let status = in_fork(|| i32::from(words[0][0].load(Ordering::Relaxed) != u64::MAX));
        assert!(status.success(), "{status}");
        drop(inside);
    })
    .well();
}

/// As in an interpreter: a thread leaves its operation with a lock that the thread has which forks.
#[test]
fn a_thread_that_has_waited_before_its_fork_waits_no_more() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let region = pool.region(BLOCK).unwrap();
        let operations = Operations::with_patience(core::time::Duration::MAX);
        region.set_operations(&operations).unwrap();
        let (words, over) = (region.as_atomic_u64s(), AtomicBool::new(false));
        let lock = Mutex::new(());
        std::thread::scope(|scope| {
            let _over = Over(&over);
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let _inside = operations.enter();
                        words[0].fetch_add(1, Ordering::Relaxed);
                        drop(lock.lock().unwrap());
                        words[1].fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..100 {
                let before = BeforeFork::wait().unwrap();
                let locked = lock.lock().unwrap();
                check_fork(|| {
                    assert_eq!(words[0].load(Ordering::Relaxed), words[1].load(Ordering::Relaxed));
                    // Waits for nobody.
                    drop(operations.enter());
                });
                drop((before, locked));
            }
            let inside = operations.enter();
            drop((BeforeFork::wait().unwrap(), inside));
        });
        until_free(&pool, 15);
    })
    .well();
}

/// The program drops the oldest region while a fork waits, so the next fork finds the operations in another order.
#[test]
fn two_forks_that_wait_for_the_same_operations_do_not_wait_for_each_other() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let operations = [Operations::new(), Operations::new()];
        let regions = [0, 1, 0].map(|which: usize| {
            let region = pool.region(BLOCK).unwrap();
            region.set_operations(&operations[which]).unwrap();
            region
        });
        let [oldest, ..] = regions;
        std::thread::scope(|scope| {
            let inside = operations[0].enter();
            let start_fork_that_waits = || {
                let (number, of_thread) = mpsc::channel();
                scope.spawn(move || {
                    number.send(this_thread()).unwrap();
                    check_fork(|| ());
                });
                until_it_waits(of_thread.recv().unwrap());
            };
            start_fork_that_waits();
            drop(oldest);
            start_fork_that_waits();
            drop(inside);
        });
    })
    .well();
}

/// A thread that is inside an operation enters another: a fork must not keep the one closed while it waits for the
/// other.
#[test]
fn a_fork_ends_beside_operations_within_operations() {
    let ended = alone(|| {
        let pool = builder(16).build().unwrap();
        // Without an end of its patience, a fork that waits for its own gate would never end.
        let operations = [(); 3].map(|()| Operations::with_patience(Duration::MAX));
        let regions = [(); 3].map(|()| pool.region(BLOCK).unwrap());
        regions.iter().zip(&operations).for_each(|(region, own)| region.set_operations(own).unwrap());
        let words = regions.each_ref().map(|region| region.as_atomic_u64s());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = Over(&over);
            for outer in 0..3 {
                let (over, words, operations) = (&over, &words, &operations);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        // Always in the same order, as locks.
                        let _inside: Vec<_> = operations[outer..].iter().map(Operations::enter).collect();
                        words[outer..].iter().for_each(|words| _ = words[0].fetch_add(1, Ordering::Relaxed));
                    }
                });
            }
            for _ in 0..100 {
                assert!(in_fork(|| 0).success());
            }
        });
    });
    assert!(!ended.stderr.contains("has no regions"), "{ended}");
    ended.well();
}

/// A signal handler forks while its thread takes snapshots, or writes to the region.
#[test]
fn a_fork_in_a_signal_handler_ends() {
    static AT: AtomicU64 = AtomicU64::new(0);
    static FORKS: AtomicU64 = AtomicU64::new(0);
    extern "C" fn fork(_: i32) {
        // SAFETY: the child reads one byte, which it may lack, and ends.
        unsafe {
            let errno = *libc::__errno_location();
            let child = libc::fork();
            if child == 0 {
                libc::_exit(0);
            }
            assert!(child > 0);
            libc::waitpid(child, std::ptr::null_mut(), 0);
            *libc::__errno_location() = errno;
        }
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    alone(|| {
        let pool = builder(64).build().unwrap();
        let mut region = pool.region(8 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        AT.store(region.as_ptr().expose_provenance() as u64, Ordering::Relaxed);
        let handler: extern "C" fn(i32) = fork;
        // SAFETY: installs a handler.
        unsafe { libc::signal(libc::SIGALRM, handler as libc::sighandler_t) };
        let mut random = Random::new(3);
        while FORKS.load(Ordering::Relaxed) < 200 {
            let soon = libc::timeval { tv_sec: 0, tv_usec: (1 + random.below(3000)) as _ };
            let once = libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: soon };
            let before = FORKS.load(Ordering::Relaxed);
            // SAFETY: sets a timer of this process.
            assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const once, std::ptr::null_mut()) }, 0);
            while FORKS.load(Ordering::Relaxed) == before {
                let saved = region.snapshot().unwrap();
                for _ in 0..50 {
                    let at = random.below(8 * BLOCK);
                    region.as_mut_slice()[at] = 3;
                }
                region.reset_to(&saved).unwrap();
            }
        }
        assert!(region.as_mut_slice().iter().all(|byte| *byte == 1));
        until_free(&pool, 56);
    })
    .well();
}
