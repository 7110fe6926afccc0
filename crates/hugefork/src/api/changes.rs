//! Changes between two snapshots of a region, or since one.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;

use super::pool::{Pool, check_owner};
use super::region::Region;
use super::snapshot::Snapshot;
use crate::snapshot::changes::{Found, Newer, Precision};
use crate::sys::linux::memory::Linux;
use crate::types::error::RegionError;

/// The changes since a snapshot, see [`Snapshot::changed_since`] and [`Region::changed_since`]. It can be iterated any
/// number of times.
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
    /// Finds the changes of an object of this pool and of this length.
    fn new(
        newer: &'a (dyn Newer<Linux> + Sync),
        pool: &Pool,
        len: usize,
        older: &'a Snapshot,
    ) -> Result<Changes<'a>, RegionError> {
        if !pool.core.is(&older.pool().core) {
            let (pool, other) = (pool.name().to_owned(), older.pool().name().to_owned());
            return Err(RegionError::AnotherPool { pool, other });
        }
        check_owner()?;
        if len != older.len() {
            return Err(RegionError::AnotherLength { len, other: older.len() });
        }
        Ok(Changes { newer, older })
    }

    /// The blocks that may differ, as ranges of bytes in address order, with neighbours merged. No bytes are compared:
    /// a block that was written to is included even if its bytes are the same. Everything outside of these blocks is
    /// unchanged. Takes some nanoseconds for each block of the region, and in a region whose pages were copied singly
    /// ([`CopyGrain`](crate::CopyGrain)) 15 us for each 128 MiB and 0.2 us for each such page.
    ///
    /// # Errors
    /// An error is the last item: [`RegionError::Revoked`] if a part of either was revoked, so that later parts cannot
    /// be compared; [`RegionError::ForkedChild`].
    pub fn blocks(&self) -> Changed<'a> {
        Changed::new(self, Precision::Block)
    }

    /// The base pages (4 KiB) that may have been written, as ranges of bytes in address order, with neighbours merged.
    /// No byte is compared, so the list includes pages to which the program wrote the same bytes again, and may include
    /// pages that it only read for the first time. All other pages are unchanged. A region and its last snapshot take
    /// 10 ns a page of the region where the kernel tracks writes (Linux 6.14) and copies single pages. Elsewhere the
    /// list has all private pages, and all pages of a block that was copied as a whole.
    ///
    /// # Errors
    /// Those of [`Changes::blocks`].
    pub fn written(&self) -> Changed<'a> {
        Changed::new(self, Precision::Written)
    }

    /// The base pages (4 KiB) whose bytes differ, as ranges of bytes in address order, with neighbours merged: all of
    /// them, and no others. It takes the time of [`Changes::blocks`], and compares the memory found by that. For a
    /// region and its last snapshot it compares single pages where single pages were copied; for two snapshots it
    /// compares blocks, at the speed of `memcmp`.
    ///
    /// # Errors
    /// Those of [`Changes::blocks`].
    pub fn pages(&self) -> Changed<'a> {
        Changed::new(self, Precision::Page)
    }
}

/// An iterator over changed ranges, made by [`Changes::blocks`] and [`Changes::pages`].
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
    /// Finds the differences between this snapshot and an older one of the same pool and length. They need not belong
    /// to one region: ranges that are not backed by the same block are compared.
    ///
    /// The order makes no difference to the result. Any thread may call this, and others may write to the region, take
    /// snapshots and drop others meanwhile. If the pool is full and a write has to revoke a block of one of the two,
    /// the write waits until that block is compared, 0.5 ms at most.
    ///
    /// # Errors
    /// [`RegionError::AnotherPool`], [`RegionError::AnotherLength`], [`RegionError::ForkedChild`]. If a part of either
    /// was revoked ([`Snapshot::is_revoked`]), the iterators return the error when they reach it.
    pub fn changed_since<'a>(&'a self, older: &'a Snapshot) -> Result<Changes<'a>, RegionError> {
        Changes::new(self.core(), self.pool(), self.len(), older)
    }
}

impl Region {
    /// Finds the differences between this region as it is now and a snapshot of the same pool and length. The snapshot
    /// may be any, but for the region's last one, single pages are found without reading others
    /// ([`CopyGrain`](crate::CopyGrain)).
    ///
    /// Other threads may write to the region meanwhile. Each page is compared as it was at some moment during the
    /// iteration, and different pages at different moments; a word that is being written counts as before or after the
    /// write. For the changes at one moment, take a snapshot and compare that. A thread whose write faults in the 2 MiB
    /// (or block, if smaller) under comparison waits, 0.5 ms at most.
    ///
    /// [Lazily freed](Region::lazy_free) memory counts with its current bytes.
    ///
    /// # Errors
    /// Those of [`Snapshot::changed_since`].
    pub fn changed_since<'a>(&'a self, snapshot: &'a Snapshot) -> Result<Changes<'a>, RegionError> {
        Changes::new(self.core(), self.pool(), self.len(), snapshot)
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
