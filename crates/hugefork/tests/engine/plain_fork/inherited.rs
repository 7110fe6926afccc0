//! Children of `fork(2)` that inherit the regions of a pool (`Children::Inherit`).

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::ffi::CString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use crate::common::alone::alone;
use crate::common::forked::{POOL, check_fork, in_fork, in_raw_fork, pool_mappings};
use crate::common::random::Random;
use crate::common::seccomp::{refuse, with};
use crate::common::wait::{self, until};
use crate::common::{BACKINGS, Over, built};
use hugefork::{Backing, BeforeFork, BlockSize, Children, Operations, Pool, PoolBuilder, Region, RegionError};

const BLOCK: usize = 2 << 20;

fn builder(blocks: usize) -> PoolBuilder {
    Pool::builder().name("inherited").capacity(blocks * BLOCK).children(Children::Inherit)
}

/// Waits until no child has memory of the pool any more.
fn until_free(pool: &Pool, blocks: usize) {
    until("the end of the children's snapshots", || pool.stats().blocks_free == blocks);
}

/// A child that waits until it is dropped.
struct Waiting {
    pid: i32,
    goes_on: [i32; 2],
}

impl Waiting {
    /// Forks a child that runs `first`, waits, and then ends with what `last` returns.
    fn fork(first: impl FnOnce(), last: impl FnOnce() -> i32) -> Waiting {
        let (mut goes_on, mut is_there, mut byte) = ([0; 2], [0; 2], 0u8);
        // SAFETY: each writes two numbers.
        assert!(unsafe { libc::pipe(goes_on.as_mut_ptr()) == 0 && libc::pipe(is_there.as_mut_ptr()) == 0 });
        let [reader, writer] = is_there;
        // SAFETY: the child makes only such calls as a child of one thread may make.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            first();
            // SAFETY: the descriptors are open; the read ends when the parent writes.
            unsafe {
                libc::close(goes_on[1]);
                assert_eq!(libc::write(writer, (&raw const byte).cast(), 1), 1);
                libc::close(writer);
                libc::read(goes_on[0], (&raw mut byte).cast(), 1);
                libc::_exit(last());
            }
        }
        // SAFETY: as above.
        unsafe {
            libc::close(writer);
            libc::close(goes_on[0]);
            assert_eq!(libc::read(reader, (&raw mut byte).cast(), 1), 1, "the child has ended early");
            libc::close(reader);
        }
        Waiting { pid, goes_on }
    }

    /// Lets the child go on, and returns its status.
    fn end(self) -> i32 {
        let mut status = -1;
        // SAFETY: writes to a descriptor of its own, and closes it; writes the status.
        unsafe {
            // Later children have this end, too, so it would not be enough to close it.
            assert_eq!(libc::write(self.goes_on[1], c"".as_ptr().cast(), 1), 1);
            libc::close(self.goes_on[1]);
            assert_eq!(libc::waitpid(self.pid, &raw mut status, 0), self.pid);
        }
        status
    }
}

