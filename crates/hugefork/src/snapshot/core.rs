//! Which blocks a snapshot holds.
//!
//! Invariant: a snapshot holds one reference to each of its blocks. A region writes only to blocks that it holds alone,
//! so none of these is written while the snapshot lives. Its entries are `Zero`, `Shared`, `CowMapped` where its bytes
//! have an address and pages of it lie over the block (view.rs), or, once the region has taken the block away,
//! `Revoked`.
//! `Zero` may become a block of zeros, and `Zero` again (zeros.rs). They change under the snapshot's lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::pages::LockedPages;
use super::view::View;
use crate::mem::pinned::{Known, PinnedBox};
use crate::mem::{self, EngineArc, EngineBox};
use crate::pool::captured::Captured;
use crate::pool::core::PoolCore;
use crate::pool::holders::Seat;
use crate::pool::lineage::{Derived, RegionId};
use crate::pool::placements::Placement;
use crate::sync::{RegionLock, SignalsBlocked};
use crate::sys::Sys;
use crate::table::{Entries, Entry, Locked, Origin};
use crate::types::error::RegionError;
use crate::types::snapshot_id::{Place, SnapshotId};
use crate::units::EntryIndex;

/// Some entries of a snapshot: one bit for each.
pub(super) struct EntrySet(EngineBox<[AtomicU64]>);

impl EntrySet {
    /// None of `count`.
    fn new(count: usize) -> EntrySet {
        EntrySet(mem::zeroed(count.div_ceil(64)))
    }

    pub(super) fn add(&self, index: EntryIndex) {
        self.0[index.0 / 64].fetch_or(1 << (index.0 % 64), Ordering::Relaxed);
    }

    pub(super) fn has(&self, index: EntryIndex) -> bool {
        self.0[index.0 / 64].load(Ordering::Relaxed) >> (index.0 % 64) & 1 == 1
    }

    /// Each of them, in order.
    pub(super) fn each(&self) -> impl Iterator<Item = EntryIndex> {
        let words = self.0.iter().enumerate().map(|(at, word)| (at, word.load(Ordering::Relaxed)));
        words.filter(|(_, word)| *word != 0).flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| EntryIndex(64 * at + bit))
        })
    }
}

/// The blocks of a region at one moment. The pool and the fault handler find it by its address.
pub(crate) struct SnapshotCore<S: Sys> {
    pool: EngineArc<PoolCore<S>>,
    pub(crate) entries: Entries,
    /// Whose blocks its region wrote, and so counts while only forks and snapshots hold them.
    own: EntrySet,
    /// Which have, or have had, a block of zeros that it has taken.
    pub(super) zeros: EntrySet,
    /// How many have one now. Whoever finds no block asks thousands of snapshots, and most have none.
    pub(super) zeros_held: AtomicUsize,
    pub(crate) lock: RegionLock,
    pub(super) revoked: AtomicUsize,
    /// Whether it was promised that nothing of it is taken away, for good.
    irrevocable: AtomicBool,
    /// The addresses where its bytes are visible, claimed on first use.
    pub(super) view: OnceLock<View<S>>,
    pub(crate) parent: Derived,
    /// Which snapshot it is; none if it is only the beginning of a fork.
    pub(crate) id: Option<SnapshotId>,
    /// The snapshot that the region was at when this was taken.
    pub(crate) from: Place,
    /// The pages over blocks that others hold too, which changes under the lock; nothing, if there never were any.
    pub(super) pages: LockedPages<S>,
    /// The sets that were captured of its region.
    pub(crate) captured: OnceLock<EngineArc<Captured<S>>>,
    /// Keeps the part of the pool that the blocks lie in set aside, so that the next region settles elsewhere.
    placement: OnceLock<Placement>,
    /// Where the pool lists it.
    pub(super) seat: Seat,
}

impl<S: Sys> SnapshotCore<S> {
    /// A snapshot without blocks.
    pub(crate) fn empty(
        pool: &EngineArc<PoolCore<S>>,
        count: usize,
        parent: Derived,
        id: Option<SnapshotId>,
    ) -> PinnedBox<SnapshotCore<S>> {
        SnapshotCore::new(pool, count, parent, None, id)
    }

