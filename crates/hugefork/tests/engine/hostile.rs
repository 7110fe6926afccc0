//! Programs that try to lose a write, to change borrowed memory, or to see memory of others, on real memory.

use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::alone::alone;
use crate::common::forked::in_fork;
use crate::common::{BACKINGS, Over, pool};
use hugefork::{Backing, BlockSize, BuildError, Pool, Region, RegionOptions, Reserve};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;

/// Drops lazily freed contents in both ways: by a call, and by a write to another region in a full pool.
fn drop_what_may_be(pool: &Pool) {
    let mut other = pool.region(pool.stats().blocks_free.max(1) * BLOCK).unwrap();
    other.as_mut_slice().iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    pool.reclaim(usize::MAX).unwrap();
}

#[test]
fn nothing_changes_under_a_mutable_slice() {
    for backing in BACKINGS {
        let Some(pool) = pool(backing, 8 * BLOCK, BlockSize::MIB_2) else { continue };
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice().fill(7);
        // Whole blocks and, on shmem, a part of one.
        region.lazy_free(BLOCK - 3 * PAGE..4 * BLOCK).unwrap();
        let bytes = region.as_mut_slice();
        drop_what_may_be(&pool);
        assert!(bytes.iter().all(|&byte| byte == 7), "on {backing}");
        bytes[BLOCK] = 8;
        drop_what_may_be(&pool);
        assert_eq!((bytes[BLOCK], bytes[BLOCK + 1]), (8, 7));
        // Contents that were dropped before the borrow stay zeros.
        region.lazy_free(0..2 * BLOCK).unwrap();
        pool.reclaim(usize::MAX).unwrap();
        let bytes = region.as_mut_slice();
        assert!(bytes[..2 * BLOCK].iter().all(|&byte| byte == 0) && bytes[2 * BLOCK..].iter().all(|&byte| byte == 7));
    }
}

/// Hands a page of the region to the kernel, which reads it only when the pipe is read.
fn in_a_pipe(region: &Region, offset: usize) -> File {
    let mut ends = [0; 2];
    let page = libc::iovec { iov_base: region.as_mut_ptr().wrapping_add(offset).cast(), iov_len: PAGE };
    // SAFETY: makes a pipe, and puts a page of the region into it that stays readable.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        assert_eq!(libc::vmsplice(ends[1], &page, 1, 0), PAGE as isize);
        libc::close(ends[1]);
        File::from_raw_fd(ends[0])
    }
}

#[test]
fn a_pinned_page_in_a_pipe_never_delivers_another_regions_bytes() {
    alone(|| {
        for backing in BACKINGS {
            type Attack = fn(&Region);
            let attacks: [(&str, Attack); 4] = [
                ("discard", |region| region.discard(0..2 * BLOCK).unwrap()),
                ("discard of a part", |region| region.discard(PAGE..BLOCK + PAGE).unwrap()),
                ("lazy free", |region| _ = region.lazy_free(0..2 * BLOCK).unwrap()),
                ("snapshot and write", |region| {
                    let _snapshot = region.snapshot().unwrap();
                    region.prepare_write(0..2 * BLOCK).unwrap();
                }),
            ];
            for (name, attack) in attacks {
                let Some(pool) = pool(backing, 6 * BLOCK, BlockSize::MIB_2) else { continue };
                let mut region = pool.region(2 * BLOCK).unwrap();
                region.as_mut_slice().fill(1);
                let pin = region.pin(0..2 * BLOCK).unwrap();
                let mut pipe = in_a_pipe(&region, BLOCK + 5 * PAGE);
                attack(&region);
                pool.reclaim(usize::MAX).unwrap();
                let mut other = pool.region(pool.stats().blocks_free * BLOCK).unwrap();
                other.as_mut_slice().fill(2);
                drop(pin);
                let mut delivered = Vec::new();
                pipe.read_to_end(&mut delivered).unwrap();
                assert_eq!(delivered.len(), PAGE);
                assert!(delivered.iter().all(|&byte| byte == 0 || byte == 1), "{name} on {backing}: {}", delivered[0]);
            }
        }
    })
    .well();
}

/// The guard is forgotten, and then the region is dropped.
#[test]
fn a_pin_that_was_forgotten_keeps_its_block_from_others() {
    alone(|| {
        for backing in BACKINGS {
            let Some(pool) = pool(backing, 4 * BLOCK, BlockSize::MIB_2) else { continue };
            let mut region = pool.region(2 * BLOCK).unwrap();
            region.as_mut_slice().fill(1);
            std::mem::forget(region.pin(0..1).unwrap());
            let mut pipe = in_a_pipe(&region, 0);
            drop(region);
            assert_eq!((pool.stats().blocks_free, pool.stats().blocks_leaked), (3, 1));
            let mut other = pool.region(3 * BLOCK).unwrap();
            other.as_mut_slice().fill(2);
            let mut delivered = Vec::new();
            pipe.read_to_end(&mut delivered).unwrap();
            assert!(delivered.iter().all(|&byte| byte == 1), "on {backing}");
        }
    })
    .well();
}

