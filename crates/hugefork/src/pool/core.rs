//! The part of a pool that works on any [`Sys`]: its blocks, their memory, and where regions would like to live.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hugefork_kernels::{Kernels, Side, Target, Use};

use super::frames::{Content, Frames, Taken};
use super::holders::Holders;
use super::ranges::Ranges;
use super::stock::Stock;
use crate::error::{RegionError, SystemError};
use crate::own::Counted;
use crate::stats::Registry;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::table::Booked;
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
    /// Blocks that stay out of use because the kernel refused to unmap them.
    pub(crate) leaked: AtomicUsize,
    pub(crate) holders: Holders,
    /// Counts calls of `lazy_free`, so that what was freed first is dropped first.
    pub(crate) marks: AtomicU32,
    homes: Mutex<Ranges>,
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
            leaked: AtomicUsize::new(0),
            holders: Holders::default(),
            marks: AtomicU32::new(0),
            homes: Mutex::new(Ranges::new(blocks)),
        }
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

    /// Gets memory for fresh blocks that the caller just took.
    pub(crate) fn obtain(&self, run: Taken, touched: usize) -> Result<(), SystemError> {
        self.sys.obtain(self.offset(run.first), self.block_size.len_of(run.count), touched)?;
        run.blocks().for_each(|block| self.frames.set_content(block, Content::Clean));
        Ok(())
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
        self.release_and(block, Booked::No)
    }

    /// As [`PoolCore::release`]; the last holder may keep the block booked for its entry.
    pub(crate) fn release_and(&self, block: BlockId, keep: Booked) -> bool {
        let was_last = self.frames.drop_reference(block, keep);
        if was_last {
            self.nudge_stock();
        }
        was_last
    }

    /// Gives blocks back that were taken for nothing.
    pub(crate) fn give_back(&self, taken: Taken) {
        taken.blocks().for_each(|block| {
            self.release_and(block, taken.booked);
        });
    }

    /// Sets a range of `count` neighbouring blocks aside as the place where a region would like its blocks, so that
    /// neighbours in the region are neighbours in the pool and their mappings merge. A wish: the blocks in it may be
    /// taken by others, and there may be no such range. Runs of small blocks start at 2 MiB boundaries where they do in the
    /// region, so that a run of 2 MiB is mapped by one huge entry.
    pub(crate) fn claim_home(this: &Counted<Self>, count: usize) -> Option<Home<S>> {
        let _signals = SignalsBlocked::new();
        let blocks = this.homes().take(count, (HUGE_PAGE / this.block_size.bytes()).max(1))?;
        Some(Home { pool: this.clone(), blocks })
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

    fn homes(&self) -> MutexGuard<'_, Ranges> {
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A range of blocks that a region would like to live in, until this is dropped.
pub(crate) struct Home<S: Sys> {
    pool: Counted<PoolCore<S>>,
    blocks: Range<usize>,
}

impl<S: Sys> Home<S> {
    pub(crate) fn first(&self) -> BlockId {
        BlockId(self.blocks.start as u32)
    }
}

impl<S: Sys> Drop for Home<S> {
    fn drop(&mut self) {
        let _signals = SignalsBlocked::new();
        self.pool.homes().give_back(self.blocks.clone());
    }
}
