//! [`Pool`]: physical memory in blocks, of which regions are made.

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
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::sys::linux::memory::Linux;
use crate::sys::linux::{may_map, owner};
use crate::types::backing::Granted;
use crate::types::error::RegionError;
use crate::units::BlockSize;

/// Physical memory in blocks of one size. Regions take their blocks from it.
///
/// A pool is a handle: a clone is cheap and stands for the same pool. The memory goes back to the system when the last
/// handle, region, snapshot and owned pin is gone. Blocks that a region or snapshot gives back stay with the pool;
/// hugefork clears them when it gives them out again.
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
/// # Threads, signals, `fork(2)`
/// Any thread may call its methods. A signal handler must not. In a child of `fork(2)` they fail with
/// [`RegionError::ForkedChild`].
#[derive(Clone)]
pub struct Pool {
    pub(crate) core: EngineArc<PoolCore<Linux>>,
    pub(super) shared: Arc<Shared>,
}

/// What all handles of a pool share beside its core. Its threads end with it.
pub(super) struct Shared {
    pub(super) grant: Grant,
    pub(super) _workers: [Option<Worker>; 2],
    pub(super) watcher: Option<Watcher>,
}

/// What the machine granted.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(super) granted: Granted,
    pub(super) fallback_reason: Option<String>,
}

impl Pool {
    /// The name that messages call it by.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Whether writes to what forks and snapshots share can copy single pages ([`CopyGrain`](crate::CopyGrain)): not in
    /// pools of hugetlb pages, of which the kernel copies whole ones, and not before Linux 6.7 or without a readable
    /// `/proc/self/pagemap`. Nor where a private mapping as large as the pool would be more than `RLIMIT_DATA` or
    /// `vm.overcommit_memory=2` allow, which count all of it. Then they copy blocks, as single writes do where such a
    /// limit is lowered later. [`Pool::no_page_grain`] says why.
    pub fn has_page_grain(&self) -> bool {
        self.core.sys.has_cow_mappings()
    }

    /// Why writes cannot copy single pages, in words; `None` if they can.
    pub fn no_page_grain(&self) -> Option<String> {
        self.core.sys.no_page_grain().map(|why| why.to_string())
    }

    /// The size of its blocks in bytes.
    pub fn block_size(&self) -> BlockSize {
        self.core.block_size
    }

    /// The bytes of all of its blocks together.
    pub fn capacity(&self) -> usize {
        self.core.block_size.len_of(self.core.frames.len())
    }

    /// The backing that the pool was granted. It was verified in `/proc/self/smaps` when the pool was built.
    pub fn backing(&self) -> Granted {
        self.shared.grant.granted
    }

    /// Why the machine refused a better backing, if it did.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.shared.grant.fallback_reason.as_deref()
    }

    /// How this pool's blocks are cleared, unless they are to be written as a whole.
    pub fn clear_kernel(&self) -> Kernel {
        self.core.kernels.clear(self.block_size().bytes(), Use::Near)
    }

    /// How this pool's blocks are copied, unless they are to be written as a whole.
    pub fn copy_kernel(&self) -> Kernel {
        self.core.kernels.copy(self.block_size().bytes(), Use::Near)
    }

    /// Drops what was lazily freed, oldest first, until it has dropped `bytes` or nothing is left. Returns how many
    /// bytes it has dropped. The blocks are free then, and still have their memory: [`Pool::trim`] gives that back to
    /// the system. Blocks of zeros that [a reset](crate::Region::reset_to) has given to snapshots, and that regions
    /// have left, come first and count, and so do pages that were captured for snapshots that are gone: nothing is lost
    /// by them, but the next snapshot copies such pages again.
    ///
    /// What is pinned, or what a fork or snapshot shares, stays as it is and stays lazily freed. The call takes time in
    /// proportion to what it drops.
    ///
    /// # Errors
    /// [`RegionError::ForkedChild`].
    pub fn reclaim(&self, bytes: usize) -> Result<usize, RegionError> {
        check_owner()?;
        let _signals = SignalsBlocked::new();
        Ok(self.core.drop_lazy(bytes, Droppable::Everything).bytes)
    }

    /// Gives the memory of free blocks back to the system. Returns how many bytes that were. The next use of such a
    /// block gets memory from the kernel again, which clears it. A pool that has huge pages gives back whole huge pages
    /// only; hugetlb pages are set aside for the pool and stay.
    ///
    /// # Errors
    /// [`RegionError::System`]: some memory may have been given back by then. [`RegionError::ForkedChild`].
    pub fn trim(&self) -> Result<usize, RegionError> {
        check_owner()?;
        Ok(self.core.trim()?)
    }

    /// Counts, and bytes of memory. The kernel counts [`PoolStats::bytes_huge`] for it: that takes 0.04
    /// ms for each GiB of memory in huge pages and 1.6 ms for each GiB in base pages, and no mapping changes meanwhile.
    pub fn stats(&self) -> PoolStats {
        let core = &self.core;
        // In a fork(2) child there are no regions, and another thread may have held the registry's lock at the fork.
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

impl Pool {
    /// An error if something of this pool cannot go together with something of `other`.
    pub(super) fn check_same(&self, other: &Pool) -> Result<(), RegionError> {
        if self.core.is(&other.core) {
            return Ok(());
        }
        Err(RegionError::AnotherPool { pool: self.name().to_owned(), other: other.name().to_owned() })
    }
}

/// As [`check_owner`], for calls that take memory for tables and lists: a process that may have no more addresses
/// (`RLIMIT_AS`) would abort for want of it.
pub(crate) fn check_owner_and_addresses() -> Result<(), RegionError> {
    check_owner()?;
    Ok(may_map()?)
}

/// Regions stay with the process that made them.
pub(crate) fn check_owner() -> Result<(), RegionError> {
    if owner::is_forked_child() { Err(RegionError::ForkedChild) } else { Ok(()) }
}
