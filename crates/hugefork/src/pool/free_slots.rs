//! Takes slots (slots.rs) that have memory, for pages that are about to be captured.

use allocator_api2::vec::IntoIter;

use super::core::PoolCore;
use super::frames::{Content, Wanted};
use super::slots::Slot;
use crate::mem::{EngineVec, Own};
use crate::sys::Sys;
use crate::table::Reserved;
use crate::units::{BASE_PAGE, BlockId};

impl<S: Sys> PoolCore<S> {
    /// Takes `count` free slots that have memory, or as many as there are.
    pub(crate) fn take_slots(&self, count: usize) -> EngineVec<Slot> {
        self.slots.take(count, || self.block_for_slots())
    }

    /// Allocates memory for `count` slots, as far as the free blocks with memory do not suffice.
    pub(crate) fn make_slots_ready(&self, count: usize) {
        if self.block_size.len_of(self.frames.ready()) < count * BASE_PAGE {
            self.give_up_slots(self.take_slots(count).into_iter());
        }
    }

    /// How many blocks are left if the next snapshot needs `wanted` for pages.
    pub(super) fn blocks_beside(&self, wanted: usize) -> usize {
        let free_slots = self.block_size.count(self.slots.free() * BASE_PAGE);
        self.frames.available().saturating_sub(wanted.saturating_sub(free_slots))
    }

    /// Gives slots back, which either belonged to a piece of a set or were never used.
    pub(crate) fn give_up_slots(&self, slots: impl Iterator<Item = Slot>) {
        self.slots.give_up(slots, |block| _ = self.release(block));
    }

    /// Takes a block with memory and any content, to divide it into slots.
    fn block_for_slots(&self) -> Option<BlockId> {
        // Slots come from the end of the pool, because regions take blocks from its beginning. A block that has memory
        // is preferred: the kernel takes longer to allocate a fresh block than the captures take to fill it.
        let wish = self.frames.last_ready().unwrap_or(BlockId((self.frames.len() - 1) as u32));
        let taken = self.frames.take(wish, 0, 0, Wanted::Any, Reserved::No)?;
        self.stock.nudge(&self.frames);
        let has_memory = || self.frames.content(taken.first) != Content::Fresh || self.obtain(taken, 0).is_ok();
        if !Slot::can_name(taken.first, self.block_size) || !has_memory() {
            self.give_back(taken);
            return None;
        }
        self.frames.set_content(taken.first, Content::Used);
        Some(taken.first)
    }

    /// The address of a slot in the direct map.
    pub(crate) fn slot(&self, slot: Slot) -> *mut u8 {
        // SAFETY: the direct map spans all blocks, and the slot lies in one of them.
        unsafe { self.sys.direct().add(slot.offset()) }
    }
}

/// The most slots that one call takes.
const MAX_TAKEN_SLOTS: usize = 4096;

/// Free slots for pages that are about to be captured. The drop gives unused slots back.
pub(crate) struct FreeSlots<'a, S: Sys> {
    pool: &'a PoolCore<S>,
    taken: IntoIter<Slot, Own>,
    /// How many more slots the caller may need.
    wanted: usize,
}

impl<'a, S: Sys> FreeSlots<'a, S> {
    /// Provides slots for `pages` pages, or somewhat more.
    pub(crate) fn new(pool: &'a PoolCore<S>, pages: usize) -> FreeSlots<'a, S> {
        FreeSlots { pool, taken: EngineVec::new_in(Own).into_iter(), wanted: pages }
    }

    /// The next free slot, if the pool has one.
    pub(crate) fn next(&mut self) -> Option<Slot> {
        self.taken.next().or_else(|| {
            self.taken = self.pool.take_slots(self.wanted.clamp(1, MAX_TAKEN_SLOTS)).into_iter();
            self.wanted = self.wanted.saturating_sub(self.taken.len());
            self.taken.next()
        })
    }
}

impl<S: Sys> Drop for FreeSlots<'_, S> {
    fn drop(&mut self) {
        self.pool.give_up_slots(self.taken.by_ref());
    }
}