#[test]
fn a_child_has_the_regions_as_they_were_and_nobody_sees_the_others_writes() {
    alone(|| {
        for backing in BACKINGS {
            for block_size in [BlockSize::MIB_2, BlockSize::KIB_64] {
                let capacity = 16 * BLOCK;
                let builder = builder(16).block_size(block_size).backing(backing);
                if backing == Backing::Hugetlb && block_size != BlockSize::MIB_2 {
                    continue;
                }
                let Some(pool) = built(builder, backing) else { continue };
                let (mut first, mut second) = (pool.region(3 * BLOCK).unwrap(), pool.region(BLOCK).unwrap());
                first.as_mut_slice()[BLOCK..2 * BLOCK].fill(1);
                second.as_mut_slice()[77] = 2;
                let expected = [first.as_mut_slice().to_vec(), second.as_mut_slice().to_vec()];
                let (at, len) = (first.as_mut_ptr().expose_provenance(), first.len());
                let seen = |region: &mut Region, expected: &[u8]| assert!(region.as_mut_slice() == expected);
                let regions = AtomicBool::new(false);
                let child = {
                    let (mine, other) = (&mut first, &mut second);
                    let pointers = [mine.as_mut_ptr().expose_provenance(), other.as_mut_ptr().expose_provenance()];
                    let bytes = |nth: usize, len: usize| {
                        let at = std::ptr::with_exposed_provenance_mut::<u8>(pointers[nth]);
                        // SAFETY: the child's own memory, which one thread uses.
                        unsafe { std::slice::from_raw_parts_mut(at, len) }
                    };
                    Waiting::fork(
                        || assert!(bytes(0, len) == expected[0] && bytes(1, BLOCK) == expected[1]),
                        || {
                            // The parent has written everywhere meanwhile.
                            assert!(bytes(0, len) == expected[0] && bytes(1, BLOCK) == expected[1]);
                            // hugetlb pages may have run out.
                            if backing != Backing::Hugetlb {
                                bytes(0, len).fill(9);
                                check_fork(|| {
                                    assert!(bytes(0, len).iter().all(|byte| *byte == 9));
                                    bytes(0, len)[5] = 10;
                                });
                                assert_eq!(bytes(0, len)[5], 9);
                            }
                            0
                        },
                    )
                };
                first.as_mut_slice().fill(5);
                second.as_mut_slice().fill(6);
                assert_eq!(child.end(), 0, "{backing} {block_size}");
                seen(&mut first, &vec![5; 3 * BLOCK]);
                seen(&mut second, &vec![6; BLOCK]);
                assert_eq!((first.as_mut_ptr().expose_provenance(), regions.into_inner()), (at, false));
                until_free(&pool, (capacity - 4 * BLOCK) / block_size.bytes());
            }
        }
    })
    .well();
}

/// Pages that older snapshots hold differ from the blocks below them.
#[test]
fn a_child_sees_the_pages_over_blocks_that_older_snapshots_hold() {
    alone(|| {
        let pool = builder(64).build().unwrap();
        let mut region = pool.region(8 * BLOCK).unwrap();
        let (mut random, mut model) = (Random::new(59), vec![0; 8 * BLOCK]);
        let mut held = Vec::new();
        for round in 0..12u8 {
            for _ in 0..[3, 40, 700][usize::from(round) % 3] {
                let at = random.below(8 * BLOCK);
                region.as_mut_slice()[at] = round + 1;
                model[at] = round + 1;
            }
            if round % 2 == 0 {
                held.push(region.snapshot().unwrap());
            }
            let at = region.as_ptr();
            // SAFETY: the child's own memory, which nobody writes to.
            check_fork(|| assert!(unsafe { std::slice::from_raw_parts(at, 8 * BLOCK) } == model));
        }
        drop(held);
        let written = model.chunks(BLOCK).filter(|block| block.iter().any(|byte| *byte > 0)).count();
        until_free(&pool, 64 - written);
    })
    .well();
}

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

/// libc calls the oldest handlers first in a child. An allocator has such ones.
#[test]
fn older_handlers_of_forks_find_the_regions_in_a_child() {
    static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
    extern "C" fn add_one() {
        // SAFETY: null, or the first word of a region.
        if let Some(word) = unsafe { WORD.load(Ordering::Relaxed).as_ref() } {
            word.fetch_add(1, Ordering::Relaxed);
        }
    }
    alone(|| {
        // SAFETY: the handlers add to a word.
        assert_eq!(unsafe { libc::pthread_atfork(Some(add_one), Some(add_one), Some(add_one)) }, 0);
        let pool = builder(8).build().unwrap();
        let (region, other) = (pool.region(BLOCK).unwrap(), pool.region(BLOCK).unwrap());
        let word = &region.as_atomic_u64s()[0];
        other.as_atomic_u64s()[7].store(7, Ordering::Relaxed);
        WORD.store(core::ptr::from_ref(word).cast_mut(), Ordering::Relaxed);
        for round in 0..3 {
            check_fork(|| {
                // The snapshot was taken before the handler in the parent.
                assert_eq!(word.load(Ordering::Relaxed), 2 * round + 1);
                check_fork(|| assert_eq!(word.load(Ordering::Relaxed), 2 * round + 3));
                assert_eq!((word.load(Ordering::Relaxed), pool.stats().blocks), (2 * round + 3, 8));
                assert_eq!(other.as_atomic_u64s()[7].load(Ordering::Relaxed), 7);
            });
            assert_eq!(word.load(Ordering::Relaxed), 2 * round + 2);
        }
        WORD.store(core::ptr::null_mut(), Ordering::Relaxed);
        until_free(&pool, 6);
    })
    .well();
}

