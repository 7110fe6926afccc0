//! The blocks that a snapshot holds.
//!
//! Invariant: a snapshot holds one reference to each of its blocks. A region writes only to blocks that it holds alone,
//! so nobody writes to a block while a snapshot holds it.
//!
//! The entries change only under the snapshot's lock. Their states:
//! * `Zero`: no block. May become a block of zeros, and `Zero` again (zeros.rs).
//! * `Shared`: a block.
//! * `CowMapped`: a block with the snapshot's own pages over it, once the bytes have an address (view.rs).
//! * `Revoked`: the region has taken the block away.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use super::pages::PageSets;
use super::view::View;
use crate::mem::EngineArc;
use crate::mem::pinned::{Known, PinnedBox};
use crate::pool::bits::Bits;
use crate::pool::captured::Captured;
use crate::pool::core::PoolCore;
use crate::pool::holders::{Seat, SetHolder};
use crate::pool::lineage::{Derived, RegionId};
use crate::pool::placements::Placement;
use crate::pool::unheld::USELESS;
use crate::sync::{Engaged, RegionLock, SignalsBlocked};
use crate::sys::Sys;
use crate::table::{Entries, Entry, Locked, Origin};
use crate::types::error::RegionError;
use crate::types::snapshot_id::{Place, SnapshotId};
use crate::units::EntryIndex;

/// The blocks of a region at one moment. The pool and the fault handler hold the address of this struct.
pub(crate) struct SnapshotCore<S: Sys> {
    pool: EngineArc<PoolCore<S>>,
    pub(crate) entries: Entries,
    /// Entries whose blocks the region wrote. The region is charged for them while only forks and snapshots hold them.
    own: Bits,
    /// Entries that have or have had a block of zeros.
    pub(super) zeros: Bits,
    /// How many entries have a block of zeros now. A search for free blocks asks thousands of snapshots, most of which
    /// have none.
    pub(super) zeros_held: AtomicUsize,
    pub(crate) lock: RegionLock,
    pub(super) revoked: AtomicUsize,
    /// Whether all blocks stay for good: no region may take one away.
    irrevocable: AtomicBool,
    /// The addresses where the bytes are visible, claimed on first use.
    pub(super) view: OnceLock<View<S>>,
    pub(crate) parent: Derived,
    /// The snapshot's identity; `None` if it is only the first step of a fork.
    pub(crate) id: Option<SnapshotId>,
    /// The snapshot at which the region was when this one was taken.
    pub(crate) from: Place,
    /// The pages over blocks that others hold too, if there is room for any. They change under `lock`.
    pub(super) pages: OnceLock<Mutex<PageSets<S>>>,
    /// The page sets captured for the snapshots of its region.
    pub(crate) captured: OnceLock<EngineArc<Captured<S>>>,
    /// Keeps this part of the pool set aside, so that the next region is placed elsewhere.
    placement: OnceLock<Placement>,
    /// Its place in the pool's list of holders.
    pub(super) seat: Seat,
}

impl<S: Sys> SnapshotCore<S> {
    /// A snapshot without blocks. `source` is the original if `parent` is a clone.
    pub(crate) fn empty(
        pool: &EngineArc<PoolCore<S>>,
        count: usize,
        parent: Derived,
        source: Option<&Derived>,
        id: Option<SnapshotId>,
    ) -> PinnedBox<SnapshotCore<S>> {
        let frozen = PinnedBox::new(SnapshotCore {
            pool: pool.clone(),
            entries: Entries::new(count),
            own: Bits::none(count),
            zeros: Bits::none(count),
            zeros_held: AtomicUsize::new(0),
            lock: RegionLock::default(),
            revoked: AtomicUsize::new(0),
            irrevocable: AtomicBool::new(false),
            view: OnceLock::new(),
            parent,
            id,
            from: Place::default(),
            pages: OnceLock::new(),
            captured: OnceLock::new(),
            placement: OnceLock::new(),
            seat: Seat::default(),
        });
        // SAFETY: it stays in place until it has been withdrawn, which removes it from the list.
        unsafe { pool.holders.add(&*frozen, source, Some(&*frozen)) };
        frozen
    }

    pub(crate) fn pool(&self) -> &EngineArc<PoolCore<S>> {
        &self.pool
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.pool.block_size.len_of(self.entries.len())
    }

    /// Takes over the placement that the region has left.
    pub(crate) fn keep_placement(&self, placement: Option<Placement>) {
        if let Some(placement) = placement {
            let _ = self.placement.set(placement);
        }
    }

    /// Takes a share in the region's captured pages: the drop of this snapshot drops those that became useless.
    pub(crate) fn keep_captured(&self, captured: &EngineArc<Captured<S>>) {
        let _ = self.captured.set(captured.clone());
    }

