//! [`Snapshot`]: the contents of a region at one moment.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Mutex;

use super::pool::{Pool, check_owner};
use crate::fault::route::Routes;
use crate::mem::pinned::PinnedBox;
use crate::snapshot::core::SnapshotCore;
use crate::snapshot::read::Destination;
use crate::sync::SignalsBlocked;
use crate::sys::linux::memory::Linux;
use crate::sys::linux::owner;
use crate::types::error::RegionError;
use crate::types::snapshot_id::SnapshotId;

/// Takes a snapshot, or several at one moment, and applies `make` to it. A write that finds the pool full may revoke a
/// block of the snapshot before `make` is done; then this function starts again with another snapshot. If a part of the
/// origin itself was revoked, `take` returns the error.
pub(super) fn before_any_is_lost<F, T>(
    take: impl Fn() -> Result<F, RegionError>,
    make: impl Fn(F) -> Result<T, RegionError>,
) -> Result<T, RegionError> {
    loop {
        match make(take()?) {
            Err(RegionError::Revoked) => {}
            made => return made,
        }
    }
}

/// The contents of a region at one moment, read-only. Any number of threads may read it while others write to the
/// region; it may outlive the region, and it can be forked.
///
/// It holds the blocks that it shares with its parent, the region that it was made from. So each write of the parent to
/// such a block takes a second block from the pool, or private pages if single pages are copied
/// ([`CopyGrain`](crate::CopyGrain)). If older snapshots hold a block too, the snapshot holds the pages of it that
/// differ, of 4 KiB each in the pool's memory, and shares those with the snapshots before and after it
/// ([`PoolStats::pages_held`](crate::PoolStats::pages_held)). So a history costs only the amount written. A reset of a
/// region to it copies the pages that differ; a fork of it copies its own pages; an [`export`](Snapshot::export) copies
/// nothing. A reset of a region that has a limit or a reservation, or that copies blocks
/// ([`CopyGrain::Block`](crate::CopyGrain::Block)), takes a whole block for each block with such pages. When the pool
/// is full, the parent revokes the block that it writes to from its snapshots, see [`Snapshot::is_revoked`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// let mut region = pool.region(2 << 20)?;
/// region.as_mut_slice()[7] = 1;
/// let before = region.snapshot()?;
/// region.as_mut_slice()[7] = 2;
/// assert_eq!(before[7], 1);
/// # Ok(())
/// # }
/// ```
pub struct Snapshot {
    core: PinnedBox<SnapshotCore<Linux>>,
    mapping: Mutex<()>,
    pool: Pool,
}

impl Snapshot {
    pub(crate) fn new(pool: Pool, core: PinnedBox<SnapshotCore<Linux>>) -> Snapshot {
        Snapshot { core, mapping: Mutex::new(()), pool }
    }

    pub(super) fn core(&self) -> &SnapshotCore<Linux> {
        &self.core
    }

    /// Length in bytes, the same as its parent's.
    #[allow(clippy::len_without_is_empty)] // A region is never empty.
    pub fn len(&self) -> usize {
        self.core().len()
    }

    /// Its id. Ids increase in the order of snapshots, see [`SnapshotId`].
    pub fn id(&self) -> SnapshotId {
        self.core().id.expect("only the beginning of a fork has none, and is not handed out")
    }

    /// The base of its region when this snapshot was taken ([`Region::origin`](crate::Region::origin)); that snapshot
    /// may be dropped by now. It is the previous snapshot or, for the first of a fork, the snapshot that the fork was
    /// made of. `None` for the first snapshot of a region that began as zeros.
    pub fn parent(&self) -> Option<SnapshotId> {
        self.core().from.get()
    }

    /// The pool of its blocks.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Whether a part of it was revoked. That happens when the pool is full and the parent writes to a block that both
    /// share, or another snapshot of the parent needs room for pages, unless the snapshot was made with
    /// [`Reserve::Full`](crate::Reserve::Full). A read of that part raises `SIGBUS` with a message, and never returns
    /// zeros; [`Snapshot::read_at`] returns an error. The other parts are not affected.
    ///
    /// If the pool may run out, call this *after* using the bytes that were read, or read with `read_at`.
    pub fn is_revoked(&self) -> bool {
        self.core().is_revoked()
    }

    /// The bytes, aligned to the block size, like those of [`Snapshot::view`], but usable in system calls, too: it
    /// copies all pages that the snapshot holds in place of pages of shared blocks into memory of the process, some 2
    /// us each.
    ///
    /// # Errors
    /// Those of [`Snapshot::view`].
    pub fn map(&self) -> Result<&[u8], RegionError> {
        let bytes = self.view()?;
        self.core().show_all()?;
        Ok(bytes)
    }