/// Methods that return slices return those of the child.
#[test]
fn a_child_has_slices_of_its_regions() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let mut region = pool.region(2 * BLOCK).unwrap();
        region.as_mut_slice()[5] = 1;
        region.lazy_free(BLOCK..2 * BLOCK).unwrap();
        // SAFETY: a copy for the child only, which forgets it.
        let mut copy = core::mem::ManuallyDrop::new(unsafe { core::ptr::read(&raw const region) });
        check_fork(|| {
            assert_eq!(copy.as_mut_slice()[5], 1);
            copy.slice_of_mut::<u32>(0..16).unwrap()[0] = 7;
            assert_eq!(copy.as_atomic_u64s()[0].load(Ordering::Relaxed), 7 | 1 << 40);
            assert_eq!(copy.values_of::<u64>(0..16).unwrap().get(0), 7 | 1 << 40);
            assert_eq!(copy.writers_of::<u8>(2).unwrap().1.len(), 2);
            assert_eq!(copy.snapshot().map(drop), Err(RegionError::ForkedChild));
        });
        assert_eq!(region.as_mut_slice()[..6], [0, 0, 0, 0, 0, 1]);
    })
    .well();
}

/// Closes all descriptors, as daemons do.
fn close_all() {
    // SAFETY: closes descriptors; this process uses none of them any more.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
}

#[test]
fn the_parent_keeps_the_blocks_until_all_descendants_are_gone_or_have_other_memory() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        let at = region.as_ptr();
        // SAFETY: the child's own memory, which nobody writes to.
        let is_as_before = move || unsafe { std::slice::from_raw_parts(at, 4 * BLOCK) }.iter().all(|byte| *byte == 1);
        // A grandchild lives on, without any descriptor; so does one that was forked without the C library.
        for raw in [false, true] {
            let mut ready = [0; 2];
            // SAFETY: writes two numbers.
            assert_eq!(unsafe { libc::pipe(ready.as_mut_ptr()) }, 0);
            let status = in_fork(|| {
                let child = std::process::id();
                let goes_on = || {
                    // The child has ended when the kernel gives this process another parent.
                    until("the end of the child", || std::os::unix::process::parent_id() != child);
                    let is_right = is_as_before();
                    let mut byte = u8::from(!is_right);
                    // SAFETY: one byte.
                    unsafe { libc::write(ready[1], (&raw mut byte).cast(), 1) };
                    0
                };
                let grandchild = if raw {
                    // SAFETY: the grandchild goes on with a copy of this stack.
                    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 }
                } else {
                    // SAFETY: the child has one thread.
                    unsafe { libc::fork() }
                };
                if grandchild == 0 {
                    // SAFETY: ends the process.
                    unsafe { libc::_exit(goes_on()) }
                }
                0
            });
            assert!(status.success(), "{status}");
            region.as_mut_slice().fill(2);
            let mut byte = 9u8;
            // SAFETY: reads one byte.
            assert_eq!(unsafe { libc::read(ready[0], (&raw mut byte).cast(), 1) }, 1);
            assert_eq!(byte, 0, "the grandchild has seen a later write");
            until_free(&pool, 12);
            region.as_mut_slice().fill(1);
            // SAFETY: descriptors of this test.
            unsafe { (libc::close(ready[0]), libc::close(ready[1])) };
        }
        // A child without descriptors.
        let mut memory = vec![0u8; 1];
        let waits = {
            // SAFETY: memory that both processes share.
            let shared = unsafe {
                let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
                libc::mmap(std::ptr::null_mut(), 4096, rights, flags, -1, 0).cast::<AtomicU64>()
            };
            // SAFETY: it is mapped until the process ends.
            let word = unsafe { &*shared };
            // SAFETY: the child makes only such calls as a child of one thread may make.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                close_all();
                word.store(1, Ordering::SeqCst);
                until("the parent's writes", || word.load(Ordering::SeqCst) == 2);
                // SAFETY: ends the process.
                unsafe { libc::_exit(i32::from(!is_as_before())) };
            }
            until("the child", || word.load(Ordering::SeqCst) == 1);
            (pid, word)
        };
        region.as_mut_slice().fill(3);
        assert!(pool.stats().blocks_free < 12, "the child still has its blocks");
        waits.1.store(2, Ordering::SeqCst);
        let mut status = -1;
        // SAFETY: writes the status.
        assert_eq!(unsafe { libc::waitpid(waits.0, &raw mut status, 0) }, waits.0);
        assert_eq!(status, 0, "the child has seen a later write");
        until_free(&pool, 12);
        memory.clear();
    })
    .well();
}

