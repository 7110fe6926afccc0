//! Programs that try to lose a write, change what is borrowed, or see what is not theirs, on real memory.

mod common;

use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{BACKINGS, pool};
use hugefork::{BlockSize, OnLimit, Pool, Region, RegionOptions};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;

/// Everything that drops what was lazily freed: a call, and a write to another region of a full pool.
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
        // Whole blocks, and on shmem parts of one.
        region.lazy_free(BLOCK - 3 * PAGE..4 * BLOCK).unwrap();
        let bytes = region.as_mut_slice();
        drop_what_may_be(&pool);
        assert!(bytes.iter().all(|&byte| byte == 7), "on {backing}");
        bytes[BLOCK] = 8;
        drop_what_may_be(&pool);
        assert_eq!((bytes[BLOCK], bytes[BLOCK + 1]), (8, 7));
        // What was dropped before stays as it is then.
        region.lazy_free(0..2 * BLOCK).unwrap();
        pool.reclaim(usize::MAX).unwrap();
        let bytes = region.as_mut_slice();
        assert!(bytes[..2 * BLOCK].iter().all(|&byte| byte == 0) && bytes[2 * BLOCK..].iter().all(|&byte| byte == 7));
    }
}

/// The page of a region, handed to the kernel, which reads it when the pipe is read.
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
}

/// The guard is gone without an end, and then the region.
#[test]
fn a_pin_that_was_forgotten_keeps_its_block_from_others() {
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
}

/// While another thread does nothing but take snapshots.
#[test]
fn every_read_into_a_pinned_range_is_whole() {
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
                // SAFETY: the pinned range.
                let count = unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(&zeros), to.cast(), 2 * PAGE) };
                count != 2 * PAGE as isize
            });
            let short = short.count();
            done.store(true, Ordering::Relaxed);
            assert_eq!(short, 0, "on {backing}");
        });
    }
}

/// A fork of a fork, too: what they hold alone is a cost of the region that wrote it, and no more when they let go of it.
#[test]
fn a_limit_is_felt_only_while_somebody_holds_what_it_counts() {
    let pool = Pool::builder().name("test").capacity(16 * BLOCK).build().unwrap();
    let mut region = pool.region_with(2 * BLOCK, RegionOptions::new().max_cow_bytes(BLOCK, OnLimit::Fail)).unwrap();
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
