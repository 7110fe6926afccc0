//! Single pages that sets (page_set.rs) hold, in blocks of the pool.
//!
//! ```text
//!   block 10   slots 5120 … 5631, each with the number of pieces of sets that have it
//! ```
//! A slot is a base page of a block of the pool. A block goes back to the pool with its last slot. One that is used in
//! part stays, and its free slots are the next to be given out: the lowest first, so that the highest get empty.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::mem::{EngineBox, EngineVec, Own};
use crate::sync::SignalsBlocked;
use crate::units::{BASE_PAGE, BlockId, BlockSize};

/// A base page in the first 16 TiB of the pool: its number, plus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(NonZeroU32);

impl Slot {
    /// Whether all base pages of a block have such a number.
    pub(super) fn can_name(block: BlockId, size: BlockSize) -> bool {
        let end = (block.index() + 1) * (size.bytes() / BASE_PAGE);
        u32::try_from(end).is_ok()
    }

    fn new(number: usize) -> Slot {
        Slot(NonZeroU32::MIN.saturating_add(number as u32))
    }

    fn number(self) -> usize {
        self.0.get() as usize - 1
    }

    /// Where it starts in the pool's memory.
    pub(super) fn offset(self) -> usize {
        self.number() * BASE_PAGE
    }
}

/// A block that is given out in slots.
struct SlotBlock {
    /// For each slot, how many pieces have it.
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

struct SlotBlocks {
    /// One place for each block of the pool, up to the last that is given out in slots.
    all: EngineVec<Option<EngineBox<SlotBlock>>>,
    /// Those with free slots, in order.
    open: EngineVec<u32>,
}

impl Default for Slots {
    fn default() -> Slots {
        let blocks = SlotBlocks { all: EngineVec::new_in(Own), open: EngineVec::new_in(Own) };
        Slots { blocks: Mutex::new(blocks), given_back: AtomicUsize::new(0) }
    }
}

impl SlotBlock {
    fn new(size: BlockSize) -> SlotBlock {
        let mut holders = EngineVec::new_in(Own);
        holders.resize(size.bytes() / BASE_PAGE, 0);
        SlotBlock { holders, used: 0, next: 0 }
    }

    /// Gives out slots, numbered from `first` on, until there are `count`, or none is free.
    fn give(&mut self, first: usize, taken: &mut EngineVec<Slot>, count: usize) {
        while taken.len() < count && self.used < self.holders.len() {
            if self.holders[self.next] == 0 {
                self.holders[self.next] = 1;
                self.used += 1;
                taken.push(Slot::new(first + self.next));
            }
            self.next += 1;
        }
    }
}

impl SlotBlocks {
    /// The block that a slot lies in, and its place there. `per_block` slots are in each.
    fn place(&mut self, slot: Slot, per_block: usize) -> (&mut SlotBlock, usize) {
        let of = self.all[slot.number() / per_block].as_mut();
        (of.expect("a block with slots that are held"), slot.number() % per_block)
    }

    fn add(&mut self, block: BlockId, size: BlockSize) {
        let count = self.all.len().max(block.index() + 1);
        self.all.resize_with(count, || None);
        self.all[block.index()] = Some(EngineBox::new_in(SlotBlock::new(size), Own));
        self.open(block.index());
    }

    /// Notes that a block has free slots.
    fn open(&mut self, block: usize) {
        if let Err(at) = self.open.binary_search(&(block as u32)) {
            self.open.insert(at, block as u32);
        }
    }

    /// Notes that a block has none.
    fn close(&mut self, block: usize) {
        if let Ok(at) = self.open.binary_search(&(block as u32)) {
            self.open.remove(at);
        }
    }
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, SlotBlocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives out free slots, of blocks of this size, which `more` gives if there are too few: `count`, or as many as
    /// there are.
    pub(super) fn take(
        &self,
        count: usize,
        size: BlockSize,
        mut more: impl FnMut() -> Option<BlockId>,
    ) -> EngineVec<Slot> {
        let mut taken = EngineVec::with_capacity_in(count, Own);
        let _signals = SignalsBlocked::new();
        let mut blocks = self.lock();
        while taken.len() < count {
            let Some(block) = blocks.open.first().map(|block| *block as usize) else {
                let Some(block) = more() else { break };
                blocks.add(block, size);
                continue;
            };
            let of = blocks.all[block].as_mut().expect("a block with free slots");
            let first = block * of.holders.len();
            of.give(first, &mut taken, count);
            if of.used == of.holders.len() {
                blocks.close(block);
            }
        }
        taken
    }

    /// One piece more has these slots, which some piece has.
    pub(super) fn hold(&self, slots: impl Iterator<Item = Slot>, size: BlockSize) {
        let _signals = SignalsBlocked::new();
        let (mut blocks, per_block) = (self.lock(), size.bytes() / BASE_PAGE);
        for slot in slots {
            let (of, at) = blocks.place(slot, per_block);
            of.holders[at] += 1;
        }
    }

    /// One piece less has these slots. Blocks of which none is used any more go to `release`.
    pub(super) fn give_up(&self, slots: impl Iterator<Item = Slot>, size: BlockSize, mut release: impl FnMut(BlockId)) {
        let _signals = SignalsBlocked::new();
        let (mut blocks, per_block) = (self.lock(), size.bytes() / BASE_PAGE);
        for slot in slots {
            let (of, at) = blocks.place(slot, per_block);
            of.holders[at] -= 1;
            if of.holders[at] > 0 {
                continue;
            }
            let (was_full, block) = (of.used == per_block, slot.number() / per_block);
            of.used -= 1;
            of.next = of.next.min(at);
            if of.used == 0 {
                blocks.all[block] = None;
                blocks.close(block);
                release(BlockId(block as u32));
                self.given_back.fetch_add(1, Ordering::Relaxed);
            } else if was_full {
                blocks.open(block);
            }
        }
    }

    /// How many blocks have come back so far.
    pub(super) fn given_back(&self) -> usize {
        self.given_back.load(Ordering::Relaxed)
    }

    /// How many slots are held, and how many blocks they lie in.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let _signals = SignalsBlocked::new();
        let blocks = self.lock();
        let used = || blocks.all.iter().flatten().map(|of| of.used);
        (used().sum(), used().count())
    }

    /// The blocks that are given out in slots.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn blocks(&self) -> Vec<BlockId> {
        let blocks = self.lock();
        let is_there = |block: &usize| blocks.all[*block].is_some();
        (0..blocks.all.len()).filter(is_there).map(|block| BlockId(block as u32)).collect()
    }
}
