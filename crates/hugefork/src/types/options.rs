//! The guarantees of a region, and limits on the cost of its forks and snapshots.

/// Whether blocks are reserved, so that writes never find the pool full.
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
    /// None. A write that finds the pool full fails loudly. When the pool is full, the parent of a fork or snapshot may
    /// revoke blocks from it (see [`Region::is_revoked`](crate::Region::is_revoked)).
    #[default]
    None,
    /// One for each block:
    ///
    /// * For a region, its first writes cannot fail. Writes to blocks shared with forks and snapshots take other free
    ///   blocks. If there are none, they revoke the block, unless a fork or snapshot has a reservation.
    /// * For a fork, its first writes cannot fail, and no part of it is revoked. If its parent writes to a shared block
    ///   and the pool is full, that write fails loudly.
    /// * For a snapshot, no part of it is revoked, and such a write of its region fails loudly. No block is reserved,
    ///   since a snapshot is read-only. If a region's writes must not fail, the pool needs room for copies.
    ///
    /// Until a fork is written to, and as long as a snapshot lives, the bytes are in the same physical pages: the
    /// kernel may read them there (`O_DIRECT`, `vmsplice(2)`).
    Full,
}

/// The amount that a write copies if a fork or snapshot also holds its block.
///
/// * A *page*: the kernel copies 4 KiB for each page that is written, in 2 us, without a signal, and system calls that
///   write work. Best for sparse writes. Reads and writes in the range are slightly slower until the pages are written
///   back into blocks; the next fork or snapshot does that before it returns.
/// * A *block*: one copy, 110 us for 2 MiB, after which the block raises no more faults. Best for dense writes.
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
    /// The cheaper one, judged by the writes so far.
    #[default]
    Auto,
    /// Pages, from the fork or snapshot on: no write to a shared block raises a signal. So system calls that write work
    /// there, except at moments when pages are written back or a snapshot is taken: see [`RegionOptions::calls_wait`].
    Page,
    /// Blocks.
    Block,
}

/// The guarantees and limits of a region, fork or snapshot: [`Pool::region_with`](crate::Pool::region_with),
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

/// The resolver of a region's write faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Writers {
    /// The engine, in its handler of `SIGSEGV`.
    #[default]
    Fault,
    /// The kernel: all mapped memory is writable at all times, or its users wait.
    NeverFault,
}

impl RegionOptions {
    /// No reservation, no limit, [`CopyGrain::Auto`], and no call waits.
    pub fn new() -> RegionOptions {
        RegionOptions::default()
    }

    /// Whether blocks are reserved; default [`Reserve::None`].
    pub fn reserve(mut self, reserve: Reserve) -> RegionOptions {
        self.reserve = reserve;
        self
    }

    /// The amount that a write to a shared block copies; default [`CopyGrain::Auto`]. No effect on a snapshot, which is
    /// read-only.
    pub fn copy_grain(mut self, grain: CopyGrain) -> RegionOptions {
        self.grain = grain;
        self
    }

    /// Whether system calls that write to copied pages wait while the pages are written back into blocks or a snapshot
    /// is taken; by default they may fail with `EFAULT` at such a moment. With [`CopyGrain::Page`] they then never fail
    /// on previously written memory, unless it was discarded or lazily freed, or the region has `max_cow_bytes` or an
    /// observer. All users of the range wait, readers too, for about a quarter of a millisecond.
    ///
    /// The process needs the right to handle the faults of system calls: `CAP_SYS_PTRACE`,
    /// `vm.unprivileged_userfaultfd=1`, or access to `/dev/userfaultfd`. Without that right calls may still fail.
    pub fn calls_wait(mut self, wait: bool) -> RegionOptions {
        self.calls_wait = wait;
        self
    }

    /// The maximum number of bytes that forks and snapshots of the region may hold besides it: blocks that the region
    /// has written to or discarded since, and that only they still hold. A write that would exceed it revokes its block
    /// from forks and snapshots without a reservation, so that nothing is copied for them; those with a reservation get
    /// their copy nevertheless. Blocks left to them by [`discard`](crate::Region::discard),
    /// [`reset_to`](crate::Region::reset_to) and snapshots of [pinned](crate::Region::pin) blocks count, and may exceed
    /// the limit. Forks of forks make the count inexact, see [`RegionStats::cow_bytes`](crate::RegionStats::cow_bytes).
    /// `bytes` is rounded up to blocks. By default there is no limit. Snapshots are read-only:
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
