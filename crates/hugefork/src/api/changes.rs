//! What has changed between two snapshots of a region, or since one.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;

use super::pool::check_owner;
use super::region::Region;
use super::snapshot::Snapshot;
use crate::snapshot::changes::{Found, Newer, Precision};
use crate::sys::linux::memory::Linux;
use crate::types::error::RegionError;

/// What has changed since a snapshot, see [`Snapshot::changed_since`] and [`Region::changed_since`]. It can be gone
/// through any number of times.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(16 << 20).build()?;
/// let mut state = pool.region(6 << 20)?;
/// let before = state.snapshot()?;
/// state.as_mut_slice()[5000] = 1;
/// let after = state.snapshot()?;
/// let changes = after.changed_since(&before)?;
/// let blocks: Vec<_> = changes.blocks().collect::<Result<_, _>>()?;
/// let pages: Vec<_> = changes.pages().collect::<Result<_, _>>()?;
/// assert_eq!((blocks, pages), (vec![0..2 << 20], vec![4096..8192]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Changes<'a> {
    newer: &'a (dyn Newer<Linux> + Sync),
    older: &'a Snapshot,
}

impl<'a> Changes<'a> {
    fn new(newer: &'a (dyn Newer<Linux> + Sync), len: usize, older: &'a Snapshot) -> Result<Changes<'a>, RegionError> {
        check_owner()?;
        if len != older.len() {
            return Err(RegionError::AnotherLength { len, other: older.len() });
        }
        Ok(Changes { newer, older })
    }

    /// The blocks that are not the same in both, as ranges of bytes in address order, neighbours in one. No byte is
    /// looked at: a block that was written to is among them even if it got the bytes that it had. What is in none of
    /// them has not changed. Takes some nanoseconds for each block of the region, and in a region whose pages were
    /// copied singly ([`CopyGrain`](crate::CopyGrain)) 15 us for each 128 MiB and 0.2 us for each such page.
    ///
    /// # Errors
    /// An error is the last item: [`RegionError::Revoked`] if a part of either was taken away, from there on;
    /// [`RegionError::ForkedChild`].
    pub fn blocks(&self) -> Changed<'a> {
        Changed::new(self, Precision::Block)
    }

    /// The base pages (4 KiB) that may have been written, as ranges of bytes in address order, neighbours in one. No
    /// byte is compared, so the list has pages that were written with the bytes that they had, and may have pages that
    /// were read for the first time. All other pages are unchanged. A region and its last snapshot take 10 ns a page of
    /// the region where the kernel tracks writes (Linux 6.14) and copies single pages. Elsewhere the list has all
    /// private pages, and all pages of a block that was copied as a whole.
    ///
    /// # Errors
    /// Those of [`Changes::blocks`].
    pub fn written(&self) -> Changed<'a> {
        Changed::new(self, Precision::Written)
    }

    /// The base pages (4 KiB) whose bytes differ, as ranges of bytes in address order, neighbours in one: all of them,
    /// and no others. Takes what [`Changes::blocks`] takes, and compares what that finds: of a region and its last
    /// snapshot, single pages where single pages were copied; of two snapshots, blocks, as fast as `memcmp` does.
    ///
    /// # Errors
    /// Those of [`Changes::blocks`].
    pub fn pages(&self) -> Changed<'a> {
        Changed::new(self, Precision::Page)
    }
}

/// Ranges that have changed, found as they are asked for: the iterator of [`Changes::blocks`] and [`Changes::pages`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(16 << 20).build()?;
/// # let (mut state, mut file) = (pool.region(6 << 20)?, std::io::sink());
/// # let before = state.snapshot()?;
/// # state.as_mut_slice()[5000] = 1;
/// # let after = state.snapshot()?;
/// for range in after.changed_since(&before)?.pages() {
///     after.write_to(&mut file, range?)?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Changed<'a> {
    found: Found<'a, Linux, dyn Newer<Linux> + Sync + 'a>,
}

impl<'a> Changed<'a> {
    fn new(changes: &Changes<'a>, precision: Precision) -> Changed<'a> {
        Changed { found: Found::new(changes.newer, changes.older.core(), precision) }
    }
}

impl Iterator for Changed<'_> {
    type Item = Result<Range<usize>, RegionError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = check_owner() {
            self.found.fail(error);
        }
        self.found.next()
    }
}

impl FusedIterator for Changed<'_> {}

impl Snapshot {
    /// What differs between this snapshot and an older one of the same pool and length. They are mostly two of one
    /// region, but need not be: what does not come from the same block on both sides is compared.
    ///
    /// The order makes no difference to the result. Any thread may do this, and others may write to the region, take
    /// snapshots and drop others meanwhile. A write that finds the pool full and has to take a block away from one of
    /// the two waits until that is compared: 0.5 ms at most.
    ///
    /// # Errors
    /// [`RegionError::AnotherPool`], [`RegionError::AnotherLength`], [`RegionError::ForkedChild`]. That a part of
    /// either was taken away ([`Snapshot::is_revoked`]) is told when it is come upon, by the iterators.
    pub fn changed_since<'a>(&'a self, older: &'a Snapshot) -> Result<Changes<'a>, RegionError> {
        self.pool().check_same(older.pool())?;
        Changes::new(self.core(), self.len(), older)
    }
}

impl Region {
    /// What differs between this region as it is now and a snapshot of the same pool and length: mostly its last one,
    /// of which it finds single pages without a look at others ([`CopyGrain`](crate::CopyGrain)), but it may be any.
    ///
    /// Others may write to the region meanwhile. Each page is compared as it was at some moment while the iterator was
    /// used, not all at the same one, and a word that is just being written counts as before or after. For what had
    /// changed at one moment, take a snapshot and compare that. A thread whose write faults in the 2 MiB (or block, if
    /// that is smaller) that are just compared waits for that: 0.5 ms at most.
    ///
    /// What was [lazily freed](Region::lazy_free) counts as what it reads as.
    ///
    /// # Errors
    /// Those of [`Snapshot::changed_since`].
    pub fn changed_since<'a>(&'a self, snapshot: &'a Snapshot) -> Result<Changes<'a>, RegionError> {
        self.pool().check_same(snapshot.pool())?;
        Changes::new(self.core(), self.len(), snapshot)
    }
}

impl fmt::Debug for Changes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("older", self.older).finish_non_exhaustive()
    }
}

impl fmt::Debug for Changed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changed").finish_non_exhaustive()
    }
}