#[test]
fn a_child_that_executes_another_program_gives_the_blocks_back_at_once() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        let mut cat = Command::new("cat");
        // With such a closure, std forks.
        // SAFETY: it does nothing.
        unsafe { cat.pre_exec(|| Ok(())) };
        let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        region.as_mut_slice().fill(2);
        until_free(&pool, 12);
        assert!(cat.try_wait().unwrap().is_none());
        drop(cat.stdin.take());
        let mut said = String::new();
        cat.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(cat.wait().unwrap().success() && said.is_empty());
        // `posix_spawn` takes no snapshot, so the region goes on without a fault.
        region.as_mut_slice().fill(3);
        let before = format!("{:?}", region.stats().faults);
        assert!(Command::new("true").status().unwrap().success());
        region.as_mut_slice().fill(4);
        assert_eq!(format!("{:?}", region.stats().faults), before);
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

/// With this limit the kernel refuses to poll (`EINVAL`).
#[test]
fn blocks_come_back_although_the_process_may_have_no_descriptor() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let mut region = pool.region(4 * BLOCK).unwrap();
        let children: Vec<Waiting> = (0..4)
            .map(|nth| {
                region.as_mut_slice().fill(nth);
                Waiting::fork(|| (), || 0)
            })
            .collect();
        region.as_mut_slice().fill(9);
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads the structure.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
        for child in children {
            assert_eq!(child.end(), 0);
            std::thread::sleep(Duration::from_millis(5));
        }
        until_free(&pool, 12);
    })
    .well();
}

#[test]
fn a_fork_that_fails_leaves_nothing() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        // Root may have any number of processes, so another user forks.
        // SAFETY: a process of one thread, but for those of the engine, which need no rights.
        unsafe {
            let none = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &raw const none), 0);
            assert!(libc::setuid(12_345) == 0 || libc::getuid() != 0);
            let forked = libc::fork();
            if forked == 0 {
                libc::_exit(0);
            }
            assert_eq!(forked, -1, "the limit has no effect");
        }
        region.as_mut_slice().fill(2);
        until_free(&pool, 12);
    })
    .well();
}

#[test]
fn a_full_pool_or_a_closed_descriptor_costs_the_child_its_regions_and_the_parent_nothing() {
    let ended = alone(|| {
        let pool = builder(4).build().unwrap();
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        // The snapshot must copy a pinned block, for which there is no room.
        let pinned = region.pin(0..1).unwrap();
        let at = region.as_mut_ptr();
        // SAFETY: a fault, which ends the child.
        assert!(!in_fork(|| i32::from(unsafe { at.read_volatile() } != 1)).success());
        drop(pinned);
        // SAFETY: the child's own memory.
        assert!(in_fork(|| i32::from(unsafe { at.read_volatile() } != 1)).success());
        region.as_mut_slice().fill(2);
        close_from(3);
        // SAFETY: as above.
        assert!(!in_fork(|| i32::from(unsafe { at.read_volatile() } != 2)).success());
        region.as_mut_slice().fill(3);
        until("the end of the first snapshot", || pool.stats().blocks_free == 0 && region.fork().is_ok());
    });
    let said = ended.stderr.clone();
    ended.well();
    let of_forks: Vec<&str> =
        said.lines().filter(|line| line.contains("the next child of fork(2) has no regions")).collect();
    assert_eq!(of_forks.len(), 2, "{said}");
    assert!(of_forks[0].contains("full") && of_forks[1].contains("descriptor"), "{said}");
}