    /// `source` is what `parent` is a clone of, if it is one.
    fn new(
        pool: &EngineArc<PoolCore<S>>,
        count: usize,
        parent: Derived,
        source: Option<&Derived>,
        id: Option<SnapshotId>,
    ) -> PinnedBox<SnapshotCore<S>> {
        let frozen = PinnedBox::new(SnapshotCore {
            pool: pool.clone(),
            entries: Entries::new(count),
            own: EntrySet::new(count),
            zeros: EntrySet::new(count),
            zeros_held: AtomicUsize::new(0),
            lock: RegionLock::default(),
            revoked: AtomicUsize::new(0),
            irrevocable: AtomicBool::new(false),
            view: OnceLock::new(),
            parent,
            id,
            from: Place::default(),
            pages: LockedPages::default(),
            captured: OnceLock::new(),
            placement: OnceLock::new(),
            seat: Seat::default(),
        });
        // SAFETY: it stays in place until it has been withdrawn, which removes it from the list.
        unsafe { pool.holders.add(&*frozen, source) };
        frozen
    }

    pub(crate) fn pool(&self) -> &EngineArc<PoolCore<S>> {
        &self.pool
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.pool.block_size.len_of(self.entries.len())
    }

    /// Keeps the placement that its region has left.
    pub(crate) fn keep_placement(&self, placement: Option<Placement>) {
        if let Some(placement) = placement {
            let _ = self.placement.set(placement);
        }
    }

    /// Has what was captured of its region dropped when nobody needs it any more.
    pub(crate) fn keep_captured(&self, captured: &EngineArc<Captured<S>>) {
        let _ = self.captured.set(captured.clone());
    }

    /// Whether any of its blocks was taken away.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire) > 0
    }

    /// Whether the block that holds byte `offset` was taken away. Waits if that is just being done.
    pub(crate) fn is_revoked_at(&self, offset: usize) -> bool {
        let _looking = self.lock.shared();
        self.entries.get(EntryIndex(self.pool.block_size.count(offset))) == Entry::Revoked
    }

    /// An error if any block was taken away.
    pub(crate) fn check(&self) -> Result<(), RegionError> {
        if self.is_revoked() { Err(RegionError::Revoked) } else { Ok(()) }
    }

    /// Notes that the block at `index` was written by the region that this is a snapshot of.
    pub(crate) fn note_own(&self, index: EntryIndex) {
        self.own.add(index);
    }

    /// Who wrote the block at `index`, for the region `id`: that region, or somebody else.
    pub(crate) fn origin(&self, index: EntryIndex, id: RegionId) -> Origin {
        if self.own.has(index) && self.parent.is_share_of(id) { Origin::Own } else { Origin::Parent }
    }

    /// Gives up all blocks. They must not be mapped yet.
    pub(crate) fn give_up_all(&self, locked: Locked<'_>) {
        for block in self.entries.iter().filter_map(Entry::block) {
            self.parent.freed(usize::from(self.pool.release(block)));
        }
        self.forget_all(locked);
    }

    /// Forgets all blocks: others have its references now.
    pub(crate) fn forget_all(&self, _locked: Locked<'_>) {
        for index in (0..self.entries.len()).map(EntryIndex) {
            if self.entries.get(index) != Entry::Zero {
                self.entries.set(index, Entry::Zero);
            }
        }
    }

    /// Promises that nothing of it is taken away from here on. An error if a block was before.
    pub(crate) fn make_irrevocable(&self) -> Result<(), RegionError> {
        let _signals = SignalsBlocked::new();
        let _alone = self.lock.exclusive();
        self.irrevocable.store(true, Ordering::Relaxed);
        self.check()
    }

    /// Whether it was promised that nothing of it is taken away.
    pub(crate) fn is_irrevocable(&self) -> bool {
        self.irrevocable.load(Ordering::Relaxed)
    }

    /// A second snapshot of the same blocks and pages, none of which is ever taken away.
    pub(crate) fn keep(&self) -> Result<PinnedBox<SnapshotCore<S>>, RegionError> {
        let copy = self.duplicate()?;
        copy.make_irrevocable()?;
        Ok(copy)
    }

    /// A second snapshot of the same blocks.
    pub(crate) fn duplicate(&self) -> Result<PinnedBox<SnapshotCore<S>>, RegionError> {
        let (count, parent) = (self.entries.len(), self.parent.clone());
        let source = Some(&self.parent);
        let copy = SnapshotCore::new(&self.pool, count, parent, source, self.id);
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
        let pool = self.pool.clone();
        let closed = self.view.take().map_or(Ok(()), |mut view| view.close());
        let blocks = self.entries.iter().filter_map(Entry::block);
        if closed.is_ok() {
            let changes = pool.frames.changes();
            self.parent.freed(blocks.filter(|&block| pool.release(block)).count());
            self.pages.give_up(&pool);
            if pool.frames.changes() != changes {
                self.captured.get().into_iter().for_each(|captured| captured.drop_useless(&pool.frames));
                // Somebody is alone with a block now.
                pool.maintenance.nudge();
            }
        } else {
            // The blocks may still be visible, so nobody may get them again.
            pool.leak(blocks.count());
        }
    }
}
