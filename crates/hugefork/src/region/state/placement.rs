//! The blocks of the pool that a region prefers. Neighbouring entries whose blocks are neighbours in the pool take only
//! one mapping.

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

    /// The block that the entry at `index` prefers, in a pool of `blocks` blocks. Its offset in the placement is the
    /// entry's offset in the region.
    pub(in crate::region) fn hint(&self, index: EntryIndex, blocks: usize) -> BlockId {
        BlockId(((self.first.load(Ordering::Relaxed) as usize + index.0) % blocks) as u32)
    }

    /// Chooses a new placement for blocks that are taken from now on, and returns the old one. No other region gets the
    /// old placement until the caller drops it. If there is no room for a new placement, the region keeps the old one.
    pub(in crate::region) fn move_on<S: Sys>(&self, pool: &PoolCore<S>, blocks: usize) -> Option<Placement> {
        let new = Placement::claim(&pool.placements, blocks, pool.block_size)?;
        self.first.store(new.blocks.start as u32, Ordering::Relaxed);
        self.placement.lock().unwrap_or_else(PoisonError::into_inner).replace(new)
    }
}
