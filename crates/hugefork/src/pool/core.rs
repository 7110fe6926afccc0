//! The part of a pool that works on any [`Sys`]: its blocks, and the code that allocates, clears, copies and frees
//! them.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use hugefork_kernels::{Kernel, Kernels, Side, Target, Use, Work};

use super::ahead::Ahead;
use super::frames::{Content, Frames, Taken, Wanted};
use super::holders::Holders;
use super::maintenance::Maintenance;
use super::slots::Slots;
use super::stock::Stock;
use super::unheld::Unheld;
use crate::mem::EngineArc;
use crate::ranges::Ranges;
use crate::stats::counters::{Registry, count};
use crate::sys::{Sys, SystemError};
use crate::table::Reserved;
use crate::types::error::RegionError;
use crate::units::{BASE_PAGE, BlockId, BlockSize, HUGE_PAGE};

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
    /// Blocks that are never used again, because the kernel refused to unmap them.
    pub(crate) leaked: AtomicUsize,
    pub(crate) holders: Holders,
    /// Numbers the calls of `lazy_free`, so that the contents that were freed first are dropped first.
    pub(crate) marks: AtomicU32,
    /// The ranges that are no region's placement.
    pub(crate) placements: EngineArc<Mutex<Ranges>>,
    pub(crate) maintenance: Maintenance,
    pub(crate) slots: Slots,
    pub(crate) unheld: Unheld,
    /// Snapshot pages that the process holds copies of, so that programs can read snapshots by address.
    pub(crate) pages_in_views: AtomicUsize,
}

