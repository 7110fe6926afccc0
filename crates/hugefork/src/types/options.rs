//! What a region may be promised, and what its forks and snapshots may cost it.

/// Whether blocks are set aside, so that writes cannot find the pool full.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use hugefork::{RegionOptions, Reserve};
/// let log = pool.region_with(4 << 20, RegionOptions::new().reserve(Reserve::Full))?;
/// let cache = pool.region(8 << 20)?;
/// assert!(cache.populate().is_err()); // half of the pool is set aside
/// log.populate()?; // cannot fail for want of blocks
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reserve {
    /// None. A write that finds the pool full fails loudly. When the pool is empty, the parent of a fork or snapshot
    /// may take blocks away from it (see [`Region::is_revoked`](crate::Region::is_revoked)).
    #[default]
    None,
    /// One for each block.
    ///
    /// * A region: its first writes cannot fail. Writes to what forks and snapshots share take other blocks, or theirs
    ///   if no other is free and none of them was promised it.
    /// * A fork: its first writes cannot fail, and nothing is taken away from it. When its parent writes to what both
    ///   share and the pool is empty, that write fails loudly.
    /// * A snapshot: nothing is taken away from it, and such a write of its region fails loudly. No block is set aside,
    ///   since nobody writes to a snapshot. A region whose writes must not fail needs a pool with room for copies.
    ///
    /// Until a fork is written to, and for as long as a snapshot lives, the bytes stay on the same physical pages: the
    /// kernel may read them there (`O_DIRECT`, `vmsplice(2)`).
    Full,
}

/// What a write copies that finds its block held by a fork or snapshot too.
///
/// * A *page*: the kernel copies 4 KiB for each page that is written, in 2 us, without a signal, and system calls that
///   write work. Best for sparse writes. The range reads and writes a little slower until the pages are written back
///   into blocks, which the next fork or snapshot does before it returns.
/// * A *block*: one copy, 110 us for 2 MiB, after which nothing of the block faults any more. Best for dense writes.
///
/// Pools of hugetlb pages, and kernels before Linux 6.7, only have blocks: see [`Pool::has_page_grain`](crate::Pool).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use hugefork::{CopyGrain, RegionOptions};
/// let mut region = pool.region_with(4 << 20, RegionOptions::new().copy_grain(CopyGrain::Block))?;
/// region.as_mut_slice().fill(1);
/// let saved = region.snapshot()?;
/// region.as_mut_slice()[0] = 2; // one byte, and a copy of the block
/// assert_eq!(region.stats().faults.bytes_copied, 2 << 20);
/// # drop(saved);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyGrain {
    /// What is cheaper, as far as the writes so far tell.
    #[default]
    Auto,
    /// Pages, from the fork or snapshot on: no write to what is shared raises a signal. So system calls that write work
    /// there, but at a moment when pages are written back or a snapshot is taken: see [`RegionOptions::calls_wait`].
    Page,
    /// Blocks.
    Block,
}

/// What a region, fork or snapshot is promised and may cost: [`Pool::region_with`](crate::Pool::region_with),
/// [`Region::fork_with`](crate::Region::fork_with), [`Region::snapshot_with`](crate::Region::snapshot_with).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hugefork::{Pool, RegionOptions, Reserve};
/// let pool = Pool::builder().capacity(32 << 20).build()?;
/// let options = RegionOptions::new().reserve(Reserve::Full).max_cow_bytes(8 << 20);
/// let region = pool.region_with(16 << 20, options)?;
/// assert_eq!(pool.stats().blocks_reserved, 8);
/// let saved = region.snapshot_with(RegionOptions::new().reserve(Reserve::Full))?; // is never revoked
/// # drop(saved);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "options do nothing until a region is made with them"]
pub struct RegionOptions {
    pub(crate) reserve: Reserve,
    /// In bytes.
    pub(crate) limit: Option<usize>,
    pub(crate) grain: CopyGrain,
    pub(crate) calls_wait: bool,
    pub(crate) writers: Writers,
}

/// Who resolves the write faults of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Writers {
    /// The engine, in its handler of `SIGSEGV`.
    #[default]
    Fault,
    /// The kernel: everything that is shown can be written to at all times, or whoever uses it waits.
    NeverFault,
}

impl RegionOptions {
    /// No reservation, no limit, [`CopyGrain::Auto`], and no call waits.
    pub fn new() -> RegionOptions {
        RegionOptions::default()
    }

    /// Whether blocks are set aside; default [`Reserve::None`].
    pub fn reserve(mut self, reserve: Reserve) -> RegionOptions {
        self.reserve = reserve;
        self
    }

    /// What a write copies that finds its block held by others too; default [`CopyGrain::Auto`]. It means nothing to a
    /// snapshot, which is not written to.
    pub fn copy_grain(mut self, grain: CopyGrain) -> RegionOptions {
        self.grain = grain;
        self
    }

    /// Whether system calls that write to pages which the kernel copies wait while those are folded into blocks or a
    /// snapshot is taken; by default they may fail with `EFAULT` at such a moment. With [`CopyGrain::Page`] they never
    /// fail then on what was written before, unless it was discarded or lazily freed, or `max_cow_bytes` or an observer
    /// has copies made one by one. Whoever uses the range waits, readers too, for a quarter of a millisecond or so.
    ///
    /// The process has to be allowed to handle the faults of system calls: `CAP_SYS_PTRACE`,
    /// `vm.unprivileged_userfaultfd=1`, or access to `/dev/userfaultfd`. Without that right calls may fail all the
    /// same.
    pub fn calls_wait(mut self, wait: bool) -> RegionOptions {
        self.calls_wait = wait;
        self
    }

    /// The most bytes that forks and snapshots of the region may hold beside it: blocks that the region has written to
    /// or discarded since, and that they alone still hold. A write that would exceed it takes its block away from forks
    /// and snapshots without a reservation, so that nothing is copied for them; those with a reservation get their copy
    /// all the same. What [`discard`](crate::Region::discard), [`reset_to`](crate::Region::reset_to) and snapshots of
    /// [pinned](crate::Region::pin) blocks leave to them counts, and may be more than the limit. Forks of forks make
    /// the count inexact, see [`RegionStats::cow_bytes`](crate::RegionStats::cow_bytes). `bytes` is rounded up to
    /// blocks. By default there is no limit. Snapshots are not written to:
    /// [`Region::snapshot_with`](crate::Region::snapshot_with) refuses a limit.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
    /// use hugefork::RegionOptions;
    /// let mut region = pool.region_with(4 << 20, RegionOptions::new().max_cow_bytes(2 << 20))?;
    /// region.as_mut_slice().fill(1);
    /// let saved = region.snapshot()?;
    /// region.as_mut_slice().fill(2); // the first block is copied, the second is taken away from the snapshot
    /// assert!(saved.is_revoked());
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_cow_bytes(mut self, bytes: usize) -> RegionOptions {
        self.limit = Some(bytes);
        self
    }
}
