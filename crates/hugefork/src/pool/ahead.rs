//! Memory ahead of the faults: a thread gets memory for fresh blocks before a write needs it.
//!
//! ```text
//!   free blocks that have memory
//!   wanted   ┤·······╱╲················╱╲····     as many as first uses have taken so far, at least 16 MiB,
//!            │      ╱  ╲   faults     ╱  ╲        at most what the builder says; asleep in between:
//!   half     ┤·····╱    ╲·······     ╱            no timer, woken by the fault that takes one too many
//!            └────┴──────┴──────────┴─────▶
//! ```
//! What a program has used of a pool is the best guess at what it will use next: a region that is being filled goes on, and
//! after a snapshot all of what was written is to be copied once more. So a pool holds at most about twice the memory that it
//! was asked for. It begins where the last fault took its block and goes on in the same direction, since blocks are wanted
//! at the place in the pool that their entry has in its region.
//!
//! The first use of a pool, the first one after [`trim`](crate::Pool::trim), and the first one after the machine refused
//! find nothing there, get their memory themselves, and start it all. Nothing is got where little memory would be left
//! to the machine.
//!
//! A fault that wants just the block that memory is on its way for waits for it: to get it itself would take as long.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::core::PoolCore;
use super::frames::{Content, Taken};
use super::worker::{Nap, Worker};
use crate::own::Counted;
use crate::stats::count;
use crate::sys::Sys;
use crate::units::{BlockSize, HUGE_PAGE};

/// Got ahead of the second first use.
const FIRST: usize = 16 << 20;

/// Got ahead at most, unless the builder says otherwise.
pub(crate) const MOST: usize = 1 << 30;

/// Smaller pools get nothing ahead, unless the builder says so.
pub(crate) const SMALL: usize = 128 << 20;

/// Got between two looks at what the machine has left.
const LOOK: usize = 32 << 20;

/// How a pool's blocks got their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SupplyStats {
    /// Whether there is a thread that gets memory ahead.
    pub running: bool,
    /// Blocks that it got memory for.
    pub blocks_ahead: u64,
    /// CPU time that this took.
    pub time: Duration,
    /// Blocks that got their memory only when they were used: a write, fork, snapshot or call waited for it.
    pub blocks_late: u64,
    /// How often the thread stopped because the machine had no memory to spare.
    pub stopped: u64,
}

/// The part that faults see. Zero blocks at most: there is no thread, and nothing is ever woken.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Blocks that are got ahead at least and at most.
    first: usize,
    most: usize,
    nap: Nap,
    /// Blocks whose memory was used for the first time since memory was last given back or refused. None: nothing is wanted.
    used: AtomicUsize,
    /// The block at which the next one is likely to be wanted, and whether they come in descending order.
    next: AtomicUsize,
    is_down: AtomicBool,
    running: AtomicBool,
    blocks: AtomicU64,
    nanoseconds: AtomicU64,
    late: AtomicU64,
    stopped: AtomicU64,
}

impl Ahead {
    /// Gets `most` bytes ahead at most.
    pub(crate) fn new(most: usize, block_size: BlockSize) -> Ahead {
        let most = block_size.count(most);
        Ahead { first: block_size.count(FIRST).max(1).min(most), most, ..Ahead::default() }
    }

    /// Blocks got when they were used.
    pub(crate) fn note_late(&self, blocks: usize) {
        count(&self.late, blocks as u64);
    }

    /// Nothing is wanted until the next first use.
    pub(crate) fn rest(&self) {
        self.used.store(0, Ordering::SeqCst);
    }

    /// Free blocks that are to have memory.
    fn wanted(&self) -> usize {
        match self.used.load(Ordering::SeqCst) {
            0 => 0,
            used => used.max(self.first).min(self.most),
        }
    }

    pub(crate) fn stats(&self) -> SupplyStats {
        SupplyStats {
            running: self.running.load(Ordering::Relaxed),
            blocks_ahead: self.blocks.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)),
            blocks_late: self.late.load(Ordering::Relaxed),
            stopped: self.stopped.load(Ordering::Relaxed),
        }
    }
}

/// What came of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// So many blocks have memory now.
    Blocks(usize),
    /// There was no free fresh block.
    Nothing,
    /// There was no memory, or none to spare.
    Refused,
}

impl<S: Sys> PoolCore<S> {
    /// Starts the thread if the pool is to get memory ahead. `spare` says how many bytes the machine can spare; it is asked on
    /// the thread. Without a thread the pool works as if it were not to; the error says why there is none.
    pub(crate) fn start_ahead(this: &Counted<Self>, spare: fn() -> usize) -> io::Result<Option<Worker>> {
        if this.ahead.most == 0 {
            return Ok(None);
        }
        let (working, telling) = (this.clone(), this.clone());
        let work = move || working.keep_ahead(spare);
        let worker = Worker::start("hugefork-ahead", work, move || telling.ahead.nap.tell_to_end())?;
        this.ahead.running.store(true, Ordering::Relaxed);
        Ok(Some(worker))
    }

