//! Freezing makes a snapshot: it is the pause of a fork or snapshot.
//!
//! ```text
//!                freeze                     of_snapshot
//!  RegionCore ─────────────▶ SnapshotCore ─────────────▶ RegionCore (a fork)
//! ```
//! It takes time in proportion to the number of blocks, some nanoseconds each, and one write-protection. Pinned blocks
//! are copied, and the dropped pages of split blocks get memory again.
//!
//! The cut is consistent. A write that lands before its page is protected is in the blocks that the snapshot keeps. A
//! thread that writes later waits in its fault until the lock is free, so none of its later writes is in them.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::core::RegionCore;
use super::unresolved::Unresolved;
use crate::mapping::change::Recount;
use crate::own::fixed::Fixed;
use crate::pool::lineage::Derived;
use crate::pool::shortage::Found;
use crate::snapshot::core::SnapshotCore;
use crate::sync::SignalsBlocked;
use crate::sys::{Access, Sys};
use crate::table::split::SplitPage;
use crate::table::transition::{OnShare, on_share};
use crate::table::{Entry, Locked, Reserved};
use crate::terms::error::RegionError;
use crate::units::EntryIndex;

impl<S: Sys> RegionCore<S> {
    /// Makes a snapshot of the region as it is now.
    pub(crate) fn freeze(&self) -> Result<Fixed<SnapshotCore<S>>, RegionError> {
        loop {
            let frozen = SnapshotCore::empty(self.pool(), self.table.len(), Derived::of(&self.books.cow));
            match self.fill(&frozen) {
                Ok(()) => {
                    frozen.keep_home(self.home.move_on(self.pool(), self.table.len()));
                    return Ok(frozen);
                }
                // Pinned blocks are copied, and the copies take blocks.
                Err(RegionError::PoolFull { .. }) if self.drops_some_lazy() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn drops_some_lazy(&self) -> bool {
        let _signals = SignalsBlocked::new();
        self.pool().drop_some_lazy() != Found::None
    }

    pub(crate) fn fill(&self, frozen: &SnapshotCore<S>) -> Result<(), RegionError> {
        let pool = self.pool();
        let _signals = SignalsBlocked::new();
        // Whoever wants a block of the snapshot back waits until it holds all of its blocks.
        let filling = frozen.lock.exclusive();
        let started = pool.sys.now();
        let alone = self.lock.exclusive();
        let filled = self.fill_locked(Locked::alone(&alone), frozen);
        if filled.is_err() {
            // This happens under the region lock: other faults take a block with two holders for write-protected, and
            // copy it.
            frozen.let_go_of_all(Locked::alone(&filling));
        }
        self.addresses.recount(self.addresses.mappings(), 1 + self.shown().edges(0..self.table.len()));
        drop(alone);
        if let Err(reason) = filled {
            // The lock is released first, since the error's text allocates.
            drop(filling);
            return Err(self.error(reason));
        }
        let pause = pool.sys.now().saturating_sub(started);
        self.counters.snapshots.fetch_add(1, Ordering::Relaxed);
        self.counters.longest_pause.fetch_max(pause, Ordering::Relaxed);
        self.counters.paused.fetch_add(pause, Ordering::Relaxed);
        Ok(())
    }

    fn fill_locked(&self, locked: Locked<'_>, frozen: &SnapshotCore<S>) -> Result<(), Unresolved> {
        if self.books.revoked.load(Ordering::Relaxed) > 0 {
            return Err(Unresolved::Revoked);
        }
        let (mut first, mut last) = (usize::MAX, 0);
        for index in (0..self.table.len()).map(EntryIndex) {
            let entry = self.table.get(index);
            let (next, needed) = on_share(entry.state(), self.pins.of(index));
            let after = entry.in_state(next);
            match needed {
                OnShare::FillAndShare => {
                    self.split(index).map_or(Ok(()), |split| split.fill_all(locked, Access::Read))?;
                }
                OnShare::Refuse => return Err(Unresolved::Revoked),
                OnShare::Nothing | OnShare::Share | OnShare::GiveCopy => {}
            }
            if let Some(block) = entry.block() {
                (first, last) = (first.min(index.0), index.0);
                if needed != OnShare::GiveCopy {
                    self.pool().frames.add_reference(block);
                    frozen.entries.set(index, Entry::Borrowed(block));
                    self.table.set(index, after);
                }
            }
        }
        if first > last {
            return Ok(());
        }
        // On failure the entries stay `Shared`, and `frozen` gives its references back. The next writes find a single
        // reference and make their blocks writable again, whatever the kernel has left protected. For the same reason a
        // `Shared` entry is protected once more: where nothing changes, that costs nothing.
        self.pins.runs_between(first..last + 1).try_for_each(|run| self.protect(locked, run))?;
        self.copy_pinned(frozen, first..last + 1)
    }

    /// Takes away the right to write to `entries`. Their mappings are counted when all runs are done.
    fn protect(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
        let bytes = self.bytes_of(&entries);
        let protected = self.site().reprotect(locked, bytes, Access::Read)?;
        for split in entries.filter(|_| self.table.has_splits()).filter_map(|index| self.split(EntryIndex(index))) {
            for page in split.pages.runs_of(0..split.pages.len(), SplitPage::Writable) {
                split.pages.set(page, SplitPage::Readable);
            }
        }
        Ok(protected.published(Recount::default())?)
    }

    /// Gives copies of pinned blocks to `frozen`, after all other blocks were protected. So if a write is in the cut,
    /// every write that happened before it is too, unless both went to pinned blocks.
    fn copy_pinned(&self, frozen: &SnapshotCore<S>, entries: Range<usize>) -> Result<(), Unresolved> {
        if !self.pins.are_used() {
            return Ok(());
        }
        for index in entries.map(EntryIndex).filter(|index| self.pins.has(*index)) {
            if let Some(block) = self.table.get(index).block() {
                let copy = self.pool().copy_of(block, Reserved::No)?;
                frozen.entries.set(index, Entry::Borrowed(copy));
                frozen.parent.keeps_alone();
            }
        }
        Ok(())
    }
}
