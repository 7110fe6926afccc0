//! The state of each block of a pool: its number of holders, its content, and whether it is free.
//!
//! ```text
//! words     one u32 a block:   [ references : 30 | content : 2 ]
//! free      one bit a block, set when nobody holds it (see bits.rs)
//! zeroed    one bit a block, set when it is free and zero
//! ```
//! The tables take 4 bytes and two bits a block: 0.0002 % of a pool of 2 MiB blocks, 0.1 % at 4 KiB.
//!
//! Invariant: a block's free bit is set exactly when its reference count is zero and no thread is taking it. A thread
//! that takes a block clears the bit first, and a thread that gives one back sets the bit last. So the thread that
//! clears the bit owns the word.
//!
//! Free blocks are either available or reserved for an entry of a region with a reservation. A reservation is only a
//! number; it names no block. `available + reserved` is the number of free bits, except while blocks change hands.

use super::bits::{Bits, FreeBits};
use crate::mem::{self, EngineBox};
use crate::sync::WaitQueue;
use crate::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use crate::table::Reserved;
use crate::units::BlockId;

/// The content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Content {
    /// Never touched since the kernel gave it: it may have no memory yet, and it reads as zeros once it has.
    Fresh = 0,
    /// The block has memory, which is zero.
    Clean = 1,
    /// The block has memory that still holds the last holder's data, which the next holder must never see.
    Used = 2,
}

const CONTENT_MASK: u32 = 0b11;
const ONE_REFERENCE: u32 = 1 << 2;

impl Content {
    fn decode(word: u32) -> Content {
        match word & CONTENT_MASK {
            1 => Content::Clean,
            2 => Content::Used,
            _ => Content::Fresh,
        }
    }
}

/// The purpose that a block is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A first write, which needs zeros. A block that is zero already is preferred, even if it lies further away.
    Zeroed,
    /// A copy, which overwrites the whole block. Any content will do.
    Any,
}

/// Blocks that were taken together: `count` neighbours from `first` on, with the block `wanted` among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) first: BlockId,
    pub(crate) wanted: BlockId,
    pub(crate) count: usize,
    /// Whether the entries had these blocks reserved.
    pub(crate) reserved: Reserved,
}

impl Taken {
    /// No blocks.
    pub(crate) const NONE: Taken = Taken { first: BlockId(0), wanted: BlockId(0), count: 0, reserved: Reserved::No };

    /// The blocks in ascending order.
    pub(crate) fn blocks(self) -> impl Iterator<Item = BlockId> {
        (0..self.count).map(move |by| self.first.offset(by))
    }
}

/// The blocks of one pool. It is lock-free: the fault handler may call every method.
pub(crate) struct Frames {
    words: EngineBox<[AtomicU32]>,
    free: FreeBits,
    /// The free blocks that are zero and have memory. Other threads may take them at any time.
    pub(super) zeroed: Bits,
    /// Free blocks that are zero and have memory.
    zeroed_count: AtomicUsize,
    /// Free blocks that were never used.
    fresh_count: AtomicUsize,
    /// Blocks that may still be taken. A thread lowers this before it clears a free bit, and raises it after it has set
    /// one. So a thread that has lowered it is sure to find a set bit.
    available: AtomicUsize,
    /// Blocks that are reserved for entries.
    reserved: AtomicUsize,
    /// Rises whenever lazily freed blocks that could not be dropped may have become droppable, for example because a
    /// block has only one holder left.
    changes: AtomicU64,
    /// Counts threads that take runs: `[ started : 32 | under way : 32 ]`. Such a thread may have earmarked more blocks
    /// than it will find.
    pub(super) runs: AtomicU64,
    /// Rung when a thread gives back a block, a reference or a reservation.
    pub(crate) given_back: WaitQueue,
}

impl Frames {
    /// `count` blocks, all of them free and fresh.
    pub(crate) fn new(count: usize) -> Frames {
        Frames {
            // A zero word means: no references, fresh.
            words: mem::zeroed(count),
            zeroed: Bits::none(count),
            free: FreeBits::all(count),
            zeroed_count: AtomicUsize::new(0),
            fresh_count: AtomicUsize::new(count),
            available: AtomicUsize::new(count),
            reserved: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            given_back: WaitQueue::default(),
        }
    }

