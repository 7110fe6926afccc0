//! Slots (slots.rs) with memory, for pages that are about to be captured.

use super::core::PoolCore;
use super::frames::{Content, Wanted};
use super::slots::Slot;
use crate::mem::{EngineVec, Own};
use crate::sys::Sys;
use crate::table::Reserved;
use crate::units::{BASE_PAGE, BlockId};

impl<S: Sys> PoolCore<S> {
    /// Free slots, with memory: `count`, or as many as there are.
    pub(crate) fn take_slots(&self, count: usize) -> EngineVec<Slot> {
        self.slots.take(count, self.block_size, || self.block_for_slots())
    }

    /// Gets memory for so many slots, as far as free blocks lack it.
    pub(crate) fn make_slots_ready(&self, count: usize) {
        if self.block_size.len_of(self.frames.ready()) < count * BASE_PAGE {
            self.give_up_slots(self.take_slots(count).into_iter());
        }
    }

    /// Gives slots back that a piece had, or that none has got.
    pub(crate) fn give_up_slots(&self, slots: impl Iterator<Item = Slot>) {
        self.slots.give_up(slots, self.block_size, |block| {
            self.release(block);
        });
    }

    /// A block with memory, whatever is in it.
    fn block_for_slots(&self) -> Option<BlockId> {
        // Regions settle from the beginning on. A fresh block has to wait for the kernel, which takes longer than to
        // fill it.
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

/// So many slots are taken at once, at most.
const MAX_TAKEN_SLOTS: usize = 4096;

/// Slots for pages that are about to be captured. Unused ones go back.
pub(crate) struct FreeSlots<'a, S: Sys> {
    pool: &'a PoolCore<S>,
    taken: EngineVec<Slot>,
    /// How many more pages there may be.
    wanted: usize,
}

impl<'a, S: Sys> FreeSlots<'a, S> {
    /// For so many pages, or some more.
    pub(crate) fn new(pool: &'a PoolCore<S>, pages: usize) -> FreeSlots<'a, S> {
        FreeSlots { pool, taken: EngineVec::new_in(Own), wanted: pages }
    }

    /// The next one, if there is one.
    pub(crate) fn next(&mut self) -> Option<Slot> {
        if self.taken.is_empty() {
            self.taken = self.pool.take_slots(self.wanted.clamp(1, MAX_TAKEN_SLOTS));
            self.wanted = self.wanted.saturating_sub(self.taken.len());
            // Neighbours lie in a row then.
            self.taken.reverse();
        }
        self.taken.pop()
    }
}

impl<S: Sys> Drop for FreeSlots<'_, S> {
    fn drop(&mut self) {
        self.pool.give_up_slots(self.taken.drain(..));
    }
}
