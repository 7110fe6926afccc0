//! Where promoted blocks of a program's memory came from: the blocks that children hold still. While they do, the
//! region can go back to one (private/demote.rs), so each is held for it, too.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::mem::{self, EngineBox};
use crate::pool::core::PoolCore;
use crate::sys::Sys;
use crate::units::{BlockId, EntryIndex};

/// The former blocks of a region's entries. Each has a reference of this.
pub(crate) struct FormerBlocks {
    /// One more than the number of each entry's block, or 0.
    blocks: EngineBox<[AtomicU32]>,
    count: AtomicUsize,
}

impl FormerBlocks {
    /// For so many entries, of which none has any.
    pub(super) fn new(entries: usize) -> FormerBlocks {
        FormerBlocks { blocks: mem::zeroed(entries), count: AtomicUsize::new(0) }
    }

    /// Whether any entry has one.
    pub(crate) fn are_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// The entry had this block, and the caller's reference to it is this one's from now on. One of before is let go.
    pub(crate) fn keep<S: Sys>(&self, pool: &PoolCore<S>, index: EntryIndex, block: BlockId) {
        self.forget(pool, index);
        self.blocks[index.0].store(block.0 + 1, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The block that the entry had.
    pub(crate) fn of(&self, index: EntryIndex) -> Option<BlockId> {
        self.blocks.get(index.0)?.load(Ordering::Relaxed).checked_sub(1).map(BlockId)
    }

    /// The entry's former block, whose reference is the caller's from now on.
    pub(crate) fn take(&self, index: EntryIndex) -> Option<BlockId> {
        let block = self.blocks.get(index.0)?.swap(0, Ordering::Relaxed).checked_sub(1).map(BlockId);
        self.count.fetch_sub(usize::from(block.is_some()), Ordering::Relaxed);
        block
    }

    /// Lets go of the entry's former block.
    pub(crate) fn forget<S: Sys>(&self, pool: &PoolCore<S>, index: EntryIndex) {
        if let Some(block) = self.take(index) {
            pool.release(block);
        }
    }

    /// Lets go of the blocks that no child holds any more: to go back to one would save nothing.
    pub(crate) fn forget_what_is_alone<S: Sys>(&self, pool: &PoolCore<S>) {
        let all = (0..self.blocks.len()).map(EntryIndex);
        let former = all.filter_map(|index| Some((index, self.of(index)?)));
        for (index, block) in former.take(self.count.load(Ordering::Relaxed)) {
            if pool.frames.references(block) == 1 {
                self.forget(pool, index);
            }
        }
    }
}
