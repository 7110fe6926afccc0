//! How the maintenance thread allocates memory ahead of cuts (ahead.rs).

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::core::PoolCore;
use super::frames::Content;
use super::shortage::Idle;
use crate::ranges::runs;
use crate::stats::counters::count;
use crate::sys::{Merging, Sys};
use crate::units::{BlockId, HUGE_PAGE};

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// This many blocks got memory.
    Blocks(usize),
    /// No block was free and fresh.
    Nothing,
    /// The machine had no memory, or could spare none.
    Refused,
    /// A cut holds its writers. It changes mappings, and each change would wait for this thread.
    HeldBack,
}

impl<S: Sys> PoolCore<S> {
    /// Allocates memory until the free blocks with memory are as many as the next cut would fill, if the machine can
    /// spare it.
    pub(super) fn get_ahead(&self, blocks: usize) {
        let (ahead, wanted) = (&self.ahead, blocks.min(self.ahead.most));
        if self.frames.ready() >= wanted || ahead.rests.load(Ordering::Relaxed) {
            return;
        }
        let mut spared = self.block_size.count(ahead.spare.map_or(usize::MAX, |spare| spare()));
        while self.frames.ready() < wanted && !self.maintenance.parker.is_over() {
            match self.get_one_ahead(spared) {
                Got::Blocks(got) => spared = spared.saturating_sub(got),
                Got::Nothing | Got::HeldBack => return,
                Got::Refused => {
                    count(&ahead.stopped, 1);
                    return ahead.rest();
                }
            }
        }
    }

    /// Gives the memory of free blocks that no holder has used back to the system, if some was allocated ahead. hugetlb
    /// pages stay, because they are set aside for the pool. A zeroed stock stays, because the program asked for it.
    pub(crate) fn give_back_unused(&self) {
        let has_some = self.ahead.has_some.swap(false, Ordering::Relaxed);
        if !has_some || self.sys.merging() == Merging::Separate || self.stock.high > 0 {
            return;
        }
        self.ahead.rest();
        let mut next = 0;
        while let Some(index) = self.frames.zeroed.next(next..self.frames.len()) {
            let piece = self.piece_of(index);
            next = piece.end;
            if !self.take_idle(piece.clone(), Idle::Unused) {
                continue;
            }
            let zeroed = piece.clone().filter(|&at| self.frames.content(BlockId(at as u32)) == Content::Clean).count();
            if self.punch_taken(piece).is_err() {
                return;
            }
            count(&self.ahead.given_back, zeroed as u64);
        }
    }

    /// Allocates memory for the free fresh blocks of one piece, unless the piece is larger than what the machine can
    /// spare. The blocks stay in the free list meanwhile: a write that takes one of them allocates its memory itself.
    pub(crate) fn get_one_ahead(&self, spared: usize) -> Got {
        let Some(piece) = self.next_piece() else { return Got::Nothing };
        if self.ahead.is_held_back() {
            return Got::HeldBack;
        }
        if piece.len() > spared {
            return Got::Refused;
        }
        let started = self.sys.cpu_time();
        self.make_huge(piece.start);
        let fresh = runs(piece, |index| self.frames.is_free_and_fresh(index));
        let got: Result<usize, Got> = fresh.map(|run| self.obtain_free(run)).sum();
        let got = got.map_or_else(|other| other, Got::Blocks);
        count(&self.ahead.nanoseconds, self.sys.cpu_time().saturating_sub(started));
        if let Got::Blocks(blocks) = got {
            self.ahead.has_some.store(true, Ordering::Relaxed);
            count(&self.ahead.blocks, blocks as u64);
        }
        got
    }

    /// Allocates memory for a run of blocks while they are free and fresh. Returns how many have memory then.
    fn obtain_free(&self, run: Range<usize>) -> Result<usize, Got> {
        let (from, to) = (self.block_size.len_of(run.start), self.block_size.len_of(run.end));
        // The memory is allocated in steps, because no mapping of the process can change during one.
        for at in (from..to).step_by(HUGE_PAGE) {
            if !self.frames.is_free_and_fresh(self.block_size.count(at)) {
                break;
            }
            if self.ahead.is_held_back() {
                return Err(Got::HeldBack);
            }
            self.sys.obtain(at, HUGE_PAGE.min(to - at), 0).map_err(|_| Got::Refused)?;
        }
        let mut ready = 0;
        for block in run.map(|index| BlockId(index as u32)).filter(|&block| self.frames.take_if(block, Content::Fresh))
        {
            // Meanwhile a holder may have used the block, or a trim may have taken its memory. So this asks again,
            // which takes a microsecond if the memory is there.
            let is_there = self.sys.obtain(self.offset(block), self.block_size.bytes(), 0).is_ok();
            self.frames.put_back(block, if is_there { Content::Clean } else { Content::Fresh });
            ready += usize::from(is_there);
        }
        Ok(ready)
    }

    /// The last piece with free fresh blocks, because captured pages go to the end of the pool, which regions reach
    /// last.
    fn next_piece(&self) -> Option<Range<usize>> {
        let size = self.piece_of(0).len();
        let mut pieces = (0..self.frames.len().div_ceil(size)).rev().map(|piece| self.piece_of(piece * size));
        pieces.find(|piece| piece.clone().any(|index| self.frames.is_free_and_fresh(index)))
    }
}

#[cfg(test)]
#[path = "supply_tests.rs"]
mod tests;
