//! Statistics of pools and regions.

use std::sync::atomic::Ordering;

use crate::pool::ahead::SupplyStats;
use crate::pool::pressure::PressureStats;
use crate::pool::stock::StockStats;
use crate::region::state::RegionCore;
use crate::stats::counters::FaultStats;
use crate::sys::linux::memory::Linux;
use crate::sys::linux::owner;
use crate::table::Entry;
use crate::units::BASE_PAGE;

/// Statistics of a region: [`Region::stats`](crate::Region::stats).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use hugefork::{CopyGrain, RegionOptions};
/// let mut region = pool.region_with(4 << 20, RegionOptions::new().copy_grain(CopyGrain::Block))?;
/// region.as_mut_slice()[0] = 1;
/// let saved = region.snapshot()?;
/// let stats = region.stats();
/// assert_eq!((stats.blocks, stats.blocks_present, stats.blocks_shared), (2, 1, 1));
/// region.as_mut_slice()[0] = 2;
/// assert_eq!(region.stats().cow_bytes, 2 << 20); // what the snapshot costs
/// # drop(saved);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RegionStats {
    /// Blocks that the region spans.
    pub blocks: usize,
    /// Blocks that it holds, alone or with others.
    pub blocks_present: usize,
    /// Of those, the blocks that a fork or snapshot may hold too: the next write to one copies or reuses it.
    pub blocks_shared: usize,
    /// Of those present, blocks that were lazily freed as a whole.
    pub blocks_lazy: usize,
    /// Blocks that were lazily freed in part.
    pub blocks_split: usize,
    /// Blocks that are mapped privately: the kernel copies each page of them that is written
    /// ([`CopyGrain::Page`](crate::CopyGrain)).
    pub blocks_cow_mapped: usize,
    /// Pages of 4 KiB that the kernel has copied in these blocks and that are not written back into blocks yet. They
    /// are the process's own memory, not the pool's. 0 if the kernel does not report them. Pages that vanish with a
    /// discard or with the region are not counted anywhere: the kernel drops them with their mapping, and counting them
    /// first would take longer than dropping them.
    pub pages_private: usize,
    /// Blocks that are reserved for it ([`Reserve::Full`](crate::Reserve::Full)).
    pub blocks_reserved: usize,
    /// Blocks that were revoked from it.
    pub blocks_revoked: usize,
    /// Bytes that were lazily freed and not dropped yet, including pages of split blocks.
    pub bytes_lazy: usize,
    /// Bytes that only its forks and snapshots hold, because they were written or discarded here since.
    /// [`RegionOptions::max_cow_bytes`](crate::RegionOptions::max_cow_bytes) limits them. Forks of forks make the
    /// number inexact until the last fork or snapshot of this region is gone: the engine does not record the account of
    /// each block, so a block released by a fork's own fork or snapshot is subtracted from the fork's account.
    pub cow_bytes: usize,
    /// Mappings (VMAs) that the region uses, as the engine counts them.
    pub mappings: usize,
    /// Bytes of the region's page table.
    pub metadata_bytes: usize,
    /// Fault statistics of the region.
    pub faults: FaultStats,
}