    /// Whether the region has taken any block away.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire) > 0
    }

    /// Whether the region has taken away the block of byte `offset`. Waits for a revocation in progress.
    pub(crate) fn is_revoked_at(&self, offset: usize) -> bool {
        let _looking = self.lock.shared();
        self.entries.get(EntryIndex(self.pool.block_size.count(offset))) == Entry::Revoked
    }

    /// Returns an error if the region has taken any block away.
    pub(crate) fn check(&self) -> Result<(), RegionError> {
        if self.is_revoked() { Err(RegionError::Revoked) } else { Ok(()) }
    }

    /// Notes that the snapshot's region wrote the block at `index`.
    pub(crate) fn note_own(&self, index: EntryIndex) {
        self.own.put(index.0, Ordering::Relaxed);
    }

    /// The writer of the block at `index`, seen from the region `id`: that region itself, or another.
    pub(crate) fn origin(&self, index: EntryIndex, id: RegionId) -> Origin {
        if self.own.has(index.0) && self.parent.account.id == id { Origin::Own } else { Origin::Parent }
    }

    /// Gives up all blocks. They must not be mapped yet.
    pub(crate) fn give_up_all(&self, locked: Locked<'_>) {
        for block in self.entries.iter().filter_map(Entry::block) {
            self.parent.account.freed(usize::from(self.pool.release(block)));
        }
        self.forget_all(locked);
    }

    /// Forgets all blocks, because their references now belong to other holders.
    pub(crate) fn forget_all(&self, _locked: Locked<'_>) {
        self.entries.set_alike(0..self.entries.len(), Entry::Zero);
    }

    /// Guarantees that from now on no block is taken away. Returns an error if one already was.
    pub(crate) fn make_irrevocable(&self) -> Result<(), RegionError> {
        let _signals = SignalsBlocked::new();
        let _alone = self.lock.exclusive();
        self.irrevocable.store(!seeded!("export-lets-blocks-be-taken-away"), Ordering::Relaxed);
        self.check()
    }

    /// Whether it is guaranteed that no block is taken away.
    pub(crate) fn is_irrevocable(&self) -> bool {
        self.irrevocable.load(Ordering::Relaxed)
    }

    /// A second snapshot of the same blocks and pages; none of its blocks can be taken away.
    pub(crate) fn keep(&self) -> Result<PinnedBox<SnapshotCore<S>>, RegionError> {
        let copy = self.duplicate()?;
        copy.make_irrevocable()?;
        Ok(copy)
    }

    /// A second snapshot of the same blocks.
    pub(crate) fn duplicate(&self) -> Result<PinnedBox<SnapshotCore<S>>, RegionError> {
        let (count, source) = (self.entries.len(), &self.parent);
        let copy = SnapshotCore::empty(&self.pool, count, source.clone(), Some(source), self.id);
        copy.from.set(self.from.get());
        self.captured.get().into_iter().for_each(|captured| copy.keep_captured(captured));
        if self.has_room_for_pages() {
            copy.make_room_for_pages();
        }
        let _signals = SignalsBlocked::new();
        let filling = copy.lock.exclusive();
        let reading = self.lock.shared();
        self.check()?;
        for (index, entry) in self.entries.iter().enumerate() {
            if let Some(block) = entry.block() {
                self.pool.frames.add_reference(block);
                copy.entries.set(EntryIndex(index), Entry::Shared(block, Origin::Parent));
                copy.set_pages(EntryIndex(index), self.set_over(EntryIndex(index)));
            }
        }
        drop((reading, filling));
        Ok(copy)
    }
}

impl<S: Sys> Known for SnapshotCore<S> {
    fn withdraw(&self) {
        self.pool.holders.remove(self);
    }
}

impl<S: Sys> Drop for SnapshotCore<S> {
    fn drop(&mut self) {
        let (pool, _engaged) = (self.pool.clone(), Engaged::new());
        let closed = self.view.take().map_or(Ok(()), |mut view| view.close());
        let blocks = self.entries.iter().filter_map(Entry::block);
        if closed.is_ok() {
            let changes = pool.frames.changes();
            self.parent.account.freed(blocks.filter(|&block| pool.release(block)).count());
            self.give_up_pages();
            if pool.frames.changes() != changes {
                self.captured.get().into_iter().for_each(|captured| _ = captured.drop_sets(USELESS, &pool.frames));
                // Some holder may hold a block alone now.
                pool.maintenance.nudge();
            }
        } else {
            // The blocks may still be visible, so the pool must not give them out again.
            pool.leak(blocks.count());
        }
    }
}
