//! Single pages that sets (page_set.rs) hold, in blocks of the pool.
//!
//! ```text
//!   block 10   slots 5120 … 5631, each with the number of sets that have it
//! ```
//! A slot is a base page of a block of the pool. A block goes back to the pool with its last slot. One that is used in
//! part stays, and its free slots are the next to be given out: the lowest first, so that the highest get empty.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::mem::{EngineVec, Own};
use crate::sync::SignalsBlocked;
use crate::units::{BASE_PAGE, BlockId, BlockSize};

/// The number of a base page in the first 16 TiB of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(u32);

impl Slot {
    /// Whether all base pages of a block have such a number.
    pub(super) fn can_name(block: BlockId, size: BlockSize) -> bool {
        let end = (block.index() + 1) * (size.bytes() / BASE_PAGE);
        u32::try_from(end).is_ok()
    }

    /// Where it starts in the pool's memory.
    pub(super) fn offset(self) -> usize {
        self.0 as usize * BASE_PAGE
    }
}

/// A block that is given out in slots.
struct SlotBlock {
    block: BlockId,
    /// For each slot, how many sets have it.
    holders: EngineVec<u32>,
    used: usize,
    /// All slots before this one are used.
    next: usize,
}

/// The blocks of a pool that are given out in slots.
pub(crate) struct Slots {
    blocks: Mutex<SlotBlocks>,
    given_back: AtomicUsize,
}

/// These blocks, in order.
struct SlotBlocks {
    all: EngineVec<SlotBlock>,
    /// All slots of the blocks before this one are used.
    next: usize,
}

impl Default for Slots {
    fn default() -> Slots {
        let blocks = SlotBlocks { all: EngineVec::new_in(Own), next: 0 };
        Slots { blocks: Mutex::new(blocks), given_back: AtomicUsize::new(0) }
    }
}

impl SlotBlock {
    fn new(block: BlockId, size: BlockSize) -> SlotBlock {
        let mut holders = EngineVec::new_in(Own);
        holders.resize(size.bytes() / BASE_PAGE, 0);
        SlotBlock { block, holders, used: 0, next: 0 }
    }

    /// Gives out slots until there are `count`, or none is free.
    fn give(&mut self, taken: &mut EngineVec<Slot>, count: usize) {
        let first = self.block.index() * self.holders.len();
        while taken.len() < count && self.used < self.holders.len() {
            if self.holders[self.next] == 0 {
                self.holders[self.next] = 1;
                self.used += 1;
                taken.push(Slot((first + self.next) as u32));
            }
            self.next += 1;
        }
    }
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, SlotBlocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives out free slots in order, of blocks of this size, which `more` gives if there are too few: `count`, or as
    /// many as there are. Allocates.
    pub(super) fn take(
        &self,
        count: usize,
        size: BlockSize,
        mut more: impl FnMut() -> Option<BlockId>,
    ) -> EngineVec<Slot> {
        let mut taken = EngineVec::with_capacity_in(count, Own);
        let _signals = SignalsBlocked::new();
        let mut blocks = self.lock();
        let SlotBlocks { all, next } = &mut *blocks;
        while taken.len() < count {
            if let Some(of) = all.get_mut(*next) {
                of.give(&mut taken, count);
                *next += usize::from(of.used == of.holders.len());
                continue;
            }
            let Some(block) = more() else { break };
            let at = all.partition_point(|of| of.block.index() < block.index());
            all.insert(at, SlotBlock::new(block, size));
            all[at].give(&mut taken, count);
            // All others are full.
            *next = if all[at].used < all[at].holders.len() { at } else { all.len() };
        }
        taken.sort_unstable();
        taken
    }

    /// One set more has these slots, which some set has.
    pub(super) fn hold(&self, slots: impl Iterator<Item = Slot>) {
        let mut slots = slots.peekable();
        if slots.peek().is_none() {
            return;
        }
        let _signals = SignalsBlocked::new();
        let mut blocks = self.lock();
        let mut last = 0;
        slots.for_each(|slot| {
            let (of, at) = place(&blocks.all, slot, last);
            blocks.all[of].holders[at] += 1;
            last = of;
        });
    }

    /// One set less has these slots. Blocks of which none is used any more go to `release`.
    pub(super) fn give_up(&self, slots: impl Iterator<Item = Slot>, mut release: impl FnMut(BlockId)) {
        let mut slots = slots.peekable();
        if slots.peek().is_none() {
            return;
        }
        let _signals = SignalsBlocked::new();
        let mut blocks = self.lock();
        let SlotBlocks { all, next } = &mut *blocks;
        let mut last = 0;
        for slot in slots {
            let (of, at) = place(all, slot, last);
            last = of;
            let held = &mut all[of];
            held.holders[at] -= 1;
            if held.holders[at] == 0 {
                held.used -= 1;
                held.next = held.next.min(at);
                *next = (*next).min(of);
                if held.used == 0 {
                    release(all.remove(of).block);
                    self.given_back.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// How many blocks have come back so far.
    pub(super) fn given_back(&self) -> usize {
        self.given_back.load(Ordering::Relaxed)
    }

    /// How many slots some set has, and how many blocks they lie in.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let _signals = SignalsBlocked::new();
        let blocks = self.lock();
        (blocks.all.iter().map(|of| of.used).sum(), blocks.all.len())
    }

    /// The blocks that are given out in slots.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn blocks(&self) -> Vec<BlockId> {
        self.lock().all.iter().map(|of| of.block).collect()
    }
}

/// Which of the blocks has a slot, and where in it that lies. It is often the block that had the `last` slot, since a
/// cut takes neighbours.
fn place(blocks: &[SlotBlock], slot: Slot, last: usize) -> (usize, usize) {
    let per_block = blocks.first().map_or(1, |of| of.holders.len());
    let (block, at) = (slot.0 as usize / per_block, slot.0 as usize % per_block);
    match blocks.get(last).is_some_and(|of| of.block.index() == block) {
        true => (last, at),
        false => (blocks.partition_point(|of| of.block.index() < block), at),
    }
}
