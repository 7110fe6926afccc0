//! Children of `fork(2)` that inherit the regions of a pool (`Children::Inherit`): the memory that a child has in place
//! of the regions, and the forks after which it has none.

mod beside_threads;
mod returned_blocks;
mod work_in_child;

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::os::unix::process::ExitStatusExt;

use crate::common::alone::alone;
use crate::common::forked::{check_fork, in_fork, in_raw_fork};
use crate::common::random::Random;
use crate::common::seccomp::{refuse, with};
use crate::common::wait::{self, until};
use crate::common::{BACKINGS, built};
use hugefork::{Backing, BlockSize, Children, Pool, PoolBuilder, Region, RegionError};

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

fn close_from(first: u32) {
    // SAFETY: closes descriptors, none of which this test uses.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) }, 0);
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
        // The pool's thread gives back what the children had.
        until_free(&pool, 4);
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