impl RegionStats {
    pub(super) fn of(core: &RegionCore<Linux>) -> RegionStats {
        let (mut present, mut shared, mut split) = (0, 0, 0);
        for entry in core.table.iter() {
            present += usize::from(entry.block().is_some());
            shared += usize::from(matches!(entry, Entry::Shared(..)));
            split += usize::from(matches!(entry, Entry::Split(_)));
        }
        // A fork(2) child has no private pages, and a missing thread may have been in a reset at the fork.
        let is_child = owner::is_forked_child();
        let may_have_private = core.accounts.has_cow_mappings() && !is_child;
        let private = if may_have_private { core.private_page_count().unwrap_or(0) } else { 0 };
        let for_resets = if is_child { 0 } else { core.bytes_for_resets() };
        let size = core.pool().block_size.bytes();
        let lazy = core.accounts.lazy_blocks.load(Ordering::Relaxed);
        RegionStats {
            blocks: core.table.len(),
            blocks_present: present,
            blocks_shared: shared,
            blocks_lazy: lazy,
            blocks_split: split,
            blocks_cow_mapped: core.accounts.cow_mappings.load(Ordering::Relaxed),
            pages_private: private,
            blocks_reserved: core.table.reserved(),
            blocks_revoked: core.accounts.revoked.load(Ordering::Relaxed),
            bytes_lazy: lazy * size + core.accounts.lazy_pages.load(Ordering::Relaxed) * BASE_PAGE,
            cow_bytes: core.accounts.cow.blocks() * size,
            mappings: core.addresses.mappings(),
            metadata_bytes: core.table.bytes()
                + core.pins.bytes()
                + core.captured.bytes()
                + for_resets
                + size_of::<RegionCore<Linux>>(),
            faults: core.counters.read(),
        }
    }
}

/// Statistics of a pool: [`Pool::stats`](crate::Pool::stats).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// let region = pool.region(4 << 20)?;
/// region.populate()?;
/// let stats = pool.stats();
/// let used = stats.blocks - stats.blocks_free - stats.blocks_reserved;
/// println!("{used} of {} blocks are in use, after {} faults", stats.blocks, stats.faults.faults());
/// assert_eq!((used, stats.regions), (2, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolStats {
    /// Blocks of the pool.
    pub blocks: usize,
    /// Blocks without a holder that are not reserved.
    pub blocks_free: usize,
    /// Blocks without a holder that are reserved for regions, forks and snapshots.
    pub blocks_reserved: usize,
    /// Free blocks that are zero and have memory: a first write takes such a block without clearing it.
    pub blocks_zeroed_free: usize,
    /// Bytes of the pool's memory in huge pages, including free blocks, as the kernel maps them. `None` if the kernel
    /// does not report it (before Linux 6.7).
    pub bytes_huge: Option<usize>,
    /// All other bytes of the pool's memory, in base pages of 4 KiB. In a pool of huge pages this should be zero. If
    /// not, memory was too fragmented, [`Region::lazy_free`](crate::Region::lazy_free) of parts of blocks has split
    /// some, or memory was being allocated at that moment.
    pub bytes_base: Option<usize>,
    /// Blocks of 2 MiB that the kernel refused to collapse into a huge page, in a pool that has to request it
    /// ([`Granted::ShmemCollapsed`](crate::Granted)): they consist of base pages.
    pub not_collapsed: u64,
    /// Statistics on how blocks got their memory.
    pub supply: SupplyStats,
    /// Statistics of the background zeroing.
    pub stock: StockStats,
    /// Statistics of the watch for memory pressure.
    pub pressure: PressureStats,
    /// Pages of 4 KiB that snapshots hold in place of pages of a shared block. Each is counted once, even if several
    /// snapshots hold it.
    pub pages_held: usize,
    /// Used blocks that contain these pages. A partly filled one is filled before a new one is used, and is freed with
    /// its last page.
    pub blocks_of_pages: usize,
    /// Copies of such pages in the process's own memory, made when a snapshot is read by address. A snapshot has at
    /// most one copy of each of its own pages, and all are freed with it.
    pub pages_in_views: usize,
    /// Blocks whose release the kernel refused: they are not used again until the process ends.
    pub blocks_leaked: usize,
    /// Living regions, including dropped ones with owned pins.
    pub regions: usize,
    /// Bytes of metadata for the pool's blocks, without the page tables of regions, see [`RegionStats`].
    pub metadata_bytes: usize,
    /// Mappings (VMAs) that regions of all pools of the process use, as the engine counts them.
    pub mappings: usize,
    /// The process's limit for them.
    pub mappings_limit: usize,
    /// Fault statistics of all present and past regions of the pool.
    pub faults: FaultStats,
}
