//! What a region may be promised, and what its forks and snapshots may cost it.

/// Whether blocks are set aside so that writes cannot find the pool full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reserve {
    /// None: a write that finds the pool full fails loudly. Of a fork or snapshot the region that it was made from may take
    /// blocks away when the pool is empty (see [`Region::is_revoked`](crate::Region::is_revoked)).
    #[default]
    None,
    /// One for each block.
    ///
    /// * A region: its first writes cannot fail. Writes to what forks and snapshots share take other blocks, and theirs if
    ///   there are none.
    /// * A fork: none of its first writes can fail, and nothing is taken away from it. Where its parent must write to what both
    ///   share and the pool is empty, the fork is given its copy then, in the block that is set aside for it.
    /// * A snapshot: nothing is taken away from it; the blocks are for such copies.
    Full,
}

/// What a write does that would copy more than [`RegionOptions::max_cow_bytes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLimit {
    /// Takes the block away from forks and snapshots without a reservation, so that it need not be copied. Those with one are
    /// copied for all the same.
    #[default]
    Revoke,
    /// Waits until a fork or snapshot is dropped. Signals are delivered meanwhile. A program whose only thread waits here
    /// waits for ever.
    Stall,
    /// Fails as it would if the pool were full: one line, and `SIGBUS`.
    Fail,
}

/// What a region, fork or snapshot is promised and may cost: [`Pool::region_with`](crate::Pool::region_with),
/// [`Region::fork_with`](crate::Region::fork_with), [`Region::snapshot_with`](crate::Region::snapshot_with).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hugefork::{OnLimit, Pool, RegionOptions, Reserve};
/// let pool = Pool::builder().capacity(32 << 20).build()?;
/// let options = RegionOptions::new().reserve(Reserve::Full).max_cow_bytes(8 << 20, OnLimit::Revoke);
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
    pub(crate) limit: Option<(usize, OnLimit)>,
}

impl RegionOptions {
    /// No reservation, no limit.
    pub fn new() -> RegionOptions {
        RegionOptions::default()
    }

    /// Whether blocks are set aside; default [`Reserve::None`].
    pub fn reserve(mut self, reserve: Reserve) -> RegionOptions {
        self.reserve = reserve;
        self
    }

    /// The most bytes that forks and snapshots of the region may hold beside it: blocks that it wrote or discarded since
    /// and that they alone still hold. What a write does that would exceed it is `on_limit`. Rounded up to blocks; by
    /// default there is no limit. Snapshots are not written to: [`Region::snapshot_with`](crate::Region::snapshot_with)
    /// refuses a limit.
    pub fn max_cow_bytes(mut self, bytes: usize, on_limit: OnLimit) -> RegionOptions {
        self.limit = Some((bytes, on_limit));
        self
    }
}
