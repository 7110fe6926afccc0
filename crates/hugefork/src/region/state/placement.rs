//! Where in the pool a region would like its blocks. Neighbours in the region that are neighbours in the pool are one
//! mapping.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::pool::core::PoolCore;
use crate::pool::placements::Placement;
use crate::sys::Sys;
use crate::units::{BlockId, EntryIndex};

/// The placement of one region.
pub(crate) struct PlacementHint {
    placement: Mutex<Option<Placement>>,
    /// The first block of `placement`, where the fault handler can read it.
    first: AtomicU32,
}

impl PlacementHint {
    /// Chooses a placement for `blocks` blocks, if there is room for one.
    pub(super) fn new<S: Sys>(pool: &PoolCore<S>, blocks: usize) -> PlacementHint {
        let hint = PlacementHint { placement: Mutex::new(None), first: AtomicU32::new(0) };
        hint.move_on(pool, blocks);
        hint
    }

    /// The block that the entry would like, out of `blocks` in the pool: it has the same place in the placement as the
    /// entry in the region.
    pub(in crate::region) fn hint(&self, index: EntryIndex, blocks: usize) -> BlockId {
        BlockId(((self.first.load(Ordering::Relaxed) as usize + index.0) % blocks) as u32)
    }

    /// Chooses a new placement for blocks that are written from now on, and returns the old one, which stays set aside
    /// while the caller keeps it. If there is no room for a new one, the region stays where it is.
    pub(in crate::region) fn move_on<S: Sys>(&self, pool: &PoolCore<S>, blocks: usize) -> Option<Placement> {
        let new = Placement::claim(&pool.placements, blocks, pool.block_size)?;
        self.first.store(new.first().0, Ordering::Relaxed);
        self.placement.lock().unwrap_or_else(PoisonError::into_inner).replace(new)
    }
}