fn close_from(first: u32) {
    // SAFETY: closes descriptors, none of which this test uses.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) }, 0);
}

#[test]
fn a_raw_fork_and_pools_that_do_not_inherit_have_nothing() {
    alone(|| {
        let (pool, other) = (builder(4).build().unwrap(), Pool::builder().capacity(4 * BLOCK).build().unwrap());
        let (mut region, mut without) = (pool.region(BLOCK).unwrap(), other.region(BLOCK).unwrap());
        region.as_mut_slice()[0] = 1;
        without.as_mut_slice()[0] = 1;
        let (at, never) = (region.as_mut_ptr(), without.as_mut_ptr());
        // SAFETY: a fault, which ends the child.
        assert!(!in_raw_fork(|| i32::from(unsafe { at.read_volatile() } != 1)).success());
        // SAFETY: as above.
        assert!(!in_fork(|| i32::from(unsafe { never.read_volatile() } != 1)).success());
        check_fork(|| {
            // SAFETY: the child's own memory.
            unsafe { at.write_volatile(4) };
            assert_eq!(region.snapshot().map(drop), Err(RegionError::ForkedChild));
            assert_eq!(pool.region(BLOCK).map(drop), Err(RegionError::ForkedChild));
        });
        drop(region);
        check_fork(|| ());
        assert_eq!(pool.stats().blocks_free, 4);
        // A dropped pool ends its thread, and a fork after that is a plain one.
        let thread = || wait::named("hugefork-child");
        assert!(thread().is_some());
        drop(pool);
        // The kernel lists a thread for a moment after others have seen its end.
        until("the end of the thread", || thread().is_none());
        check_fork(|| ());
    })
    .well();
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

#[test]
fn work_in_a_child_sees_older_snapshots_and_its_result_panic_and_end_come_back() {
    let ended = alone(|| {
        let pool = builder(32).build().unwrap();
        let (mut old, mut live) = (pool.region(3 * BLOCK).unwrap(), pool.region(BLOCK).unwrap());
        let mut snapshots = Vec::new();
        for round in 1..=3u8 {
            old.as_mut_slice()[..BLOCK + 5].fill(round);
            snapshots.push(old.snapshot().unwrap());
            live.as_mut_slice()[0] = round;
        }
        let (of_old, of_live) = (old.as_ptr(), live.as_ptr());
        // SAFETY: the child's own memory, which nobody writes to.
        let bytes =
            || unsafe { [of_old.read(), of_old.add(BLOCK + 4).read(), of_old.add(BLOCK + 5).read(), of_live.read()] };
        for (nth, snapshot) in snapshots.iter().enumerate() {
            old.as_mut_slice()[..2 * BLOCK].fill(9);
            // SAFETY: the process has no other thread but the engine's.
            let child = unsafe { Region::in_child(&[(&old, snapshot)], || bytes().to_vec()) }.unwrap();
            old.as_mut_slice().fill(7);
            let round = nth as u8 + 1;
            assert_eq!(child.wait().unwrap(), [round, round, 0, 3]);
        }
        // SAFETY: as above.
        let child = unsafe { Region::in_child(&[(&old, &snapshots[0])], || panic!("no {}", 7)) }.unwrap();
        assert_eq!(child.wait().unwrap_err().to_string(), "the child has panicked: no 7");
        // SAFETY: as above; the child ends itself.
        let child = unsafe {
            Region::in_child(&[(&old, &snapshots[0])], || {
                libc::kill(libc::getpid(), libc::SIGKILL);
                Vec::new()
            })
        };
        let error = child.unwrap().wait().unwrap_err().to_string();
        assert!(error.contains("without an answer: signal: 9"), "{error}");
        // What cannot be had is an error, and leaves no child.
        let refused = |pairs: &[(&Region, &hugefork::Snapshot)]| {
            // SAFETY: as above.
            unsafe { Region::in_child(pairs, Vec::new) }.map(drop).unwrap_err()
        };
        let (other_pool, without) = (builder(4).build().unwrap(), Pool::builder().capacity(4 * BLOCK).build().unwrap());
        let other = other_pool.region(3 * BLOCK).unwrap();
        assert!(matches!(refused(&[(&other, &snapshots[0])]), RegionError::AnotherPool { .. }));
        assert!(matches!(refused(&[(&live, &snapshots[0])]), RegionError::AnotherLength { .. }));
        let plain = without.region(BLOCK).unwrap();
        let of_plain = plain.snapshot().unwrap();
        let error = refused(&[(&plain, &of_plain)]);
        assert!(matches!(error, RegionError::NotExportable { .. }), "{error}");
        assert!(error.to_string().ends_with("build the pool with children(Children::Inherit)"), "{error}");
        // SAFETY: forks nothing.
        let not_forked = unsafe {
            Region::fork_process_with(&[(&old, &snapshots[0])], || Err(std::io::ErrorKind::OutOfMemory.into()))
        };
        assert_eq!(not_forked.unwrap_err().to_string(), "fork failed: input/output error (EIO)");
        close_from(3);
        let lost = refused(&[(&old, &snapshots[0])]);
        assert!(matches!(lost, RegionError::System(_)), "{lost}");
        // SAFETY: writes nothing.
        assert_eq!(unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) }, -1, "a child is left");
    });
    assert!(!ended.stderr.contains("has no regions"), "{ended}");
    ended.well();
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
            scope.spawn(|| check_fork(|| ()));
            std::thread::sleep(Duration::from_millis(100));
            drop(oldest);
            scope.spawn(|| check_fork(|| ()));
            std::thread::sleep(Duration::from_millis(100));
            drop(inside);
        });
    })
    .well();
}