    /// Notes blocks that were just taken, and wakes the pool's threads if there is work for them. For the fault handler.
    pub(crate) fn note_taken(&self, taken: Taken) {
        if self.ahead.most > 0 {
            self.note_new(taken);
            if self.ahead.nap.is_asleep() && self.is_ahead_low() {
                self.ahead.nap.wake();
            }
        }
        self.nudge_stock();
    }

    /// Notes how many blocks were used for the first time, and where.
    fn note_new(&self, taken: Taken) {
        let (ahead, mut new) = (&self.ahead, 0);
        // Iterators would take more of the handler's stack than it has, without optimisation.
        let mut block = taken.first;
        while block.index() < taken.first.index() + taken.count {
            new += usize::from(self.frames.content(block) != Content::Used);
            block = block.offset(1);
        }
        if new > 0 {
            let is_down = block.index() <= ahead.next.load(Ordering::Relaxed);
            ahead.is_down.store(is_down, Ordering::Relaxed);
            ahead.next.store(if is_down { taken.first } else { block }.index(), Ordering::Relaxed);
            ahead.used.fetch_add(new, Ordering::SeqCst);
        }
    }

    fn is_ahead_low(&self) -> bool {
        self.frames.ready() < self.ahead.wanted().div_ceil(2) && self.frames.fresh() > 0
    }

    /// Gets memory ahead until told to stop. The body of the thread.
    fn keep_ahead(&self, spare: fn() -> usize) {
        let ahead = &self.ahead;
        let (mut filling, mut spared) = (false, 0);
        while !ahead.nap.is_over() {
            filling = if filling {
                self.frames.ready() < ahead.wanted() && self.frames.fresh() > 0
            } else {
                self.is_ahead_low()
            };
            if !filling {
                spared = 0;
                ahead.nap.sleep_unless(|| self.is_ahead_low());
                continue;
            }
            if spared == 0 {
                spared = self.block_size.count(spare().min(LOOK.max(self.block_size.bytes())));
            }
            match self.get_one_ahead(spared) {
                Got::Blocks(got) => spared = spared.saturating_sub(got),
                Got::Nothing => filling = false,
                Got::Refused => {
                    (filling, spared) = (false, 0);
                    count(&ahead.stopped, 1);
                    ahead.rest();
                }
            }
        }
    }

    /// Gets memory for the free fresh blocks of one piece, unless it is larger than what the machine can spare.
    pub(crate) fn get_one_ahead(&self, spared: usize) -> Got {
        let Some(piece) = self.next_piece() else { return Got::Nothing };
        if piece.len() > spared {
            return Got::Refused;
        }
        let started = self.sys.cpu_time();
        let taken = self.frames.take_fresh(piece.clone());
        if taken == 0 {
            // Somebody was faster.
            return Got::Nothing;
        }
        self.make_huge(piece.start);
        let obtained = self.obtain_coming(piece.clone());
        count(&self.ahead.nanoseconds, self.sys.cpu_time().saturating_sub(started));
        if !obtained {
            return Got::Refused;
        }
        count(&self.ahead.blocks, taken as u64);
        Got::Blocks(taken)
    }

    /// Gets memory for those blocks of a piece that were taken out of the free list for that, and gives them back. False if
    /// there was none.
    fn obtain_coming(&self, piece: Range<usize>) -> bool {
        let mut next = piece.start;
        while next < piece.end {
            let is_coming = |index: &usize| self.frames.is_coming(*index);
            let start = (next..piece.end).find(is_coming).unwrap_or(piece.end);
            let end = (start..piece.end).find(|index| !is_coming(index)).unwrap_or(piece.end);
            if start < end {
                let (from, to) = (self.block_size.len_of(start), self.block_size.len_of(end));
                // In steps: no mapping of the process can be changed during each.
                let mut steps = (from..to).step_by(HUGE_PAGE);
                if steps.any(|at| self.sys.obtain(at, HUGE_PAGE.min(to - at), 0).is_err()) {
                    self.frames.arrive(start..piece.end, Content::Fresh);
                    return false;
                }
                self.frames.arrive(start..end, Content::Clean);
            }
            next = end;
        }
        true
    }

    /// The next piece with free fresh blocks, in the direction in which blocks were taken last.
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
#[path = "ahead_tests.rs"]
mod tests;
