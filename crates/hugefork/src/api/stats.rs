//! Figures that pools and regions tell of themselves.

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

/// What a region has and what happened to it: [`Region::stats`](crate::Region::stats).
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
    /// Of those, blocks that a fork or snapshot may hold too: the next write to one copies or reuses it.
    pub blocks_shared: usize,
    /// Of those present, blocks that were lazily freed as a whole.
    pub blocks_lazy: usize,
    /// Blocks that were lazily freed in part.
    pub blocks_split: usize,
    /// Blocks that are shown through private mappings: the kernel copies the pages of them that are written
    /// ([`CopyGrain::Page`](crate::CopyGrain)).
    pub blocks_cow_mapped: usize,
    /// Pages that the kernel has copied so and that were not written back into blocks yet, of 4 KiB each. They are not
    /// the pool's memory but the process's own. 0 if the kernel does not tell. Pages that go without having been
    /// written back, with a discard or with the region, are counted nowhere: the kernel drops them together with their
    /// mapping, and to ask it for their number first would take longer than to drop them.
    pub pages_private: usize,
    /// Blocks that are set aside for it ([`Reserve::Full`](crate::Reserve::Full)).
    pub blocks_reserved: usize,
    /// Blocks that were taken away from it.
    pub blocks_revoked: usize,
    /// Bytes that were lazily freed and not dropped yet, pages of split blocks among them.
    pub bytes_lazy: usize,
    /// Bytes that its forks and snapshots alone hold, having been written or discarded here since. What
    /// [`RegionOptions::max_cow_bytes`](crate::RegionOptions::max_cow_bytes) limits. Forks of forks make it inexact
    /// until the last fork or snapshot of this region is gone: the engine does not know whose account a block is on, so
    /// what a fork's own fork or snapshot gives up comes off the fork's account.
    pub cow_bytes: usize,
    /// Mappings (VMAs) that the region takes, as the engine counts them.
    pub mappings: usize,
    /// Bytes of the region's page table.
    pub metadata_bytes: usize,
    /// Its faults.
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
        // In a fork(2) child no page is its own, and another thread may have been in a reset at the fork.
        let (private, for_resets) = match owner::is_forked_child() {
            true => (0, 0),
            false if core.accounts.has_cow_mappings() => {
                (core.private_page_count().unwrap_or(0), core.bytes_for_resets())
            }
            false => (0, core.bytes_for_resets()),
        };
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
                + core.density.bytes()
                + for_resets
                + size_of::<RegionCore<Linux>>(),
            faults: core.counters.read(),
        }
    }
}

/// What a pool has and what happened in it: [`Pool::stats`](crate::Pool::stats).
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
    /// Blocks that nobody holds and that are set aside for nobody.
    pub blocks_free: usize,
    /// Blocks that nobody holds and that are set aside for regions, forks and snapshots.
    pub blocks_reserved: usize,
    /// Free blocks that are zero and have memory: a first write takes one of them without clearing.
    pub blocks_zeroed_free: usize,
    /// Bytes of memory that the pool has in huge pages now, as the kernel maps them, those of free blocks among them.
    /// `None` where the kernel does not tell (before Linux 6.7).
    pub bytes_huge: Option<usize>,
    /// All other bytes of memory that it has now, in base pages of 4 KiB. Zero is what a pool of huge pages should say:
    /// if not, memory was too fragmented for them, [`Region::lazy_free`](crate::Region::lazy_free) of parts of blocks
    /// has split some, or memory was just being got.
    pub bytes_base: Option<usize>,
    /// 2 MiB that the kernel refused to make one page of, where the pool has to ask for that
    /// ([`Granted::ShmemCollapsed`](crate::Granted)): they are in base pages.
    pub not_collapsed: u64,
    /// How blocks got their memory.
    pub supply: SupplyStats,
    /// What the background zeroing came to.
    pub stock: StockStats,
    /// What watching for memory pressure came to.
    pub pressure: PressureStats,
    /// Pages of 4 KiB that snapshots hold in place of those of a block that others hold too. Each is counted once,
    /// however many snapshots have it.
    pub pages_held: usize,
    /// Blocks in use that have these pages. One that has less than it could is filled first, and goes back with its
    /// last page.
    pub blocks_of_pages: usize,
    /// Pages of 4 KiB in the process's own memory, beside the pool: copies of those, made where a snapshot is read by
    /// address. A snapshot has at most one of each of its own pages, and all go with it.
    pub pages_in_views: usize,
    /// Blocks whose release the kernel refused: out of use until the process ends, never handed out again.
    pub blocks_leaked: usize,
    /// Regions that live, those that only an owned pin keeps among them.
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
