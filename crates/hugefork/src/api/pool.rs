//! [`Pool`]: physical memory in blocks, from which regions are made.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hugefork_kernels::{Kernel, Use};

use super::stats::PoolStats;
use crate::mem::EngineArc;
use crate::pool::core::PoolCore;
use crate::pool::holders::Droppable;
use crate::pool::pressure::Watcher;
use crate::pool::worker::Worker;
use crate::region::children::PoolChildren;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::sys::linux::memory::Linux;
use crate::sys::linux::{may_map, owner};
use crate::types::backing::Granted;
use crate::types::children::Children;
use crate::types::error::RegionError;
use crate::units::BlockSize;

/// Physical memory in blocks of one size. Regions take their blocks from it.
///
/// A pool is a handle: a clone is cheap and refers to the same pool. The memory goes back to the system when the last
/// handle, region, snapshot and owned pin is gone. Blocks that a region or snapshot releases remain in the pool;
/// hugefork clears them when it hands them out again.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// let mut region = pool.region(4 << 20)?;
/// region.as_mut_slice()[0] = 1; // takes a block
/// let stats = pool.stats();
/// assert_eq!((stats.blocks, stats.blocks_free), (4, 3));
/// drop(region);
/// assert_eq!(pool.stats().blocks_free, 4);
/// # Ok(())
/// # }
/// ```
///
/// # NUMA
/// Memory follows the first touch: the thread whose write first needs the memory of a block gets it from the kernel, by
/// its own policy (`set_mempolicy(2)`, `numactl`), and by default on its own node. So let each thread write first what
/// it works on. A block that goes back to the pool and to another region stays on its node; [`Pool::trim`] frees the
/// memory of free blocks. Two kinds of memory come from threads of the pool, on the nodes that these run on: that of
/// [`Commit::Upfront`](crate::Commit), and that of [`obtain_ahead`](crate::PoolBuilder::obtain_ahead).
///
/// # Threads, signals, `fork(2)`
/// Any thread may call its methods. A signal handler must not. In a child of `fork(2)` they fail with
/// [`RegionError::ForkedChild`].
#[derive(Clone)]
pub struct Pool {
    pub(crate) core: EngineArc<PoolCore<Linux>>,
    pub(super) shared: Arc<Shared>,
}

/// The shared part of all handles of a pool, beside its core. Dropping it ends the pool's threads.
pub(super) struct Shared {
    /// The backing that the machine granted.
    pub(super) granted: Granted,
    pub(super) fallback_reason: Option<String>,
    pub(super) _workers: [Option<Worker>; 3],
    pub(super) watcher: Option<Watcher>,
    /// `None` with [`Children::HaveNothing`].
    pub(super) children: Option<EngineArc<PoolChildren>>,
}

impl Pool {
    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Whether writes to shared blocks can copy single pages ([`CopyGrain`](crate::CopyGrain)). They cannot in pools of
    /// hugetlb pages, of which the kernel copies whole pages, before Linux 6.7, or without a readable
    /// `/proc/self/pagemap`. Nor can they if `RLIMIT_DATA` or `vm.overcommit_memory=2`, which count all of a private
    /// mapping, forbid one as large as the pool. Writes then copy blocks; so do single writes if such a limit is
    /// lowered later. [`Pool::no_page_grain`] has the reason.
    pub fn has_page_grain(&self) -> bool {
        self.core.sys.has_cow_mappings()
    }

    /// The reason why writes cannot copy single pages, in words; `None` if they can.
    pub fn no_page_grain(&self) -> Option<String> {
        self.core.sys.no_page_grain().map(|why| why.to_string())
    }

    /// The size of its blocks in bytes.
    pub fn block_size(&self) -> BlockSize {
        self.core.block_size
    }

    /// The size of all of its blocks together in bytes.
    pub fn capacity(&self) -> usize {
        self.core.block_size.len_of(self.core.frames.len())
    }

    /// The backing that the pool was granted. It was verified in `/proc/self/smaps` when the pool was built.
    pub fn backing(&self) -> Granted {
        self.shared.granted
    }

