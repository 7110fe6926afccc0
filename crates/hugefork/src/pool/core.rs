//! The part of a pool that works on any [`Sys`]: its blocks, their memory, and where regions would like to live.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use hugefork_kernels::{Kernels, Side, Target, Use};

use super::ahead::Ahead;
use super::frames::{Content, Frames, Taken, Wanted};
use super::holders::Holders;
use super::homes::Homes;
use super::stock::Stock;
use crate::own::Counted;
use crate::stats::counters::Registry;
use crate::sys::{Sys, SystemError};
use crate::table::Reserved;
use crate::terms::error::RegionError;
use crate::units::{BlockId, BlockSize, HUGE_PAGE};

/// One pool. Regions, snapshots and their holders share it and keep it alive.
pub(crate) struct PoolCore<S: Sys> {
    pub(crate) sys: S,
    pub(crate) frames: Frames,
    pub(crate) block_size: BlockSize,
    pub(crate) name: String,
    pub(crate) kernels: Kernels,
    pub(crate) registry: Registry,
    pub(crate) stock: Stock,
    pub(crate) ahead: Ahead,
    /// Blocks that stay out of use because the kernel refused to unmap them.
    pub(crate) leaked: AtomicUsize,
    pub(crate) holders: Holders,
    /// Counts calls of `lazy_free`, so that what was freed first is dropped first.
    pub(crate) marks: AtomicU32,
    pub(crate) homes: Counted<Homes>,
}

impl<S: Sys> PoolCore<S> {
    /// A pool of `blocks` fresh blocks, which clears and copies with `kernels`.
    pub(crate) fn new(
        sys: S,
        name: String,
        block_size: BlockSize,
        blocks: usize,
        kernels: Kernels,
        stock: Stock,
    ) -> Self {
        PoolCore {
            sys,
            frames: Frames::new(blocks),
            block_size,
            name,
            kernels,
            registry: Registry::default(),
            stock,
            ahead: Ahead::default(),
            leaked: AtomicUsize::new(0),
            holders: Holders::default(),
            marks: AtomicU32::new(0),
            homes: Counted::new(Homes::new(blocks)),
        }
    }

    /// The same pool, which gets memory ahead of the faults as `ahead` says.
    pub(crate) fn with_ahead(self, ahead: Ahead) -> Self {
        PoolCore { ahead, ..self }
    }

    /// Where a block starts in the pool's memory.
    pub(crate) fn offset(&self, block: BlockId) -> usize {
        self.block_size.len_of(block.index())
    }

    /// A block in the direct map.
    pub(crate) fn direct(&self, block: BlockId) -> *mut u8 {
        // SAFETY: the direct map spans all blocks, and `block` is one of them.
        unsafe { self.sys.direct().add(self.offset(block)) }
    }

    /// Makes blocks that the caller just took read as zeros, the byte `touched` of their run to be used next. Returns
    /// how many bytes hugefork cleared itself.
    pub(crate) fn zero(
        &self,
        taken: Taken,
        touched: Option<usize>,
        used: Use,
        side: Side,
    ) -> Result<usize, SystemError> {
        let mut cleared = 0;
        for (run, content) in self.runs_by_content(taken) {
            let start = self.block_size.len_of((run.first.0 - taken.first.0) as usize);
            let len = self.block_size.len_of(run.count);
            // A run that the byte is not in is treated from the end that is nearer to it.
            let target = touched.map(|byte| byte.saturating_sub(start).min(len - 1));
            match content {
                Content::Fresh => self.obtain(run, target.unwrap_or(0))?,
                Content::Clean => {}
                Content::Used => {
                    self.clear(run, len, target, used, side);
                    cleared += len;
                }
            }
        }
        Ok(cleared)
    }

    /// Clears neighbouring used blocks that the caller just took: small ones in one go, around the target.
    fn clear(&self, run: Taken, len: usize, target: Option<usize>, used: Use, side: Side) {
        let step = self.block_size.bytes().max(HUGE_PAGE).min(len);
        let kernel = self.kernels.clear(step, used).with_side(side);
        for start in (0..len).step_by(step) {
            let target = target.map_or(Target::Unknown, |byte| Target::At(byte.saturating_sub(start).min(step - 1)));
            // SAFETY: the caller holds these blocks alone and they are mapped nowhere but here; they are neighbours, so
            // `len` bytes from the first lie in the direct map, which is page-aligned. A run of small blocks is at most
            // 2 MiB long, and a run of larger ones a multiple of a block, so the steps end where it ends.
            unsafe { kernel.clear(self.direct(run.first).add(start), step, target) };
        }
    }