/// The kernel reports the close of the child's last mapping before the lock of the witness goes. Other watchers of the
/// same file, to which the kernel reports it too, make the time in between longer.
#[test]
fn blocks_come_back_although_the_close_is_reported_before_the_lock_goes() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let mut region = pool.region(2 * BLOCK).unwrap();
        let is_of_pool = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|file| file.as_os_str() == POOL);
        let paths = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let path = CString::new(paths.into_iter().find(is_of_pool).unwrap().into_os_string().into_vec()).unwrap();
        for _ in 0..60 {
            // SAFETY: makes a descriptor, and reads a path.
            unsafe {
                let watcher = libc::inotify_init1(libc::IN_CLOEXEC);
                assert!(watcher >= 0 && libc::inotify_add_watch(watcher, path.as_ptr(), libc::IN_CLOSE_NOWRITE) >= 0);
            }
        }
        for round in 0..300 {
            check_fork(|| ());
            region.as_mut_slice().fill(round as u8);
            until_free(&pool, 14);
        }
    })
    .well();
}

/// A user has 128 instances of inotify by default, and other programs use them, too.
#[test]
fn blocks_come_back_without_inotify() {
    alone(|| {
        refuse(with(libc::SYS_inotify_init1, 0, libc::IN_CLOEXEC, libc::EMFILE));
        let pool = builder(16).build().unwrap();
        let mut region = pool.region(2 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        check_fork(|| ());
        region.as_mut_slice().fill(2);
        until_free(&pool, 14);
    })
    .well();
}

#[test]
fn a_child_has_no_zeros_in_place_of_memory_that_it_could_not_map() {
    let ended = alone(|| {
        let pool = builder(16).build().unwrap();
        let mut region = pool.region(2 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        let (saved, at) = (region.snapshot().unwrap(), region.as_ptr());
        let private = libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED;
        refuse(with(libc::SYS_mmap, 3, private, libc::ENOMEM));
        // SAFETY: a fault, which ends the child.
        let status = in_fork(|| i32::from(unsafe { at.read_volatile() }));
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status}");
        // SAFETY: the process has no other thread but the engine's.
        let child = unsafe { Region::in_child(&[(&region, &saved)], || vec![at.read_volatile()]) }.unwrap();
        let error = child.wait().unwrap_err().to_string();
        assert!(error.contains("without an answer: exit status: 1"), "{error}");
    });
    assert_eq!(ended.stderr.matches("this child of fork(2) lacks the region").count(), 2, "{ended}");
    ended.well();
}

/// The handler is older than the pool, so it forks while the pool's handler has a snapshot for another child.
#[test]
fn a_child_that_another_handler_forks_has_nothing_and_neither_have_its_children() {
    static AT: AtomicU64 = AtomicU64::new(0);
    extern "C" fn prepare() {
        let at = std::ptr::with_exposed_provenance::<u8>(AT.swap(0, Ordering::Relaxed) as usize);
        if !at.is_null() {
            check_fork(|| {
                // SAFETY: a fault, which ends the child.
                let status = in_fork(|| i32::from(unsafe { at.read_volatile() }));
                assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status}");
            });
        }
    }
    if cfg!(target_env = "musl") {
        println!("skipped: musl's fork holds a lock while handlers run, so a fork in one of them waits for ever");
        return;
    }
    alone(|| {
        // SAFETY: it forks, and checks.
        assert_eq!(unsafe { libc::pthread_atfork(Some(prepare), None, None) }, 0);
        let pool = builder(16).build().unwrap();
        let mut region = pool.region(BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        let at = region.as_ptr();
        AT.store(at.expose_provenance() as u64, Ordering::Relaxed);
        // SAFETY: the child's own memory.
        check_fork(|| assert_eq!(unsafe { at.read_volatile() }, 1));
        region.as_mut_slice().fill(2);
        until_free(&pool, 15);
    })
    .well();
}

#[test]
fn the_result_of_work_in_a_child_waits_for_no_other_child() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let region = pool.region(BLOCK).unwrap();
        let saved = region.snapshot().unwrap();
        let over = AtomicBool::new(false);
        let in_child = |work: fn() -> Vec<u8>| {
            // SAFETY: the work takes no lock.
            unsafe { Region::in_child(&[(&region, &saved)], work) }.unwrap()
        };
        std::thread::scope(|scope| {
            let forker = scope.spawn(|| {
                let mut waiting = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    waiting.push(in_child(|| {
                        // SAFETY: sleeps until a signal ends it.
                        unsafe { (libc::alarm(600), libc::pause()) };
                        Vec::new()
                    }));
                    std::thread::sleep(Duration::from_millis(1));
                }
                waiting
            });
            let stop = Over(&over);
            for _ in 0..300 {
                assert_eq!(in_child(|| vec![7; 100_000]).wait().unwrap(), [7; 100_000]);
            }
            drop(stop);
            for child in forker.join().unwrap() {
                // SAFETY: a child of this test.
                assert_eq!(unsafe { libc::kill(child.id().cast_signed(), libc::SIGKILL) }, 0);
                assert!(child.wait().unwrap_err().to_string().contains("signal: 9"));
            }
        });
        drop((region, saved));
        until_free(&pool, 16);
    })
    .well();
}

