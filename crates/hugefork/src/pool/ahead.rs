//! Memory ahead of the faults: a thread gets memory for fresh blocks before a write needs them.
//!
//! ```text
//!   free blocks that have memory
//!   wanted   ┤·······╱╲················╱╲────┐    as many as first uses have taken so far, at least 16 MiB, at most
//!            │      ╱  ╲   faults     ╱  ╲   │    what the builder says; asleep in between, woken by the fault
//!   half     ┤·····╱    ╲·······     ╱       │    that takes one too many
//!            └────┴──────┴──────────┴─────1 s┴─▶ no first use: what is ready goes back
//! ```
//! What is ready bridges the moments in which the thread does not run, so it is little: a writer takes 32 MiB in a few
//! milliseconds. The thread begins where the last fault took its block and goes on in the same direction, because an
//! entry wants its block at the place in the pool that it has in its region. When no block was used for the first time
//! for a second, it gives back what nobody has used, and then sleeps without a timer.
//!
//! The first use of a pool, the first after the thread gave its memory back or after [`trim`](crate::Pool::trim), and
//! the first after the machine refused memory find nothing ready. They get their memory themselves, and they start the
//! thread. It gets nothing where that would leave the machine with little memory.
//!
//! A fault that wants the very block that memory is on its way for waits for it: to get it itself would take as long.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::frames::{Content, Frames, Taken};
use super::worker::Parker;
use crate::stats::counters::count;
use crate::units::BlockSize;

/// What is ready before the second first use.
const FIRST_AHEAD_BYTES: usize = 16 << 20;

/// The most that is ready, unless the builder says otherwise. It is memory that the program has not asked for.
pub(crate) const MOST_AHEAD_BYTES: usize = 32 << 20;

/// For cuts that capture pages, so many times as much may be ready.
const MAX_CAPTURES_TIMES: usize = 4;

/// Smaller pools get nothing ahead, unless the builder says otherwise.
pub(crate) const SMALL_POOL_BYTES: usize = 128 << 20;

/// How a pool's blocks got their memory.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hugefork::{Commit, Pool};
/// let pool = Pool::builder().capacity(8 << 20).commit(Commit::Upfront).build()?;
/// pool.region(4 << 20)?.populate()?;
/// assert_eq!(pool.stats().supply.blocks_late, 0); // nobody has waited for memory
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SupplyStats {
    /// Whether a thread gets memory ahead.
    pub running: bool,
    /// Blocks that the thread got memory for.
    pub blocks_ahead: u64,
    /// CPU time that the thread spent on it.
    pub time: Duration,
    /// Blocks that got their memory only when they were used: a write, fork, snapshot or call waited for it.
    pub blocks_late: u64,
    /// How often the thread stopped because the machine had no memory to spare.
    pub stopped: u64,
    /// Blocks whose memory the thread gave back, because nobody had used any for a second.
    pub blocks_given_back: u64,
}

/// What faults see of it. If at most 0 blocks are wanted, there is no thread, and nobody wakes one.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// The least and the most blocks that are got ahead.
    pub(super) first: usize,
    pub(super) most: usize,
    pub(super) parker: Parker,
    /// Blocks that were used for the first time since memory was last given back or refused. While it is 0, nothing is
    /// wanted.
    pub(super) used: AtomicUsize,
    /// Blocks that the next cut would fill with the pages that it captures.
    captures: AtomicUsize,
    /// Cuts whose writers wait.
    cuts: AtomicUsize,
    /// The block that is likely to be wanted next, and whether blocks are wanted in descending order.
    pub(super) next: AtomicUsize,
    pub(super) is_down: AtomicBool,
    pub(super) running: AtomicBool,
    pub(super) blocks: AtomicU64,
    pub(super) nanoseconds: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) stopped: AtomicU64,
    pub(super) given_back: AtomicU64,
}

/// The writers of a cut wait, and the thread gets no memory.
pub(crate) struct HeldBack<'a>(&'a Ahead);

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        self.0.cuts.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Ahead {
    /// Gets at most `most` bytes ahead.
    pub(crate) fn new(most: usize, block_size: BlockSize) -> Ahead {
        let most = block_size.count(most);
        Ahead { first: block_size.count(FIRST_AHEAD_BYTES).max(1).min(most), most, ..Ahead::default() }
    }

    /// Counts blocks that got their memory only when they were used.
    pub(crate) fn note_late(&self, blocks: usize) {
        count(&self.late, blocks as u64);
    }

    /// Has the thread get no memory as long as the guard lives.
    pub(crate) fn hold_back(&self) -> HeldBack<'_> {
        self.cuts.fetch_add(1, Ordering::Relaxed);
        HeldBack(self)
    }

    pub(super) fn is_held_back(&self) -> bool {
        self.cuts.load(Ordering::Relaxed) > 0
    }

    /// Notes how many blocks the next cut would fill with the pages that it captures, and wakes the thread if it has
    /// work.
    pub(super) fn note_captures(&self, frames: &Frames, blocks: usize) {
        self.captures.store(blocks.min(self.most * MAX_CAPTURES_TIMES), Ordering::Relaxed);
        if self.parker.is_asleep() && self.is_low(frames) {
            self.parker.wake();
        }
    }

    /// Wants nothing until the next first use.
    pub(crate) fn rest(&self) {
        self.used.store(0, Ordering::SeqCst);
        self.captures.store(0, Ordering::Relaxed);
    }

    /// How many free blocks ought to have memory.
    pub(super) fn wanted(&self) -> usize {
        match self.used.load(Ordering::SeqCst) {
            0 => 0,
            used => used.max(self.first).min(self.most.max(self.captures.load(Ordering::Relaxed))),
        }
    }

    pub(crate) fn stats(&self) -> SupplyStats {
        SupplyStats {
            running: self.running.load(Ordering::Relaxed),
            blocks_ahead: self.blocks.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)),
            blocks_late: self.late.load(Ordering::Relaxed),
            stopped: self.stopped.load(Ordering::Relaxed),
            blocks_given_back: self.given_back.load(Ordering::Relaxed),
        }
    }

    /// Notes blocks that were just taken, and wakes the thread if it has work. The fault handler calls this.
    pub(crate) fn note_taken(&self, frames: &Frames, taken: Taken) {
        if self.most > 0 {
            self.note_new(frames, taken);
            if self.parker.is_asleep() && self.is_low(frames) {
                self.parker.wake();
            }
        }
    }

    /// Notes how many blocks were used for the first time, and where.
    fn note_new(&self, frames: &Frames, taken: Taken) {
        let is_new = |&nth: &usize| frames.content(taken.first.offset(nth)) != Content::Used;
        let new = (0..taken.count).filter(is_new).count();
        if new > 0 {
            let end = taken.first.index() + taken.count;
            let is_down = end <= self.next.load(Ordering::Relaxed);
            self.is_down.store(is_down, Ordering::Relaxed);
            self.next.store(if is_down { taken.first.index() } else { end }, Ordering::Relaxed);
            self.used.fetch_add(new, Ordering::SeqCst);
        }
    }

    pub(super) fn is_low(&self, frames: &Frames) -> bool {
        frames.ready() < self.wanted().div_ceil(2) && frames.fresh() > 0
    }
}