/// Another thread takes snapshots all the while.
#[test]
fn every_read_into_a_pinned_range_is_whole() {
    alone(|| {
        for backing in BACKINGS {
            let Some(pool) = pool(backing, 16 * BLOCK, BlockSize::MIB_2) else { continue };
            let region = pool.region(4 * BLOCK).unwrap();
            region.populate().unwrap();
            let pin = region.pin(BLOCK - PAGE..BLOCK + PAGE).unwrap();
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        drop(region.snapshot().unwrap());
                        region.prepare_write(0..PAGE).unwrap();
                    }
                });
                let zeros = File::open("/dev/zero").unwrap();
                let to = pin.as_mut_ptr();
                let short = (0..500).filter(|_| {
                    // SAFETY: this is the pinned range.
                    let count = unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(&zeros), to.cast(), 2 * PAGE) };
                    count != 2 * PAGE as isize
                });
                let short = short.count();
                done.store(true, Ordering::Relaxed);
                assert_eq!(short, 0, "on {backing}");
            });
        }
    })
    .well();
}

/// The blocks that forks, and forks of forks, alone hold cost the region that wrote them, until they give them up.
#[test]
fn a_limit_is_felt_only_while_somebody_holds_what_it_counts() {
    let pool = Pool::builder().name("test").capacity(16 * BLOCK).build().unwrap();
    let mut region = pool.region_with(2 * BLOCK, RegionOptions::new().max_cow_bytes(BLOCK)).unwrap();
    region.as_mut_slice().fill(1);
    let fork = region.fork().unwrap();
    for round in 0..4 {
        region.prepare_write(0..1).unwrap();
        fork.lazy_free(0..2 * BLOCK).unwrap();
        pool.reclaim(usize::MAX).unwrap();
        assert_eq!(region.stats().cow_bytes, 0, "in round {round}");
        drop(region.fork().unwrap());
    }
    region.prepare_write(0..2 * BLOCK).unwrap();
}

/// A word of a block, to which other threads may write.
fn word(region: &Region, block: usize) -> &AtomicU64 {
    &region.as_atomic_u64s()[block * region.pool().block_size().bytes() / 8]
}

/// Writes to one block after another until `is_over`, and counts the writes.
fn write_on(region: &Region, blocks: usize, writes: &AtomicU64, is_over: impl Fn() -> bool) {
    let mut at = 0;
    while !is_over() {
        at = (at + 7) % blocks;
        word(region, at).fetch_add(1, Ordering::Relaxed);
        writes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Copies take the last blocks while a fork is being mapped.
#[test]
fn a_fork_with_a_reservation_keeps_its_bytes_while_its_parent_is_written_to() {
    alone(|| {
        const BLOCKS: usize = 1024;
        let builder = Pool::builder().capacity(3 * BLOCKS * PAGE).block_size(BlockSize::KIB_4);
        let pool = builder.backing(Backing::ShmemBase).build().unwrap();
        let region = pool.region(BLOCKS * PAGE).unwrap();
        region.populate().unwrap();
        let (done, writes) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| write_on(&region, BLOCKS, &writes, || done.load(Ordering::Relaxed)));
            let _over = Over(&done);
            // While an earlier fork gives up its blocks, there may be too few for another.
            let reserved = || region.fork_with(RegionOptions::new().reserve(Reserve::Full)).ok();
            for fork in std::iter::repeat_with(reserved).flatten().take(100) {
                let look = || (0..BLOCKS).map(|at| word(&fork, at).load(Ordering::Relaxed)).collect::<Vec<_>>();
                let (before, written) = (look(), writes.load(Ordering::Relaxed));
                while writes.load(Ordering::Relaxed) < written + 200 {
                    std::thread::yield_now();
                }
                assert!(look() == before, "a page of the fork has changed");
                (0..BLOCKS).step_by(64).for_each(|at| word(&fork, at).store(7, Ordering::Relaxed));
            }
        });
    })
    .well();
}

/// The child must not find a lock held by a thread that it does not have.
#[test]
fn a_child_that_is_forked_while_the_first_pool_is_built_does_not_wait_for_ever() {
    let build = || Pool::builder().capacity(1 << 20).block_size(BlockSize::KIB_64).backing(Backing::ShmemBase).build();
    alone(|| {
        for turn in 0..60 {
            // This process has no pool yet, and one thread that builds one.
            let status = in_fork(|| {
                let builder = std::thread::spawn(move || build().map(drop));
                (0..turn * 400).for_each(|_| std::hint::spin_loop());
                let child = in_fork(|| i32::from(!matches!(build(), Ok(_) | Err(BuildError::ForkedChild))));
                builder.join().unwrap().unwrap();
                child.code().unwrap_or(99)
            });
            assert!(status.success(), "in turn {turn}: {status}");
        }
    })
    .well();
}
