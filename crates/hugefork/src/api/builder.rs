//! The options of a new pool.

use std::sync::Arc;

use super::pool::{Pool, Shared};
use super::steps::in_steps;
use crate::fault::delivery;
use crate::fault::route::Routes;
use crate::mem::EngineArc;
use crate::pool::ahead::{self, Ahead};
use crate::pool::core::PoolCore;
use crate::pool::kernels;
use crate::pool::pressure::{PressureWatch, Watcher};
use crate::pool::stock::{Stock, ZeroedStock};
use crate::region::children::PoolChildren;
use crate::sys::linux::memory::{Exports, Linux};
use crate::sys::linux::schedule::lower_priority;
use crate::sys::linux::stderr::say;
use crate::sys::linux::{arena, owner, settings, valgrind};
use crate::sys::{Merging, Sys};
use crate::types::backing::{Backing, Commit, CoreDump, Fallback, Granted, Swap};
use crate::types::children::Children;
use crate::types::error::BuildError;
use crate::units::{BlockId, BlockSize, HUGE_PAGE};

/// The options of a pool; [`PoolBuilder::build`] makes the pool.
///
/// ```
/// use hugefork::{BlockSize, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = Pool::builder().name("cache").capacity(8 << 20).block_size(BlockSize::MIB_2).build()?;
/// let mut region = pool.region(4 << 20)?;
/// region.as_mut_slice()[12345] = 1;
/// assert_eq!(pool.stats().faults.demand_zero, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `build()` is called"]
pub struct PoolBuilder {
    name: Option<String>,
    pub(super) capacity: usize,
    pub(super) block_size: BlockSize,
    pub(super) backing: Backing,
    pub(super) fallback: Fallback,
    commit: Commit,
    pub(super) core_dump: CoreDump,
    pub(super) swap: Swap,
    pub(super) exports: Exports,
    children: Children,
    ahead: Option<usize>,
    zeroed_stock: Option<ZeroedStock>,
    pressure: Option<PressureWatch>,
}

impl Pool {
    /// Starts with the default options.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }
}

