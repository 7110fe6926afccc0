//! Pools: physical memory in blocks.
//!
//! | file | what |
//! |---|---|
//! | `ahead` | getting memory for fresh blocks in the background |
//! | `builder` | which backing the machine grants |
//! | `choice` | which kernels clear and copy |
//! | `core` | a pool's blocks and their memory, on any `Sys` |
//! | `frames` | who holds each block, what is in it, which are free |
//! | `holders` | regions and snapshots, for when blocks are short |
//! | `pressure` | giving memory back when the machine or the control group is short of it |
//! | `ranges` | a first-fit allocator of ranges |
//! | `room` | reclaim, bookings, memory back to the system |
//! | `stock` | clearing used blocks in the background |
//! | `worker` | the threads of a pool |

pub(crate) mod ahead;
mod builder;
pub(crate) mod choice;
pub(crate) mod core;
pub(crate) mod frames;
pub(crate) mod holders;
pub(crate) mod pressure;
pub(crate) mod ranges;
pub(crate) mod room;
pub(crate) mod stock;
pub(crate) mod worker;

pub use ahead::SupplyStats;
pub use pressure::{PressureStats, PressureWatch};
pub use stock::{StockStats, ZeroedStock};

pub use builder::{Backing, Commit, CoreDump, Fallback, Granted, HugeBy, PoolBuilder};

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hugefork_kernels::{Kernel, Use};

use self::core::PoolCore;
use self::holders::Droppable;
use self::pressure::Watcher;
use self::worker::Worker;
use crate::error::RegionError;
use crate::options::RegionOptions;
use crate::own::Counted;
use crate::region::Region;
use crate::space::Space;
use crate::stats::PoolStats;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::sys::linux::memory::Linux;
use crate::sys::linux::owner;
use crate::units::BlockSize;

/// Physical memory in blocks of one size, from which regions get theirs.
///
/// A pool is a handle: cloning it is cheap, and its memory goes back to the system when the last handle, region and
/// snapshot of it is gone. Blocks that a region or snapshot gives back stay with the pool and are cleared by hugefork when they
/// are given out again.
///
/// Methods may be called from any thread, not from a signal handler.
#[derive(Clone)]
pub struct Pool {
    pub(crate) core: Counted<PoolCore<Linux>>,
    pub(crate) shared: Arc<Shared>,
}

/// What all handles of a pool share beside its core. Its threads end with it.
pub(crate) struct Shared {
    grant: builder::Grant,
    _workers: [Option<Worker>; 2],
    watcher: Option<Watcher>,
}

impl Pool {
    /// Starts the description of a pool.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    /// The name that messages call it by.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// The size of its blocks.
    pub fn block_size(&self) -> BlockSize {
        self.core.block_size
    }

    /// Capacity in bytes: all of its blocks.
    pub fn capacity(&self) -> usize {
        self.core.block_size.len_of(self.core.frames.len())
    }

    /// The backing that the pool really got, as verified in `/proc/self/smaps` when it was built.
    pub fn backing(&self) -> Granted {
        self.shared.grant.granted
    }

    /// Why it is not a better one, if the machine refused a better one.
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

    /// A region of `len` bytes that reads as zeros. It takes blocks from the pool as it is written to, or by
    /// [`Region::populate`].
    ///
    /// Regions may together be larger than the pool: the write that finds no block left is the one that fails, loudly.
    ///
    /// # Errors
    /// * [`RegionError::Length`]: `len` is zero or not a multiple of the block size.
    /// * [`RegionError::LargerThanPool`]: it could never be filled.
    /// * [`RegionError::TooManyMappings`], [`RegionError::OutOfAddresses`]: a limit of the process.
    /// * [`RegionError::ForkedChild`]: this process is a `fork(2)` child of the one that built the pool.
    pub fn region(&self, len: usize) -> Result<Region, RegionError> {
        self.region_with(len, RegionOptions::new())
    }

    /// As [`Pool::region`], with a reservation or a limit on what forks and snapshots may cost.
    ///
    /// # Errors
    /// Those of [`Pool::region`], and [`RegionError::NotReservable`].
    pub fn region_with(&self, len: usize, options: RegionOptions) -> Result<Region, RegionError> {
        check_owner()?;
        self.core.block_size.check_len(len)?;
        if len > self.capacity() {
            return Err(RegionError::LargerThanPool { pool: self.name().to_owned(), len, capacity: self.capacity() });
        }
        Ok(Region::new(self.clone(), Space::zeros(&self.core, len, options)?))
    }

    /// Drops what was lazily freed, oldest first, until `bytes` are dropped or nothing is left. Returns how many were. The
    /// blocks are free then, and still have their memory: [`Pool::trim`] gives that back to the system.
    ///
    /// Kept, and still lazily freed, is what is pinned or what a fork or snapshot shares.
    ///
    /// # Errors
    /// [`RegionError::ForkedChild`].
    pub fn reclaim(&self, bytes: usize) -> Result<usize, RegionError> {
        check_owner()?;
        let _signals = SignalsBlocked::new();
        Ok(self.core.drop_lazy(bytes, Droppable::Everything).bytes)
    }

    /// Gives the memory of free blocks back to the system, which then has to be got again, and cleared by the kernel, when they
    /// are used. Returns how many bytes that were. Whole huge pages only, where the pool has them; hugetlb pages are
    /// set aside for the pool and stay.
    ///
    /// # Errors
    /// [`RegionError::System`]: some may have been given back by then. [`RegionError::ForkedChild`].
    pub fn trim(&self) -> Result<usize, RegionError> {
        check_owner()?;
        Ok(self.core.trim()?)
    }

    /// What happened so far. Takes 0.04 ms for each GiB of memory in huge pages and 1.6 ms for each GiB in base pages, and
    /// keeps mappings from being changed meanwhile: [`PoolStats::bytes_huge`] is counted by the kernel.
    pub fn stats(&self) -> PoolStats {
        let core = &self.core;
        // In a fork(2) child there are no regions, and another thread may have held the registry's lock at the fork.
        let (regions, faults) = if owner::is_forked_child() { Default::default() } else { core.registry.sum() };
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

/// Regions stay with the process that made them.
pub(crate) fn check_owner() -> Result<(), RegionError> {
    if owner::is_forked_child() { Err(RegionError::ForkedChild) } else { Ok(()) }
}
