//! Where promoted blocks of a program's memory came from: the blocks that children hold still. While they do, the
//! region can go back to one (private/demote.rs), so each is held for it, too.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

use crate::mem::{self, EngineBox};
use crate::pool::core::PoolCore;
use crate::sys::Sys;
use crate::units::{BlockId, EntryIndex};

/// The former blocks of a region's entries. Each has a reference of this. Any thread may let go of those that are of no
/// use any more, while another takes one or keeps one.
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

    /// The entry had this block, and the caller's reference to it is this one's from now on. One of before is let go,
    /// and this one too if nobody else holds it: to go back to it would save nothing.
    pub(crate) fn keep<S: Sys>(&self, pool: &PoolCore<S>, index: EntryIndex, block: BlockId) {
        if let Some(before) = self.take(index) {
            pool.release(before);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.blocks[index.0].store(block.0 + 1, Ordering::Relaxed);
        // Either this sees that the last of the others has let go, or that one sees what is kept here.
        fence(Ordering::SeqCst);
        self.forget_if_alone(pool, index);
    }

    /// The entry's former block, whose reference is the caller's from now on.
    pub(crate) fn take(&self, index: EntryIndex) -> Option<BlockId> {
        let block = self.blocks.get(index.0)?.swap(0, Ordering::Relaxed).checked_sub(1).map(BlockId);
        self.count.fetch_sub(usize::from(block.is_some()), Ordering::Relaxed);
        block
    }

    /// Lets go of the blocks that nobody else holds any more. Whoever has just let go of some calls this, at any time:
    /// who keeps one meanwhile has the same look at it.
    pub(crate) fn forget_what_is_alone<S: Sys>(&self, pool: &PoolCore<S>) {
        // What the caller has let go of comes before this look, as in `keep`.
        fence(Ordering::SeqCst);
        if self.are_any() {
            (0..self.blocks.len()).for_each(|index| self.forget_if_alone(pool, EntryIndex(index)));
        }
    }

    fn forget_if_alone<S: Sys>(&self, pool: &PoolCore<S>, index: EntryIndex) {
        let word = self.blocks[index.0].load(Ordering::Relaxed);
        let Some(block) = word.checked_sub(1).map(BlockId) else { return };
        let is_alone = pool.frames.references(block) == 1;
        if is_alone && self.blocks[index.0].compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.count.fetch_sub(1, Ordering::Relaxed);
            pool.release(block);
        }
    }
}
