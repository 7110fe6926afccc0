//! The thread that gets memory ahead of the faults (`ahead`).

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::core::PoolCore;
use super::frames::Content;
use super::shortage::Idle;
use super::worker::{Slept, Worker};
use crate::mem::EngineArc;
use crate::stats::counters::count;
use crate::sys::{Merging, Sys};
use crate::units::{BlockId, HUGE_PAGE};

/// What is got between two looks at what the machine can spare.
const GOT_A_LOOK_BYTES: usize = 32 << 20;

/// How long the thread leaves a cut alone before it looks again.
const HELD_BACK_FOR: Duration = Duration::from_millis(1);

/// When no block was used for the first time for so long, what is ready goes back.
pub(crate) const UNUSED_GOES_BACK_AFTER: Duration = Duration::from_secs(1);

/// What came of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// So many blocks have got memory.
    Blocks(usize),
    /// No block was free and fresh.
    Nothing,
    /// The machine had no memory, or none to spare.
    Refused,
    /// The writers of a cut wait, and it changes mappings: each change would wait for this thread.
    HeldBack,
}

impl<S: Sys> PoolCore<S> {
    /// Starts the thread if the pool gets memory ahead. The thread asks `spare` how many bytes the machine can spare,
    /// and gives its memory back when nobody has used any for `patience`. Without the thread the pool works as if it
    /// got nothing ahead; the error says why there is none.
    pub(crate) fn start_ahead(
        this: &EngineArc<Self>,
        spare: fn() -> usize,
        patience: Duration,
    ) -> io::Result<Option<Worker>> {
        if this.ahead.most == 0 {
            return Ok(None);
        }
        let (working, telling) = (this.clone(), this.clone());
        let work = move || working.keep_ahead(spare, patience);
        let worker = Worker::start("hugefork-ahead", work, move || telling.ahead.parker.tell_to_end())?;
        this.ahead.running.store(true, Ordering::Relaxed);
        Ok(Some(worker))
    }

    /// Gets memory ahead until told to stop. This is the body of the thread.
    fn keep_ahead(&self, spare: fn() -> usize, patience: Duration) {
        let ahead = &self.ahead;
        let (mut filling, mut spared) = (false, 0);
        while !ahead.parker.is_over() {
            filling = if filling {
                self.frames.ready() < ahead.wanted() && self.frames.fresh() > 0
            } else {
                ahead.is_low(&self.frames)
            };
            if !filling {
                spared = 0;
                self.sleep(patience);
                continue;
            }
            if spared == 0 {
                spared = self.block_size.count(spare().min(GOT_A_LOOK_BYTES.max(self.block_size.bytes())));
            }
            match self.get_one_ahead(spared) {
                Got::Blocks(got) => spared = spared.saturating_sub(got),
                Got::Nothing => filling = false,
                Got::HeldBack => ahead.parker.pause(HELD_BACK_FOR),
                Got::Refused => {
                    (filling, spared) = (false, 0);
                    ahead.rest();
                    count(&ahead.stopped, 1);
                }
            }
        }
    }

    /// Sleeps until there is work. When nobody uses memory for `patience`, what is ready goes back first.
    fn sleep(&self, patience: Duration) {
        let ahead = &self.ahead;
        let is_low = || ahead.is_low(&self.frames);
        let used = ahead.used.load(Ordering::SeqCst);
        if used == 0 || !self.gives_back() {
            ahead.parker.sleep_unless(is_low);
        } else if ahead.parker.sleep_at_most(patience, is_low) == Slept::ToTheEnd
            && ahead.used.load(Ordering::SeqCst) == used
        {
            ahead.rest();
            self.give_back_unused();
        }
    }

    /// Whether memory that nobody has used goes back. hugetlb pages are set aside for the pool, and a zeroed stock is
    /// there because the program asked for it.
    fn gives_back(&self) -> bool {
        self.sys.merging() == Merging::Merge && !self.stock.is_wanted()
    }

    /// Gives the memory of free blocks that nobody has used back to the system.
    pub(crate) fn give_back_unused(&self) {
        let mut next = 0;
        while let Some(block) = self.frames.next_zeroed(next) {
            let piece = self.piece_of(block.index());
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

    /// Gets memory for the free fresh blocks of one piece, unless it is larger than what the machine can spare.
    pub(crate) fn get_one_ahead(&self, spared: usize) -> Got {
        let Some(piece) = self.next_piece() else { return Got::Nothing };
        if self.ahead.is_held_back() {
            return Got::HeldBack;
        }
        if piece.len() > spared {
            return Got::Refused;
        }
        let started = self.sys.cpu_time();
        let taken = self.frames.take_fresh(piece.clone());
        if taken == 0 {
            // Another thread was faster.
            return Got::Nothing;
        }
        self.make_huge(piece.start);
        let obtained = self.obtain_coming(piece.clone());
        count(&self.ahead.nanoseconds, self.sys.cpu_time().saturating_sub(started));
        if let Err(got) = obtained {
            return got;
        }
        count(&self.ahead.blocks, taken as u64);
        Got::Blocks(taken)
    }

    /// Gets memory for those blocks of a piece that were taken out of the free list, and gives them back, at the latest
    /// when something comes in between.
    fn obtain_coming(&self, piece: Range<usize>) -> Result<(), Got> {
        let mut next = piece.start;
        while next < piece.end {
            let is_coming = |index: &usize| self.frames.is_coming(*index);
            let start = (next..piece.end).find(is_coming).unwrap_or(piece.end);
            let end = (start..piece.end).find(|index| !is_coming(index)).unwrap_or(piece.end);
            if start < end {
                let (from, to) = (self.block_size.len_of(start), self.block_size.len_of(end));
                // It goes in steps, because no mapping of the process can be changed during one.
                let obtain = |at: usize| match self.ahead.is_held_back() {
                    true => Err(Got::HeldBack),
                    false => self.sys.obtain(at, HUGE_PAGE.min(to - at), 0).map_err(|_| Got::Refused),
                };
                if let Err(got) = (from..to).step_by(HUGE_PAGE).try_for_each(obtain) {
                    self.frames.arrive(start..piece.end, Content::Fresh);
                    return Err(got);
                }
                self.frames.arrive(start..end, Content::Clean);
            }
            next = end;
        }
        Ok(())
    }

    /// The next piece with free fresh blocks, in the direction in which blocks were last taken.
    fn next_piece(&self) -> Option<Range<usize>> {
        let (ahead, blocks) = (&self.ahead, self.frames.len());
        let size = self.piece_of(0).len();
        let pieces = blocks.div_ceil(size);
        let is_down = ahead.is_down.load(Ordering::Relaxed);
        let next = ahead.next.load(Ordering::Relaxed);
        let start = if is_down { next.saturating_sub(1) } else { next % blocks } / size;
        (0..pieces)
            .map(|by| if is_down { start + pieces - by } else { start + by } % pieces)
            .map(|piece| self.piece_of(piece * size))
            .find(|piece| piece.clone().any(|index| self.frames.is_free_and_fresh(index)))
    }
}

#[cfg(test)]
#[path = "supply_tests.rs"]
mod tests;