#[test]
fn a_child_can_be_asked_whether_it_has_ended() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let region = pool.region(BLOCK).unwrap();
        let saved = region.snapshot().unwrap();
        let mut ends = [0; 2];
        // SAFETY: makes two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        let in_child = |work: &dyn Fn() -> Vec<u8>| {
            // SAFETY: the process has no other thread but the engine's.
            unsafe { Region::in_child(&[(&region, &saved)], work) }.unwrap()
        };
        let mut child = in_child(&|| {
            // SAFETY: reads a byte, or waits for the end of the parent.
            unsafe { (libc::close(ends[1]), libc::read(ends[0], [0_u8].as_mut_ptr().cast(), 1)) };
            vec![7; 3]
        });
        assert!((0..3).all(|_| child.try_wait().unwrap().is_none()));
        // SAFETY: the child waits for this.
        assert_eq!(unsafe { libc::close(ends[1]) }, 0);
        let mut result = None;
        until("the end of the child", || {
            result = child.try_wait().unwrap();
            result.is_some()
        });
        assert_eq!((result, child.try_wait().unwrap()), (Some(vec![7; 3]), Some(vec![7; 3])));
        assert_eq!(child.wait().unwrap(), [7; 3]);
        let mut child = in_child(&|| panic!("no"));
        until("the panic of the child", || child.try_wait().is_err());
        assert_eq!(child.try_wait().unwrap_err().to_string(), "the child has panicked: no");
        assert_eq!(child.wait().unwrap_err().to_string(), "the child has panicked: no");
    })
    .well();
}

