//! Figures that pools and regions tell of themselves.

use crate::pool::ahead::SupplyStats;
use crate::pool::pressure::PressureStats;
use crate::pool::stock::StockStats;
use crate::stats::counters::FaultStats;

/// [`Region::stats`](crate::Region::stats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RegionStats {
    /// Blocks that the region spans.
    pub blocks: usize,
    /// Blocks that it holds, alone or with others.
    pub blocks_present: usize,
    /// Of those, blocks that a fork or snapshot may hold too: the next write to one copies or reuses it.
    pub blocks_shared: usize,
    /// Of those present, blocks that were lazily freed as a whole.
    pub blocks_lazy: usize,
    /// Blocks that were lazily freed in part.
    pub blocks_split: usize,
    /// Blocks that are set aside for it ([`Reserve::Full`](crate::Reserve::Full)).
    pub blocks_reserved: usize,
    /// Blocks that were taken away from it.
    pub blocks_revoked: usize,
    /// Bytes that were lazily freed and not dropped yet, pages of split blocks among them.
    pub bytes_lazy: usize,
    /// Bytes that its forks and snapshots alone hold, having been written or discarded here since. What
    /// [`RegionOptions::max_cow_bytes`](crate::RegionOptions::max_cow_bytes) limits.
    pub cow_bytes: usize,
    /// Mappings (VMAs) that the region takes, as the engine counts them.
    pub mappings: usize,
    /// Bytes of the region's page table.
    pub metadata_bytes: usize,
    /// Its faults.
    pub faults: FaultStats,
}

/// [`Pool::stats`](crate::Pool::stats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolStats {
    /// Blocks of the pool.
    pub blocks: usize,
    /// Blocks that nobody holds and that are set aside for nobody.
    pub blocks_free: usize,
    /// Blocks that nobody holds and that are set aside for regions, forks and snapshots.
    pub blocks_reserved: usize,
    /// Free blocks that are zero and have memory: a first write takes one of them without clearing.
    pub blocks_zeroed_free: usize,
    /// Bytes of memory that the pool has in huge pages now, as the kernel maps them, those of free blocks among them. `None`
    /// where the kernel does not tell (before Linux 6.7).
    pub bytes_huge: Option<usize>,
    /// All other bytes of memory that it has now, in base pages of 4 KiB. Zero is what a pool of huge pages should say: if not,
    /// memory was too fragmented for them, [`Region::lazy_free`](crate::Region::lazy_free) of parts of blocks has split some, or
    /// memory was just being got.
    pub bytes_base: Option<usize>,
    /// 2 MiB that the kernel refused to make one page of, where the pool has to ask for that
    /// ([`HugeBy::Collapse`](crate::HugeBy)): they are in base pages.
    pub not_collapsed: u64,
    /// How blocks got their memory.
    pub supply: SupplyStats,
    /// What the background zeroing came to.
    pub stock: StockStats,
    /// What watching for memory pressure came to.
    pub pressure: PressureStats,
    /// Blocks whose release the kernel refused: out of use until the process ends, never handed out again.
    pub blocks_leaked: usize,
    /// Living regions.
    pub regions: usize,
    /// Bytes of metadata for the pool's blocks. The page tables of regions come on top, see [`RegionStats`].
    pub metadata_bytes: usize,
    /// Mappings (VMAs) that regions of all pools of the process take, as the engine counts them.
    pub mappings: usize,
    /// What the process allows them together.
    pub mappings_limit: usize,
    /// Faults of all regions that the pool ever had.
    pub faults: FaultStats,
}