    /// A counter that rises when lazily freed blocks may have become droppable.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Raises [`Frames::changes`].
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// Blocks that nobody holds or has reserved.
    pub(crate) fn available(&self) -> usize {
        self.available.load(Ordering::Relaxed)
    }

    /// Blocks that are reserved.
    pub(crate) fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Blocks that nobody holds.
    pub(crate) fn free(&self) -> usize {
        self.available() + self.reserved()
    }

    /// Free blocks that are zero and have memory.
    pub(crate) fn zeroed(&self) -> usize {
        self.zeroed_count.load(Ordering::SeqCst)
    }

    /// Free blocks that need clearing. Blocks that are changing hands may be missed or counted twice.
    pub(crate) fn used_and_free(&self) -> usize {
        self.ready().saturating_sub(self.zeroed())
    }

    /// Free blocks that were never used, and have no memory.
    pub(crate) fn fresh(&self) -> usize {
        self.fresh_count.load(Ordering::SeqCst)
    }

    /// Free blocks that have memory. Blocks that are changing hands may be missed or counted twice.
    pub(crate) fn ready(&self) -> usize {
        self.free().saturating_sub(self.fresh())
    }

    /// Bytes of metadata.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.words) + self.zeroed.bytes() + self.free.bytes()
    }

    /// Takes the block `near` if it is free, or else the next free block after it. Also takes free neighbours without a
    /// gap, up to `before` on its left and `after` on its right. Returns `None` if the pool is full.
    ///
    /// Each taken block has one reference, which is the caller's; [`Frames::content`] says what is in it. With
    /// `reserved`, the caller has a reservation for each of these blocks, and the call cannot fail.
    pub(crate) fn take(
        &self,
        near: BlockId,
        before: usize,
        after: usize,
        wanted: Wanted,
        reserved: Reserved,
    ) -> Option<Taken> {
        const START: u64 = 1 << 32 | 1;
        let is_run = before + after > 0;
        if reserved == Reserved::No {
            self.insist(|| self.earmark(1, 1))?;
        }
        if is_run {
            self.runs.fetch_add(START, Ordering::SeqCst);
        }
        let neighbours = match reserved {
            Reserved::Yes => before + after,
            Reserved::No if is_run => self.earmark(0, before + after).unwrap_or(0),
            Reserved::No => 0,
        };
        let wanted = match wanted {
            Wanted::Zeroed => self.take_zeroed(near).unwrap_or_else(|| self.take_one(near)),
            Wanted::Any => self.take_one(near),
        };
        let (mut first, mut last) = (wanted, wanted);
        let mut left = neighbours;
        while left > 0 && last.0 - wanted.0 < after as u32 && self.take_exactly(last.offset(1)) {
            last = last.offset(1);
            left -= 1;
        }
        while left > 0 && wanted.0 - first.0 < before as u32 && first.0 > 0 && self.take_exactly(BlockId(first.0 - 1)) {
            first = BlockId(first.0 - 1);
            left -= 1;
        }
        let count = (last.0 - first.0 + 1) as usize;
        match reserved {
            Reserved::Yes => self.reserved.fetch_sub(count, Ordering::Relaxed),
            Reserved::No => self.available.fetch_add(left, Ordering::Release),
        };
        if is_run {
            self.runs.fetch_sub(1, Ordering::SeqCst);
            self.given_back.ring();
        }
        Some(Taken { first, wanted, count, reserved })
    }

    /// Reserves `count` blocks, all of them or none.
    pub(crate) fn reserve(&self, count: usize) -> Option<()> {
        self.insist(|| self.earmark(count, count))?;
        self.reserved.fetch_add(count, Ordering::Relaxed);
        Some(())
    }

    /// Gives up `count` reservations.
    pub(crate) fn unreserve(&self, count: usize) {
        self.reserved.fetch_sub(count, Ordering::Relaxed);
        self.available.fetch_add(count, Ordering::Release);
        self.given_back.ring();
    }

    /// Takes a zeroed block: `near` itself, or one shortly after it. Any block but `near` costs the region one more
    /// mapping for good, and costs small blocks their huge page. That is a fair price for a saved clear, but not for
    /// the memory that a fresh `near` still lacks.
    fn take_zeroed(&self, near: BlockId) -> Option<BlockId> {
        const SEARCHED_BLOCKS: usize = 1024;
        if self.zeroed() == 0 || self.is_free_and_fresh(near.index()) {
            return None;
        }
        let (mut from, end) = (near.index(), near.index() + SEARCHED_BLOCKS);
        while let Some(index) = self.zeroed.next(from..end) {
            if self.take_exactly(BlockId(index as u32)) {
                return Some(BlockId(index as u32));
            }
            from = index + 1;
        }
        None
    }

    /// Takes a free block that needs clearing out of the free list, the first from `from` on. The block still counts as
    /// available: a thread that needs it meanwhile waits for [`Frames::put_back`].
    pub(crate) fn take_used(&self, from: usize) -> Option<BlockId> {
        let take = |from| self.take_first(from, |block| self.take_if(block, Content::Used));
        take(from).or_else(|| take(0))
    }

    /// Puts a block with its new content back into the free list, after a call took it out while it still counted as
    /// available.
    pub(crate) fn put_back(&self, block: BlockId, content: Content) {
        self.words[block.index()].store(content as u32, Ordering::Relaxed);
        self.set_free(block, content);
        self.given_back.ring();
    }

    /// Whether the block at `index` seems to be free and fresh. Another thread may take it at any time.
    pub(crate) fn is_free_and_fresh(&self, index: usize) -> bool {
        // The word of a fresh block without references is zero.
        self.words[index].load(Ordering::Relaxed) == Content::Fresh as u32 && self.free.has(index)
    }

    /// The last free block that has memory. Other threads may take it at any time.
    pub(crate) fn last_ready(&self) -> Option<BlockId> {
        let is_ready = |block: &BlockId| self.free.has(block.index()) && self.content(*block) != Content::Fresh;
        (0..if self.ready() > 0 { self.len() } else { 0 }).rev().map(|index| BlockId(index as u32)).find(is_ready)
    }

    /// Takes a block that the caller has earmarked. A free bit is set somewhere, but this thread may miss it: other
    /// threads take and give back blocks during the search, or the zeroing thread is clearing the only one. In these
    /// cases the call waits.
    fn take_one(&self, near: BlockId) -> BlockId {
        let take = |from| self.take_first(from, |block| self.take_exactly(block));
        self.given_back.until(|| take(near.index()).or_else(|| take(0)))
    }

    /// The first free block from `from` on that `take` takes. Other threads may take it at any time.
    fn take_first(&self, mut from: usize, take: impl Fn(BlockId) -> bool) -> Option<BlockId> {
        while let Some(index) = self.free.next(from) {
            if take(BlockId(index as u32)) {
                return Some(BlockId(index as u32));
            }
            from = index + 1;
        }
        None
    }

    /// The content of a block that the caller holds.
    pub(crate) fn content(&self, block: BlockId) -> Content {
        Content::decode(self.words[block.index()].load(Ordering::Relaxed))
    }

    /// Sets the content of a block that the caller alone holds.
    pub(crate) fn set_content(&self, block: BlockId, content: Content) {
        self.words[block.index()].store(ONE_REFERENCE | content as u32, Ordering::Relaxed);
    }

    /// Marks all blocks clean: they have memory, which is zero. No thread may hold a block yet.
    pub(crate) fn mark_all_zeroed(&self) {
        for block in (0..self.len()).map(|index| BlockId(index as u32)) {
            let is_free = self.take_exactly(block);
            debug_assert!(is_free);
            self.put_back(block, Content::Clean);
        }
    }

    /// The number of holders.
    ///
    /// If the number is one and the caller is that holder, all accesses of earlier holders happened before this call.
    pub(crate) fn references(&self, block: BlockId) -> u32 {
        self.words[block.index()].load(Ordering::Acquire) / ONE_REFERENCE
    }

    /// Adds a holder. The caller must be a holder, or know that another holder stays.
    pub(crate) fn add_reference(&self, block: BlockId) {
        let before = self.words[block.index()].fetch_add(ONE_REFERENCE, Ordering::Relaxed);
        debug_assert!(before >= ONE_REFERENCE, "a free block got a holder");
    }

    /// Drops a holder's reference. The last holder's drop gives the block back to the pool with its present content:
    /// available to all, or reserved for the holder's entry. Returns true if this was the last reference.
    pub(crate) fn drop_reference(&self, block: BlockId, keep: Reserved) -> bool {
        let order = if seeded!("reference-dropped-without-order") { Ordering::Relaxed } else { Ordering::Release };
        let before = self.words[block.index()].fetch_sub(ONE_REFERENCE, order);
        debug_assert!(before >= ONE_REFERENCE, "a free block lost a holder");
        let was_last = before / ONE_REFERENCE == 1;
        if before / ONE_REFERENCE == 2 {
            self.note_change();
        }
        if was_last {
            // Accesses of earlier holders happen before anything that the next holder does with the block.
            fence(Ordering::Acquire);
            self.set_free(block, Content::decode(before));
            match keep {
                Reserved::Yes => self.reserved.fetch_add(1, Ordering::Release),
                Reserved::No => self.available.fetch_add(1, Ordering::Release),
            };
        }
        self.given_back.ring();
        was_last
    }

    /// Puts a block without references back into the free list.
    fn set_free(&self, block: BlockId, content: Content) {
        match content {
            Content::Clean => {
                self.zeroed.put(block.index(), Ordering::Relaxed);
                self.zeroed_count.fetch_add(1, Ordering::SeqCst);
            }
            Content::Fresh => {
                self.fresh_count.fetch_add(1, Ordering::SeqCst);
            }
            Content::Used => {}
        }
        self.free.put(block.index());
    }

    /// Earmarks up to `most` available blocks: the caller may then clear that many free bits. Returns `None` if fewer
    /// than `least` blocks are available.
    pub(super) fn earmark(&self, least: usize, most: usize) -> Option<usize> {
        let rest = |available: usize| (available >= least).then(|| available - available.min(most));
        let before = self.available.fetch_update(Ordering::SeqCst, Ordering::SeqCst, rest).ok()?;
        Some(before.min(most))
    }

    /// Repeats `try_once` until it succeeds, or until it fails while no thread is taking a run. A thread that takes a
    /// run may have earmarked more blocks than it finds neighbours, and soon gives the rest back.
    fn insist(&self, try_once: impl Fn() -> Option<usize>) -> Option<usize> {
        self.given_back.until(|| {
            let before = self.runs.load(Ordering::SeqCst);
            let done = try_once();
            let is_final = done.is_some() || before as u32 == 0 && self.runs.load(Ordering::SeqCst) == before;
            is_final.then_some(done)
        })
    }

    /// Takes exactly `block` out of the free list, with one reference. Returns false if it does not exist or is not
    /// free. The block still counts as available, unless the caller has earmarked it.
    pub(crate) fn take_exactly(&self, block: BlockId) -> bool {
        if !self.free.take(block.index()) {
            return false;
        }
        let content = self.content(block);
        match content {
            Content::Clean => {
                self.zeroed.take(block.index(), Ordering::Relaxed);
                self.zeroed_count.fetch_sub(1, Ordering::SeqCst);
            }
            Content::Fresh => {
                self.fresh_count.fetch_sub(1, Ordering::SeqCst);
            }
            Content::Used => {}
        }
        self.set_content(block, content);
        true
    }

    /// As [`Frames::take_exactly`], if the content is `wanted`. The content is checked again after the block was taken:
    /// since the first check, another thread may have used the block and returned it, or given its memory to the
    /// system.
    pub(crate) fn take_if(&self, block: BlockId, wanted: Content) -> bool {
        if self.content(block) != wanted || !self.take_exactly(block) {
            return false;
        }
        let content = if seeded!("taken-as-it-looked") { wanted } else { self.content(block) };
        if content != wanted {
            self.put_back(block, content);
        }
        content == wanted
    }
}