/// A process may have its children's ends ignored, so that there is no exit status.
#[test]
fn an_answer_that_a_child_could_not_complete_is_none() {
    alone(|| {
        // SAFETY: sets a disposition.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        let pool = builder(16).build().unwrap();
        let region = pool.region(BLOCK).unwrap();
        let saved = region.snapshot().unwrap();
        let in_child = |len: usize| {
            let work = move || {
                let most = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
                // SAFETY: limits the child's files, and has it end at the limit.
                unsafe { (libc::setrlimit(libc::RLIMIT_FSIZE, &most), libc::signal(libc::SIGXFSZ, libc::SIG_DFL)) };
                vec![7; len]
            };
            // SAFETY: the process has no other thread but the engine's.
            unsafe { Region::in_child(&[(&region, &saved)], work) }.unwrap().wait()
        };
        assert_eq!(in_child(1000).unwrap(), [7; 1000]);
        let error = in_child(2 << 20).unwrap_err().to_string();
        assert!(error.contains("without an answer"), "{error}");
    })
    .well();
}

/// The work, or this process, closes all descriptors, and opens files of its own.
#[test]
fn an_answer_goes_to_no_file_of_the_program_and_comes_from_none() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let region = pool.region(BLOCK).unwrap();
        let saved = region.snapshot().unwrap();
        let folder = std::env::temp_dir().join(format!("hugefork-answer-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let scratch = |nth: usize| folder.join(nth.to_string());
        let open_files = || {
            close_from(3);
            let files: Vec<_> = (0..50).map(|nth| std::fs::File::create(scratch(nth)).unwrap()).collect();
            // The answer may have had a number that is high.
            let of_last = std::os::fd::AsRawFd::as_raw_fd(&files[49]);
            for number in 900..910 {
                // SAFETY: makes a descriptor, which stays open.
                assert_eq!(unsafe { libc::dup2(of_last, number) }, number);
            }
            std::mem::forget(files);
        };
        let lens = || (0..50).map(|nth| std::fs::metadata(scratch(nth)).unwrap().len()).collect::<Vec<_>>();
        let in_child = |work: &dyn Fn() -> Vec<u8>| {
            // SAFETY: the process has no other thread but the engine's.
            unsafe { Region::in_child(&[(&region, &saved)], work) }.unwrap()
        };
        let child = in_child(&|| {
            open_files();
            vec![7; 1000]
        });
        let error = child.wait().unwrap_err().to_string();
        assert!(error.contains("without an answer: exit status: 1"), "{error}");
        assert_eq!(lens(), [0; 50]);
        let child = in_child(&|| vec![7; 1000]);
        open_files();
        let error = child.wait().unwrap_err().to_string();
        assert!(error.contains("which the program has closed or replaced"), "{error}");
        assert_eq!(lens(), [0; 50]);
        (3..910).for_each(|number| {
            // SAFETY: asks whether it is open.
            let is_open = unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
            assert_eq!(is_open, !(53..900).contains(&number), "{number}");
        });
        std::fs::remove_dir_all(&folder).unwrap();
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

#[test]
fn a_pool_ends_with_its_thread_although_the_program_has_closed_its_descriptors() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        pool.region(BLOCK).unwrap().as_mut_slice().fill(1);
        let asleep = || wait::named("hugefork-child").and_then(wait::asleep);
        until("the thread's sleep", || asleep().is_some_and(|asleep| asleep.call == libc::SYS_ppoll));
        close_from(3);
        drop(pool);
        assert!(pool_mappings().is_empty(), "the memory is still there");
        until("the end of the thread", || wait::named("hugefork-child").is_none());
    })
    .well();
}

#[test]
fn work_in_a_child_begins_only_if_the_child_has_the_regions() {
    alone(|| {
        // No pool inherits, so libc calls no handler of the engine.
        let pool = Pool::builder().capacity(4 * BLOCK).build().unwrap();
        let region = pool.region(BLOCK).unwrap();
        let saved = region.snapshot().unwrap();
        // SAFETY: the process has no other thread but the engine's.
        let refused = unsafe { Region::in_child(&[(&region, &saved)], Vec::new) }.map(drop).unwrap_err();
        assert!(matches!(refused, RegionError::NotExportable { .. }), "{refused}");
        // SAFETY: writes nothing.
        assert_eq!(unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) }, -1, "a child is left");
    })
    .well();
}
