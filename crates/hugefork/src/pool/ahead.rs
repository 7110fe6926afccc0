//! Memory that a pool allocates before a cut needs it: the limits and the counters (supply.rs allocates).
//!
//! A first write allocates the memory of its block itself, as it does for the kernel's own huge pages. A cut must not
//! allocate while it holds the writers. So while the program writes pages that the next cut will capture, the
//! maintenance thread allocates memory for as many pages in advance.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::units::BlockSize;

/// The most bytes that are allocated ahead, unless the builder says otherwise. The program has not asked for this
/// memory.
pub(crate) const MOST_AHEAD_BYTES: usize = 128 << 20;

/// Smaller pools allocate nothing ahead, unless the builder says otherwise.
pub(crate) const SMALL_POOL_BYTES: usize = 128 << 20;

/// When a pool's blocks got their memory: before they were used, or only then.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hugefork::{Commit, Pool};
/// let pool = Pool::builder().capacity(8 << 20).commit(Commit::Upfront).build()?;
/// pool.region(4 << 20)?.populate()?;
/// assert_eq!(pool.stats().supply.blocks_late, 0); // nothing has waited for memory
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SupplyStats {
    /// Whether a thread allocates memory ahead of snapshots.
    pub running: bool,
    /// Blocks that the thread allocated memory for.
    pub blocks_ahead: u64,
    /// CPU time that the thread spent on allocating.
    pub time: Duration,
    /// Blocks that got their memory only when they were used: a write, fork, snapshot or call waited for it.
    pub blocks_late: u64,
    /// How often the thread stopped because the machine had no memory to spare.
    pub stopped: u64,
    /// Blocks whose memory the thread gave back, because the program had used none of it for a second.
    pub blocks_given_back: u64,
}

/// The memory that a pool allocates ahead. If `most` is 0, it allocates none.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// The most blocks that are allocated ahead.
    pub(super) most: usize,
    /// Asks the machine how many bytes it can spare.
    pub(super) spare: Option<fn() -> usize>,
    /// Nothing is allocated ahead before the next cut, because memory was refused or given back.
    pub(super) rests: AtomicBool,
    /// Some memory that was allocated ahead may be unused.
    pub(super) has_some: AtomicBool,
    /// The number of cuts that hold their writers at this moment.
    cuts: AtomicUsize,
    pub(super) running: AtomicBool,
    pub(super) blocks: AtomicU64,
    pub(super) nanoseconds: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) stopped: AtomicU64,
    pub(super) given_back: AtomicU64,
}

/// A cut that holds its writers. While this guard lives, the thread allocates nothing ahead.
pub(crate) struct HeldBack<'a>(&'a Ahead);

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        self.0.cuts.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Ahead {
    /// Allocates at most `most` bytes ahead, and no more than the machine can `spare`.
    pub(crate) fn new(most: usize, block_size: BlockSize, spare: fn() -> usize) -> Ahead {
        Ahead { most: block_size.count(most), spare: Some(spare), ..Ahead::default() }
    }

    /// Stops the thread from allocating memory while the guard lives.
    pub(crate) fn hold_back(&self) -> HeldBack<'_> {
        self.cuts.fetch_add(1, Ordering::Relaxed);
        HeldBack(self)
    }

    pub(super) fn is_held_back(&self) -> bool {
        self.cuts.load(Ordering::Relaxed) > 0
    }

    /// Stops allocating ahead until the next cut.
    pub(crate) fn rest(&self) {
        self.rests.store(true, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> SupplyStats {
        SupplyStats {
            running: self.running.load(Ordering::Relaxed),
            blocks_ahead: self.blocks.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)),
            blocks_late: self.late.load(Ordering::Relaxed),
            stopped: self.stopped.load(Ordering::Relaxed),
            blocks_given_back: self.given_back.load(Ordering::Relaxed),
        }
    }
}