    /// The bytes, aligned to the block size, for accesses by the program itself. The first call maps them, with a
    /// system call for each run of neighbouring blocks. Pages that the snapshot holds in place of pages of shared
    /// blocks exist only while an older snapshot is held. The first read of such a page is a fault that copies the
    /// pages in the 64 KiB around it. The next read nearby copies the pages in its 2 MiB. A system call that reads such
    /// bytes before the program does fails with `EFAULT`: pass it the bytes of [`Snapshot::map`], or call
    /// [`Snapshot::write_to`].
    ///
    /// If the process has no memory or no mappings left for a read, the read raises `SIGBUS`, with a message.
    ///
    /// # Errors
    /// [`RegionError::TooManyMappings`], [`RegionError::OutOfAddresses`], [`RegionError::Revoked`] if a part was
    /// revoked before the first call, [`RegionError::System`], [`RegionError::ForkedChild`]. [`Snapshot::read_at`]
    /// needs no mapping.
    pub fn view(&self) -> Result<&[u8], RegionError> {
        check_owner()?;
        let core = self.core();
        let base = match core.view() {
            Some(base) => base,
            None => {
                let _signals = SignalsBlocked::new();
                let _one_maps = self.mapping.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                core.map(|base| {
                    if let Some(routes) = Routes::get() {
                        // SAFETY: a fixed value; its addresses are forgotten when the snapshot is dropped.
                        unsafe { routes.to_snapshot(base, core) };
                    }
                })?
            }
        };
        // SAFETY: the view spans all `len` bytes for as long as `self` lives. A read of a hidden part is a fault that
        // maps it. No code writes to blocks or pages that `self.core` holds. Revoked blocks are inaccessible: a load
        // there does not return.
        Ok(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(base), self.len()) })
    }

    /// Copies the bytes from `offset` on into `to`, without mapping the snapshot: for a few places, or when mappings
    /// are scarce.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] unless `offset..offset + to.len()` lies inside. [`RegionError::Revoked`] if a part
    /// of that was revoked; the contents of `to` are undefined then. [`RegionError::ForkedChild`].
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<(), RegionError> {
        check_owner()?;
        let range = Range { start: offset, end: offset.saturating_add(to.len()) };
        RegionError::check_range(&range, self.len())?;
        let is_region = |routes: &Routes| {
            let ends = to.as_ptr_range();
            routes.contains(ends.start.addr()) || routes.contains(ends.end.addr())
        };
        let kind = if Routes::get().is_some_and(is_region) { Destination::Region } else { Destination::Elsewhere };
        self.core().read(offset, to, kind)
    }
}

impl Deref for Snapshot {
    type Target = [u8];

    /// The bytes, like those of [`Snapshot::map`].
    ///
    /// # Panics
    /// If they cannot be mapped; [`Snapshot::map`] returns an error instead.
    fn deref(&self) -> &[u8] {
        match self.map() {
            Ok(bytes) => bytes,
            Err(error) => panic!("a snapshot cannot be mapped: {error}"),
        }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("len", &self.len()).field("pool", &self.pool.name()).finish_non_exhaustive()
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let routes = Routes::get().filter(|_| !owner::is_forked_child());
        if let (Some(base), Some(routes)) = (self.core.view(), routes) {
            routes.forget(base, self.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_is_lost_before_it_is_done_is_begun_anew() {
        let pool = Pool::builder().capacity(4 << 20).build().unwrap();
        let region = pool.region(2 << 20).unwrap();
        let (taken, made) = (Cell::new(0), Cell::new(0));
        let take = || {
            taken.set(taken.get() + 1);
            region.core().freeze()
        };
        let make = |_| {
            made.set(made.get() + 1);
            if made.get() < 3 { Err(RegionError::Revoked) } else { Ok(()) }
        };
        assert_eq!(before_any_is_lost(take, make), Ok(()));
        assert_eq!((taken.get(), made.get()), (3, 3));
        // A part that is lost for good is an error, and so are all other failures.
        assert_eq!(before_any_is_lost(|| Err(RegionError::Revoked), |(): ()| Ok(())), Err(RegionError::Revoked));
        let full: Result<(), RegionError> =
            before_any_is_lost(|| region.core().freeze(), |_| Err(RegionError::TooManyPins));
        assert_eq!(full, Err(RegionError::TooManyPins));
        assert_eq!(pool.stats().blocks_free, 2);
    }
}