impl<S: Sys> PoolCore<S> {
    /// A pool of `blocks` fresh blocks that clears and copies with `kernels`, and allocates nothing ahead.
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
            placements: EngineArc::new(Mutex::new(Ranges::new(blocks))),
            maintenance: Maintenance::default(),
            slots: Slots::new(block_size),
            unheld: Unheld::default(),
            pages_in_views: AtomicUsize::new(0),
        }
    }

    /// The offset of a block in the pool's memory.
    pub(crate) fn offset(&self, block: BlockId) -> usize {
        self.block_size.len_of(block.index())
    }

    /// The address of a block in the direct map.
    pub(crate) fn direct(&self, block: BlockId) -> *mut u8 {
        // SAFETY: the direct map spans all blocks, and `block` is one of them.
        unsafe { self.sys.direct().add(self.offset(block)) }
    }

    /// The kernel for blocks of `len` bytes.
    pub(crate) fn kernel(&self, what: Work, len: usize, manner: Manner) -> Kernel {
        self.kernels.pick(what, len, manner.used).with_side(manner.side)
    }

    /// Makes blocks that the caller has just taken read as zeros. `touched` is the byte of the run that the program
    /// will access next. Returns how many bytes hugefork cleared itself.
    pub(crate) fn zero(&self, taken: Taken, touched: Option<usize>, manner: Manner) -> Result<usize, SystemError> {
        let mut cleared = 0;
        for (run, content) in self.runs_by_content(taken) {
            let start = self.block_size.len_of((run.first.0 - taken.first.0) as usize);
            let len = self.block_size.len_of(run.count);
            // If the byte lies outside a run, the nearer end is the target.
            let target = touched.map(|byte| byte.saturating_sub(start).min(len - 1));
            match content {
                Content::Fresh => self.obtain(run, target.unwrap_or(0))?,
                Content::Clean => {}
                Content::Used => {
                    self.clear(run, len, target, manner);
                    cleared += len;
                }
            }
        }
        Ok(cleared)
    }

    /// Clears neighbouring used blocks that the caller has just taken. Small blocks are cleared in one call of up to 2
    /// MiB, which ends at the target.
    fn clear(&self, run: Taken, len: usize, target: Option<usize>, manner: Manner) {
        let step = self.block_size.bytes().max(HUGE_PAGE).min(len);
        let kernel = self.kernel(Work::Clear, step, manner);
        for start in (0..len).step_by(step) {
            let target = target.map_or(Target::Unknown, |byte| Target::At(byte.saturating_sub(start).min(step - 1)));
            // SAFETY: the caller alone holds these blocks, and they are mapped nowhere else. They are neighbours, so
            // `len` bytes from the first lie in the direct map, which is page-aligned. A run of small blocks is at most
            // 2 MiB long, and the length of a run of larger blocks is a multiple of the block size, so the steps end
            // where the run ends.
            unsafe { kernel.clear(self.direct(run.first).add(start), step, target) };
        }
    }

    /// Allocates memory for fresh blocks that the caller has just taken, piece by piece. If that fails, the blocks that
    /// have got memory are marked clean.
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
        count(&self.ahead.late, run.count as u64);
        Ok(())
    }

    /// Copies `block`, which the caller holds, to a new block and returns the new one. `reserved` says whether the
    /// caller has a reservation to use for it. Other threads may write to `block` meanwhile only if it is pinned; the
    /// copy then contains any part of their writes.
    pub(crate) fn copy_of(&self, block: BlockId, reserved: Reserved) -> Result<BlockId, Shortage> {
        self.copy_near(block, block, reserved)
    }

    /// As [`PoolCore::copy_of`], but takes the block `wish` if that is free.
    pub(crate) fn copy_near(&self, wish: BlockId, block: BlockId, reserved: Reserved) -> Result<BlockId, Shortage> {
        let taken = self.frames.take(wish, 0, 0, Wanted::Any, reserved).ok_or(Shortage::Blocks)?;
        self.stock.nudge(&self.frames);
        let bytes = self.offset(block)..self.offset(block) + self.block_size.bytes();
        // The system may not know of holes.
        let is_all_there = self.sys.next_memory(bytes.clone()).as_ref() == Some(&bytes);
        let copied = if is_all_there { self.copy_whole(taken, block) } else { self.copy_parts(taken, &bytes) };
        copied.map(|()| taken.first).map_err(|error| {
            self.give_back(taken);
            Shortage::Memory(error)
        })
    }

    /// Copies a block to one that was just taken.
    fn copy_whole(&self, taken: Taken, block: BlockId) -> Result<(), SystemError> {
        let (new, len) = (taken.first, self.block_size.bytes());
        if self.frames.content(new) == Content::Fresh {
            self.obtain(taken, 0)?;
        }
        self.frames.set_content(new, Content::Used);
        // SAFETY: both blocks lie in the direct map and are page-aligned; only the caller holds `new`, and it holds
        // `block`.
        unsafe { self.kernels.copy(len, Use::Whole).copy(self.direct(new), self.direct(block), len, Target::Unknown) };
        Ok(())
    }

    /// Copies the block at these bytes of the pool to one that was just taken. Only those parts get memory that have
    /// memory in the source.
    fn copy_parts(&self, taken: Taken, from: &Range<usize>) -> Result<(), SystemError> {
        let (new, to) = (taken.first, self.offset(taken.first));
        if self.frames.content(new) != Content::Fresh {
            // SAFETY: only this call holds the new block, and no region or snapshot maps it.
            unsafe { self.sys.punch(to, from.len()) }?;
        }
        // The block is marked used only once it has memory, because used blocks may be accessed in the direct map.
        let obtain = |at: usize, len: usize| {
            self.sys.obtain(to + at, len, 0)?;
            self.frames.set_content(new, Content::Used);
            Ok(())
        };
        if self.sys.next_memory(from.clone()).is_none() {
            // The source has no memory. When memory is short, the kernel takes back pages that nobody has written, even
            // those below private copies. The caller then writes the private copies into the new block through the
            // direct map.
            return obtain(0, BASE_PAGE);
        }
        let mut rest = from.clone();
        while let Some(part) = self.sys.next_memory(rest.clone()) {
            let (at, len) = (part.start - from.start, part.len());
            obtain(at, len)?;
            // SAFETY: both parts lie in the direct map, in different blocks; only this call holds the new block, and
            // the caller holds the other.
            unsafe { self.direct(new).add(at).copy_from_nonoverlapping(self.sys.direct().add(part.start), len) };
            rest.start = part.end;
        }
        Ok(())
    }

    /// The piece that `block` lies in: blocks that get memory together. A piece is 2 MiB of small blocks, or one larger
    /// block.
    pub(crate) fn piece_of(&self, block: usize) -> Range<usize> {
        let blocks = (HUGE_PAGE / self.block_size.bytes()).max(1);
        let start = block / blocks * blocks;
        start..(start + blocks).min(self.frames.len())
    }

    /// Asks for huge pages in a piece before it gets its first memory, even if only some of its blocks are needed now.
    /// Several threads may ask at the same time, because the request changes no contents.
    pub(crate) fn make_huge(&self, block: usize) {
        let piece = self.piece_of(block);
        let len = self.block_size.len_of(piece.len());
        let is_fresh = |index: usize| self.frames.content(BlockId(index as u32)) == Content::Fresh;
        if len.is_multiple_of(HUGE_PAGE) && piece.clone().all(is_fresh) {
            self.sys.make_huge(self.block_size.len_of(piece.start), len);
        }
    }

    /// Splits a run into parts whose blocks have the same content.
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

    /// Drops a reference to a block. The drop of the last reference gives the block back to the pool, where the zeroing
    /// thread may clear it. Returns true if this was the last.
    pub(crate) fn release(&self, block: BlockId) -> bool {
        self.release_and(block, Reserved::No)
    }

    /// As [`PoolCore::release`], but after the last reference the block may stay reserved for the holder's entry.
    pub(crate) fn release_and(&self, block: BlockId, keep: Reserved) -> bool {
        let was_last = self.frames.drop_reference(block, keep);
        if was_last {
            self.stock.nudge(&self.frames);
        }
        was_last
    }

    /// Gives back blocks that the caller took but did not use.
    pub(crate) fn give_back(&self, taken: Taken) {
        taken.blocks().for_each(|block| _ = self.release_and(block, taken.reserved));
    }

    /// The error of a call that found no free block.
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

/// How blocks are cleared or copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) used: Use,
    pub(crate) side: Side,
}

/// Why there is no new block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shortage {
    /// No block is free.
    Blocks,
    /// A block is free, but the kernel gives no memory for it.
    Memory(SystemError),
}
