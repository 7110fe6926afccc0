//! Helpers that the tests on real memory share.

#![allow(dead_code)] // Each test binary uses its part of it.

pub(crate) mod alone;
pub(crate) mod foreign;
pub(crate) mod forked;
pub(crate) mod mappings;
pub(crate) mod random;
pub(crate) mod refusals;
pub(crate) mod seccomp;
pub(crate) mod signals;
pub(crate) mod wait;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hugefork::{Backing, BlockSize, CopyGrain, Fallback, Pool, PoolBuilder, RegionOptions};
use wait::PATIENCE;

/// All backings.
pub(crate) const BACKINGS: [Backing; 3] = [Backing::ShmemHuge, Backing::Hugetlb, Backing::ShmemBase];

/// A pool on exactly this backing; `None`, with a message, if the machine does not have it. `.ci/run` sets
/// `HUGEFORK_REQUIRE` to the backings that it has set up: if one of those is missing, the test fails.
pub(crate) fn pool(backing: Backing, capacity: usize, block_size: BlockSize) -> Option<Pool> {
    built(Pool::builder().name("test").capacity(capacity).block_size(block_size).backing(backing), backing)
}

/// Whether this process may handle the faults of system calls.
pub(crate) fn may_hold() -> bool {
    // SAFETY: the returned descriptor is closed below, or with the process.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if fd >= 0 {
        // SAFETY: it is ours.
        assert_eq!(unsafe { libc::close(fd as i32) }, 0);
    }
    fd >= 0 || std::fs::File::open("/dev/userfaultfd").is_ok()
}

/// As [`pool`], for a pool whose snapshots can be exported.
pub(crate) fn exporting(backing: Backing, capacity: usize, block_size: BlockSize) -> Option<Pool> {
    let builder = Pool::builder().name("test").capacity(capacity).block_size(block_size).exports(true);
    built(builder.backing(backing), backing)
}

/// As [`pool`], for any builder.
pub(crate) fn built(builder: PoolBuilder, backing: Backing) -> Option<Pool> {
    let (builder, started) = (builder.fallback(Fallback::Refused), Instant::now());
    let required = std::env::var("HUGEFORK_REQUIRE").unwrap_or_default();
    let is_required = required.split(',').any(|name| name == backing.to_string());
    loop {
        match builder.clone().build() {
            Ok(pool) => return Some(pool),
            // The pools of tests that run at the same time may hold the machine's few hugetlb pages for a while.
            Err(_) if is_required && backing == Backing::Hugetlb && started.elapsed() < PATIENCE / 3 => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => {
                assert!(!is_required, "required, but {error}");
                println!("skipped: {error}");
                return None;
            }
        }
    }
}

/// Options of regions and forks for tests about whole blocks: how many are copied, what happens if none is free, what
/// the fault handler does at a write to a block that a snapshot holds.
pub(crate) fn by_block() -> RegionOptions {
    RegionOptions::new().copy_grain(CopyGrain::Block)
}

/// Ends the loops of other threads when it is dropped, even after a failed check: a thread scope waits for them.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