    /// Gets memory for fresh blocks that the caller just took, one piece after the other. Where that fails, those that got
    /// some are known to have it.
    pub(crate) fn obtain(&self, run: Taken, touched: usize) -> Result<(), SystemError> {
        let (first, end) = (run.first.index(), run.first.index() + run.count);
        let mut next = first;
        while next < end {
            let part = next..self.piece_of(next).end.min(end);
            let start = self.block_size.len_of(next - first);
            let len = self.block_size.len_of(part.len());
            self.make_huge(next);
            self.sys.obtain(self.block_size.len_of(next), len, touched.saturating_sub(start).min(len - 1))?;
            part.clone().for_each(|index| self.frames.set_content(BlockId(index as u32), Content::Clean));
            next = part.end;
        }
        self.ahead.note_late(run.count);
        Ok(())
    }

    /// A new block with what is in `block`, which the caller holds: one that is `reserved` for it, or any. Others may write to
    /// `block` meanwhile only if it is pinned, which leaves it open which of their writes are in the copy.
    pub(crate) fn copy_of(&self, block: BlockId, reserved: Reserved) -> Result<BlockId, Shortage> {
        let taken = self.frames.take(block, 0, 0, Wanted::Any, reserved).ok_or(Shortage::Blocks)?;
        self.note_taken(taken);
        let (new, len) = (taken.first, self.block_size.bytes());
        if self.frames.content(new) == Content::Fresh
            && let Err(error) = self.obtain(taken, 0)
        {
            self.give_back(taken);
            return Err(Shortage::Memory(error));
        }
        self.frames.set_content(new, Content::Used);
        // SAFETY: both lie in the direct map and are page-aligned; `new` is ours alone, and `block` is held by the caller.
        unsafe { self.kernels.copy(len, Use::Whole).copy(self.direct(new), self.direct(block), len, Target::Unknown) };
        Ok(new)
    }

    /// The blocks that memory is got for together: those of 2 MiB, or one larger one.
    pub(crate) fn piece_of(&self, block: usize) -> Range<usize> {
        let blocks = (HUGE_PAGE / self.block_size.bytes()).max(1);
        let start = block / blocks * blocks;
        start..(start + blocks).min(self.frames.len())
    }

    /// Before the first memory of a piece is got: makes huge pages of it, even if only a part of its blocks is needed now. Others
    /// may be doing the same: it changes no contents.
    pub(crate) fn make_huge(&self, block: usize) {
        let piece = self.piece_of(block);
        let len = self.block_size.len_of(piece.len());
        let is_fresh = |index: usize| self.frames.content(BlockId(index as u32)) == Content::Fresh;
        if len.is_multiple_of(HUGE_PAGE) && piece.clone().all(is_fresh) {
            self.sys.make_huge(self.block_size.len_of(piece.start), len);
        }
    }

    /// The parts of a run that hold the same.
    pub(crate) fn runs_by_content(&self, taken: Taken) -> impl Iterator<Item = (Taken, Content)> {
        let mut next = 0;
        std::iter::from_fn(move || {
            if next == taken.count {
                return None;
            }
            let first = taken.first.offset(next);
            let content = self.frames.content(first);
            let same = |by: &usize| self.frames.content(taken.first.offset(*by)) == content;
            let count = (next..taken.count).take_while(same).count();
            next += count;
            Some((Taken { first, wanted: first, count, ..taken }, content))
        })
    }

    /// Takes a holder of a block away; the last one gives it back to the pool, where it may be zeroed. True if it was the
    /// last.
    pub(crate) fn release(&self, block: BlockId) -> bool {
        self.release_and(block, Reserved::No)
    }

    /// As [`PoolCore::release`]; the last holder may keep the block reserved for its entry.
    pub(crate) fn release_and(&self, block: BlockId, keep: Reserved) -> bool {
        let was_last = self.frames.drop_reference(block, keep);
        if was_last {
            self.stock.nudge(&self.frames);
        }
        was_last
    }

    /// Tells the pool's threads of blocks that were just taken. For the fault handler.
    pub(crate) fn note_taken(&self, taken: Taken) {
        self.ahead.note_taken(&self.frames, taken);
        self.stock.nudge(&self.frames);
    }

    /// Gives blocks back that were taken for nothing.
    pub(crate) fn give_back(&self, taken: Taken) {
        taken.blocks().for_each(|block| {
            self.release_and(block, taken.reserved);
        });
    }

    /// The error for a fault or call that found no free block.
    pub(crate) fn full(&self) -> RegionError {
        RegionError::PoolFull {
            pool: self.name.clone(),
            capacity_blocks: self.frames.len(),
            block_size: self.block_size,
        }
    }

    /// Counts blocks that can never be used again.
    pub(crate) fn leak(&self, blocks: usize) {
        self.leaked.fetch_add(blocks, Ordering::Relaxed);
    }
}

/// Why there is no new block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shortage {
    /// None is free.
    Blocks,
    /// One is, and the kernel gives no memory for it.
    Memory(SystemError),
}