impl PoolBuilder {
    /// The name of the pool in messages; default `unnamed`. A message is one line, so control characters become `?`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into().replace(char::is_control, "?"));
        self
    }

    /// The maximum size of the pool in bytes, a multiple of the block size. There is no default.
    ///
    /// It should cover all regions that live at once, and for each held fork and snapshot the memory that is written
    /// while it is held. Scattered writes count by block there, so the size of the region once more is always enough
    /// for one snapshot. A pool takes memory as it is used ([`Commit::OnDemand`]): the written parts of its regions,
    /// the memory that forks and snapshots hold besides, and up to 128 MiB while pages are written that a snapshot will
    /// hold ([`PoolBuilder::obtain_ahead`]). Single pages that were copied for a region are memory of the process
    /// beside it ([`RegionStats::pages_private`](crate::RegionStats::pages_private)): at most the region's size once
    /// more. A capacity that is too large costs addresses and [metadata](crate::PoolStats::metadata_bytes), but no
    /// memory.
    pub fn capacity(mut self, bytes: usize) -> Self {
        self.capacity = bytes;
        self
    }

    /// The unit in which hugefork hands out, clears and copies memory; default 2 MiB. Sparse writes after a snapshot
    /// copy single pages for any block size. If they copy blocks ([`CopyGrain::Block`](crate::CopyGrain), pools of
    /// hugetlb pages), smaller blocks copy fewer bytes, but they take more mappings and more faults, and no less time:
    /// 5 000 writes spread over 1 GiB take 107 ms with blocks of 4 KiB, 128 ms with 64 KiB, and 111 ms with 2 MiB (AMD
    /// EPYC).
    pub fn block_size(mut self, size: BlockSize) -> Self {
        self.block_size = size;
        self
    }

    /// The requested kind of memory; default [`Backing::Auto`].
    pub fn backing(mut self, backing: Backing) -> Self {
        self.backing = backing;
        self
    }

    /// Whether the pool may be built of another kind of memory; default [`Fallback::Allowed`].
    pub fn fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// The time when the pool gets its memory from the system; default [`Commit::OnDemand`].
    pub fn commit(mut self, commit: Commit) -> Self {
        self.commit = commit;
        self
    }

    /// The maximum number of bytes of free blocks that get their memory before a snapshot uses them; 0 means none.
    /// Default: 128 MiB, and 0 in pools of less than 128 MiB. No effect with [`Commit::Upfront`].
    ///
    /// A first write gets the memory of its block itself. But while the program writes pages that the next snapshot may
    /// have to hold, a thread of the pool (`hugefork-maint`) gets memory for as many pages, up to `bytes`. It leaves an
    /// eighth of the memory of the machine or control group free. When nothing was written for a second, it frees the
    /// prepared memory, so an idle program has only the memory that it has written to. hugetlb pages are not freed, nor
    /// is any memory with a [zeroed stock](PoolBuilder::zeroed_stock). [`PoolStats::supply`](crate::PoolStats) has its
    /// statistics.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use hugefork::Pool;
    /// // Takes no more memory than is written to.
    /// let pool = Pool::builder().capacity(256 << 20).obtain_ahead(0).build()?;
    /// assert!(!pool.stats().supply.running);
    /// # Ok(())
    /// # }
    /// ```
    pub fn obtain_ahead(mut self, bytes: usize) -> Self {
        self.ahead = Some(bytes);
        self
    }

    /// Whether core dumps contain the contents of regions; default [`CoreDump::LeftOut`], for which gdb shows zeros.
    pub fn core_dump(mut self, core_dump: CoreDump) -> Self {
        self.core_dump = core_dump;
        self
    }

    /// Whether the system may swap the pool's memory out; default [`Swap::Allowed`].
    pub fn swap(mut self, swap: Swap) -> Self {
        self.swap = swap;
        self
    }

    /// Whether snapshots of the pool can be [exported](crate::Snapshot::export); default `false`.
    ///
    /// By default the pool holds no descriptor of its memory, so no process can open the memory through `/proc/PID/fd`
    /// and write to it. A pool that exports holds a read-only descriptor, as does any pool of a process whose system
    /// calls are filtered (seccomp). A pool of hugetlb pages holds a readable and writable one in any case.
    pub fn exports(mut self, exports: bool) -> Self {
        self.exports = if exports { Exports::Yes } else { Exports::No };
        self
    }

    /// The regions that a child of `fork(2)` has; default [`Children::HaveNothing`]. With [`Children::Inherit`],
    /// snapshots of the pool can be exported, too ([`PoolBuilder::exports`]): the pool holds the same descriptor.
    pub fn children(mut self, children: Children) -> Self {
        self.children = children;
        self
    }

    /// Starts a thread that clears used blocks in the background, so that first writes find them zero. By default there
    /// is none.
    ///
    /// If the thread cannot be started, the pool works without it and prints one line on standard error; see
    /// [`StockStats::running`](crate::StockStats).
    pub fn zeroed_stock(mut self, stock: ZeroedStock) -> Self {
        self.zeroed_stock = Some(stock);
        self
    }

    /// Returns memory to the system when the system is short of it: first the memory of free blocks, then [lazily
    /// freed](crate::Region::lazy_free) contents, oldest first. By default only a pool without free blocks drops lazily
    /// freed contents. [`PressureWatch`] describes the requirements and costs.
    ///
    /// If pressure cannot be watched (no PSI, no permission), and for a pool of hugetlb pages, which are never
    /// returned, the pool works without it and prints one line on standard error; see
    /// [`PressureStats::running`](crate::PressureStats).
    ///
    /// ```
    /// use hugefork::{Pool, PressureWatch};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = Pool::builder().capacity(16 << 20).reclaim_under_pressure(PressureWatch::new()).build()?;
    /// let mut cache = pool.region(8 << 20)?;
    /// cache.as_mut_slice().fill(1);
    /// cache.lazy_free(0..8 << 20)?; // stays readable, until somebody is short of memory
    /// println!("{:?}", pool.stats().pressure);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reclaim_under_pressure(mut self, watch: PressureWatch) -> Self {
        self.pressure = Some(watch);
        self
    }

    /// Builds the pool. The first one of a process also installs hugefork's `SIGSEGV` handler, and measures for some 7
    /// ms which kernels clear and copy fastest.
    ///
    /// # Errors
    /// Any [`BuildError`]: an impossible size, a capacity beyond the machine or the control group, an unavailable
    /// backing without a fallback, no memory. Each message names the remedy.
    pub fn build(mut self) -> Result<Pool, BuildError> {
        if owner::is_forked_child() {
            return Err(BuildError::ForkedChild);
        }
        self.check_sizes()?;
        self.check_page_size(settings::other_page_size())?;
        valgrind::refuse()?;
        if self.children == Children::Inherit {
            self.exports = Exports::Yes;
        }
        Routes::open().map_err(|source| BuildError::OutOfAddresses { least: *arena::TAKES_BYTES.start(), source })?;
        let (memory, granted, fallback_reason) = self.find_memory()?;
        delivery::install_once()?;
        let blocks = self.block_size.count(self.capacity);
        let measurable = granted != Granted::ShmemBase
            && self.block_size.bytes() >= HUGE_PAGE
            && self.capacity >= kernels::CALIBRATION_BYTES;
        let chosen = kernels::choose(measurable.then_some(&memory))?;
        let stock = Stock::new(self.zeroed_stock, self.block_size, blocks);
        let spare = match memory.merging() {
            // Reserved already.
            Merging::Separate => || usize::MAX,
            Merging::Merge => spare,
        };
        let ahead = Ahead::new(self.most_ahead(), self.block_size, spare);
        let name = self.name.unwrap_or_else(|| "unnamed".to_owned());
        let core = PoolCore { ahead, ..PoolCore::new(memory, name, self.block_size, blocks, chosen, stock) };
        if self.commit == Commit::Upfront {
            obtain_all(&core)?;
        }
        let core = EngineArc::new(core);
        let goes_without = |what: &str, error| {
            say(format_args!("pool `{}` {what}: no thread for it: {error}", core.name));
            None
        };
        let keeper = PoolCore::start_stock(&core, lower_priority)
            .unwrap_or_else(|error| goes_without("goes without a zeroed stock", error));
        let maintainer = PoolCore::start_maintenance(&core)
            .unwrap_or_else(|error| goes_without("writes pages back only at snapshots", error));
        let watcher = self.pressure.and_then(|watch| {
            let started = Watcher::start(&core, &watch);
            let say = |why: &_| say(format_args!("pool `{}` does not watch memory pressure: {why}", core.name));
            started.inspect_err(say).ok()
        });
        let (children, follower) = match self.children {
            Children::HaveNothing => (None, None),
            Children::Inherit => {
                let (children, follower) = PoolChildren::follow(&core);
                (Some(children), follower)
            }
        };
        let shared = Shared { granted, fallback_reason, _workers: [keeper, maintainer, follower], watcher, children };
        Ok(Pool { core, shared: Arc::new(shared) })
    }

    fn most_ahead(&self) -> usize {
        match (self.commit, self.ahead) {
            (Commit::Upfront, _) => 0,
            (Commit::OnDemand, Some(bytes)) => bytes.min(self.capacity),
            (Commit::OnDemand, None) if self.capacity < ahead::SMALL_POOL_BYTES => 0,
            (Commit::OnDemand, None) => ahead::MOST_AHEAD_BYTES.min(self.capacity),
        }
    }

    fn check_sizes(&self) -> Result<(), BuildError> {
        let blocks = self.block_size.count(self.capacity);
        if blocks > BlockId::LIMIT {
            return Err(BuildError::TooManyBlocks { blocks, block_size: self.block_size });
        }
        // A request that can never be met is refused at once, even if the memory would be needed later.
        let limit = match self.commit {
            Commit::OnDemand => settings::memory_total(),
            Commit::Upfront if self.backing == Backing::Hugetlb => settings::memory_total(),
            Commit::Upfront => settings::memory_available(),
        };
        if self.capacity > limit.bytes {
            return Err(BuildError::BeyondTheMachine {
                capacity: self.capacity,
                available: limit.bytes,
                limited_by: limit.set_by,
            });
        }
        // This check comes last: its message names the next multiple, which could exceed the other limits.
        Ok(self.block_size.check_len(self.capacity)?)
    }
}

/// Bytes that may be taken before they are needed: an eighth of the memory is left for other uses.
fn spare() -> usize {
    settings::memory_available().bytes.saturating_sub(settings::memory_total().bytes / 8)
}

/// Gets the memory of all blocks, a part on each CPU.
fn obtain_all(core: &PoolCore<Linux>) -> Result<(), BuildError> {
    let (size, capacity) = (core.block_size, core.block_size.len_of(core.frames.len()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // At least 2 MiB, so that one thread touches a whole huge page.
    let step = HUGE_PAGE.max(size.bytes());
    let result = in_steps(capacity, capacity.div_ceil(threads).next_multiple_of(step), threads, |part| {
        part.clone().step_by(step).try_for_each(|start| {
            core.make_huge(size.count(start));
            core.sys.obtain(start, step.min(part.end - start), 0)
        })
    });
    result.map_err(|source| BuildError::OutOfMemory { wanted: capacity, source })?;
    core.frames.mark_all_zeroed();
    Ok(())
}
