//! Slots: base pages of the pool that each hold one page of a page set (page_set.rs).
//!
//! ```text
//!   block 10   slots 5120 … 5631, each with the number of pieces of sets that have it
//! ```
//! A block is divided into slots when pages need some. It goes back to the pool with its last used slot. Free slots of
//! a partly used block are given out next, and the lowest block comes first, so that the highest blocks become empty.

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
    /// Whether all base pages of a block have a number that fits into a slot.
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

    /// The offset of the slot in the pool's memory, in bytes.
    pub(super) fn offset(self) -> usize {
        self.number() * BASE_PAGE
    }
}

/// A block that is divided into slots.
struct SlotBlock {
    /// For each slot, the number of pieces that have it.
    holders: EngineVec<u32>,
    used: usize,
    /// All slots before this one are used.
    next: usize,
}

/// All blocks of a pool that are divided into slots.
pub(crate) struct Slots {
    blocks: Mutex<SlotBlocks>,
    given_back: AtomicUsize,
}

struct SlotBlocks {
    /// One element for each block of the pool, up to the last that is divided into slots.
    all: EngineVec<Option<EngineBox<SlotBlock>>>,
    /// The blocks with free slots, in ascending order.
    open: EngineVec<u32>,
    /// The number of slots of each block.
    per_block: usize,
}

impl SlotBlock {
    /// Gives out free slots until there are `count`, or until none is left. `first` is the number of the block's first
    /// slot.
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
    /// The block that a slot lies in, and the slot's index in it.
    fn place(&mut self, slot: Slot) -> (&mut SlotBlock, usize) {
        let of = self.all[slot.number() / self.per_block].as_mut();
        (of.expect("a block with slots that are held"), slot.number() % self.per_block)
    }

    fn add(&mut self, block: BlockId) {
        let mut holders = EngineVec::new_in(Own);
        holders.resize(self.per_block, 0);
        let count = self.all.len().max(block.index() + 1);
        self.all.resize_with(count, || None);
        self.all[block.index()] = Some(EngineBox::new_in(SlotBlock { holders, used: 0, next: 0 }, Own));
        self.open(block.index());
    }

    /// Notes that a block has free slots.
    fn open(&mut self, block: usize) {
        if let Err(at) = self.open.binary_search(&(block as u32)) {
            self.open.insert(at, block as u32);
        }
    }

    /// Notes that a block has no free slot.
    fn close(&mut self, block: usize) {
        if let Ok(at) = self.open.binary_search(&(block as u32)) {
            self.open.remove(at);
        }
    }
}

impl Slots {
    /// No slots, for a pool with blocks of size `size`.
    pub(super) fn new(size: BlockSize) -> Slots {
        let (all, open) = (EngineVec::new_in(Own), EngineVec::new_in(Own));
        let blocks = SlotBlocks { all, open, per_block: size.bytes() / BASE_PAGE };
        Slots { blocks: Mutex::new(blocks), given_back: AtomicUsize::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, SlotBlocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `count` free slots, or as many as there are. If too few are free, `more` provides further blocks.
    pub(super) fn take(&self, count: usize, mut more: impl FnMut() -> Option<BlockId>) -> EngineVec<Slot> {
        let mut taken = EngineVec::with_capacity_in(count, Own);
        let _signals = SignalsBlocked::new();
        let mut blocks = self.lock();
        while taken.len() < count {
            let Some(block) = blocks.open.first().map(|block| *block as usize) else {
                let Some(block) = more() else { break };
                blocks.add(block);
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

    /// Counts one more piece for each of these slots, which some piece already has.
    pub(super) fn hold(&self, slots: impl Iterator<Item = Slot>) {
        let _signals = SignalsBlocked::new();
        let mut blocks = self.lock();
        for slot in slots {
            let (of, at) = blocks.place(slot);
            of.holders[at] += 1;
        }
    }

    /// Counts one piece less for each of these slots. Blocks whose last slot becomes free go to `release`.
    pub(super) fn give_up(&self, slots: impl Iterator<Item = Slot>, mut release: impl FnMut(BlockId)) {
        let _signals = SignalsBlocked::new();
        let mut blocks = self.lock();
        let per_block = blocks.per_block;
        for slot in slots {
            let (of, at) = blocks.place(slot);
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

    /// How many blocks have gone back to the pool so far.
    pub(super) fn given_back(&self) -> usize {
        self.given_back.load(Ordering::Relaxed)
    }

    /// The number of used slots, and the number of blocks that they lie in.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let _signals = SignalsBlocked::new();
        let blocks = self.lock();
        let used = || blocks.all.iter().flatten().map(|of| of.used);
        (used().sum(), used().count())
    }

    /// The number of free slots of blocks that are divided into slots.
    pub(super) fn free(&self) -> usize {
        let _signals = SignalsBlocked::new();
        let blocks = self.lock();
        let open = blocks.open.iter().filter_map(|block| blocks.all[*block as usize].as_ref());
        open.map(|of| of.holders.len() - of.used).sum()
    }

    /// The blocks that are divided into slots.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn blocks(&self) -> Vec<BlockId> {
        let blocks = self.lock();
        let is_there = |block: &usize| blocks.all[*block].is_some();
        (0..blocks.all.len()).filter(is_there).map(|block| BlockId(block as u32)).collect()
    }
}