    /// The reason why the machine refused a better backing, if it did.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.shared.fallback_reason.as_deref()
    }

    /// The regions of the pool that a child of `fork(2)` has.
    pub fn children(&self) -> Children {
        if self.shared.children.is_some() { Children::Inherit } else { Children::HaveNothing }
    }

    /// The kernel that clears this pool's blocks, unless they are about to be written as a whole.
    pub fn clear_kernel(&self) -> Kernel {
        self.core.kernels.clear(self.block_size().bytes(), Use::Near)
    }

    /// The kernel that copies this pool's blocks, unless they are about to be written as a whole.
    pub fn copy_kernel(&self) -> Kernel {
        self.core.kernels.copy(self.block_size().bytes(), Use::Near)
    }

    /// Drops lazily freed contents, oldest first, until `bytes` are dropped or nothing is left. Returns the number of
    /// dropped bytes. The blocks are free afterwards but still have their memory: [`Pool::trim`] returns that to the
    /// system. Two other kinds of memory come first and count: blocks of zeros that [a reset](crate::Region::reset_to)
    /// has given to snapshots and that regions no longer use, and pages that were captured for dropped snapshots. No
    /// data is lost by them, but the next snapshot copies such pages again.
    ///
    /// Pinned blocks, and blocks that a fork or snapshot shares, are skipped and remain lazily freed. The time is
    /// proportional to the dropped bytes.
    ///
    /// # Errors
    /// [`RegionError::ForkedChild`].
    pub fn reclaim(&self, bytes: usize) -> Result<usize, RegionError> {
        check_owner()?;
        let _signals = SignalsBlocked::new();
        Ok(self.core.drop_lazy(bytes, Droppable::Everything).bytes)
    }

    /// Returns the memory of free blocks to the system. Returns the number of bytes. The next use of such a block gets
    /// memory from the kernel again, which clears it. A pool of huge pages returns whole huge pages only; hugetlb pages
    /// are reserved for the pool and are not returned.
    ///
    /// # Errors
    /// [`RegionError::System`]: some memory may have been returned by then. [`RegionError::ForkedChild`].
    pub fn trim(&self) -> Result<usize, RegionError> {
        check_owner()?;
        Ok(self.core.trim(usize::MAX)?)
    }

    /// Statistics of the pool. The kernel counts [`PoolStats::bytes_huge`] for the call: that takes 0.04 ms for each
    /// GiB of memory in huge pages and 1.6 ms for each GiB in base pages, and the process's mappings cannot change
    /// meanwhile.
    pub fn stats(&self) -> PoolStats {
        let core = &self.core;
        // A fork(2) child has no regions, and a missing thread may hold the registry's lock.
        let (regions, faults) = if owner::is_forked_child() { Default::default() } else { core.registry.sum() };
        let (pages_held, blocks_of_pages) = if owner::is_forked_child() { (0, 0) } else { core.slots.counts() };
        let (budget, (all, huge)) = (core.sys.budget(), core.sys.memory());
        PoolStats {
            blocks: core.frames.len(),
            blocks_free: core.frames.available(),
            blocks_reserved: core.frames.reserved(),
            blocks_zeroed_free: core.frames.zeroed(),
            bytes_huge: huge,
            bytes_base: all.zip(huge).map(|(all, huge)| all.saturating_sub(huge)),
            not_collapsed: core.sys.not_collapsed(),
            supply: core.ahead.stats(),
            stock: core.stock.stats(),
            pressure: self.shared.watcher.as_ref().map(Watcher::stats).unwrap_or_default(),
            pages_held,
            blocks_of_pages,
            pages_in_views: core.pages_in_views.load(Ordering::Relaxed),
            blocks_leaked: core.leaked.load(Ordering::Relaxed),
            regions,
            metadata_bytes: core.frames.bytes() + size_of::<PoolCore<Linux>>(),
            mappings: budget.used(),
            mappings_limit: budget.limit(),
            faults,
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name())
            .field("blocks", &self.core.frames.len())
            .field("block_size", &self.block_size())
            .field("backing", &self.backing())
            .finish_non_exhaustive()
    }
}

/// Like [`check_owner`], for calls that allocate memory for tables and lists: a process that has reached its limit of
/// addresses (`RLIMIT_AS`) would abort in the allocation.
pub(crate) fn check_owner_and_addresses() -> Result<(), RegionError> {
    check_owner()?;
    Ok(may_map()?)
}

/// Regions exist only in the process that made them.
pub(crate) fn check_owner() -> Result<(), RegionError> {
    if owner::is_forked_child() { Err(RegionError::ForkedChild) } else { Ok(()) }
}
