//! The zeroed stock: free blocks that a thread clears in the background, so that a first write finds zeros.
//!
//! ```text
//!   zeroed free blocks
//!   high ┤·······╱╲················╱╲····     the thread clears used free blocks from low to high,
//!        │      ╱  ╲   faults     ╱  ╲        in its own time: lowest scheduling class, and a
//!   low  ┤·····╱    ╲·······     ╱            share of one CPU
//!        └────┴──────┴──────────┴─────▶       asleep otherwise: no timer, woken when there is work
//! ```
//! A block that is being cleared is out of the free list but counts as available. A fault that needs the very last
//! block waits until it is clear. The thread gives way to all others, so it may take long. It therefore leaves the last
//! few free blocks alone, and such a wait is rare.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::frames::Frames;
use super::worker::Parker;
use crate::units::BlockSize;

/// The number of free blocks that the thread leaves for faults.
const LEFT_ALONE_BLOCKS: usize = 2;

/// How many bytes of zeroed blocks a pool keeps ready, and what clearing them may cost.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hugefork::{Pool, ZeroedStock};
/// let stock = ZeroedStock::keep(4 << 20, 8 << 20).cpu_percent(10);
/// let pool = Pool::builder().capacity(16 << 20).zeroed_stock(stock).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroedStock {
    low: usize,
    high: usize,
    cpu_percent: u32,
}

impl ZeroedStock {
    /// Clears in the background when less than `low` bytes of free blocks are zero, until `high` bytes are, or until no
    /// used block is free. `high` is limited to the pool's capacity, and `low` to `high`. Clearing uses at most a
    /// quarter of one CPU.
    pub fn keep(low: usize, high: usize) -> ZeroedStock {
        ZeroedStock { low, high, cpu_percent: 25 }
    }

    /// The share of one CPU that clearing may take, limited to 1 to 100 per cent. In any case the thread runs only
    /// while no other thread wants the CPU (`SCHED_IDLE`).
    pub fn cpu_percent(mut self, percent: u32) -> ZeroedStock {
        self.cpu_percent = percent.clamp(1, 100);
        self
    }
}

/// The work of a pool's background zeroing so far.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hugefork::{Pool, ZeroedStock};
/// let stock = ZeroedStock::keep(4 << 20, 8 << 20);
/// let pool = Pool::builder().capacity(16 << 20).zeroed_stock(stock).build()?;
/// let stock = pool.stats().stock;
/// println!("{} blocks cleared in {:?}", stock.blocks, stock.time);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StockStats {
    /// Whether a thread clears blocks.
    pub running: bool,
    /// Blocks that the thread cleared.
    pub blocks: u64,
    /// CPU time that the thread spent on clearing.
    pub time: Duration,
}

/// The state that the zeroing thread shares with faults and releases. If `high` is 0, there is no thread.
#[derive(Debug, Default)]
pub(crate) struct Stock {
    low: usize,
    pub(super) high: usize,
    pub(super) cpu_percent: u32,
    pub(super) parker: Parker,
    pub(super) running: AtomicBool,
    pub(super) blocks: AtomicU64,
    pub(super) nanoseconds: AtomicU64,
}

impl Stock {
    pub(crate) fn new(wanted: Option<ZeroedStock>, block_size: BlockSize, blocks: usize) -> Stock {
        let Some(wanted) = wanted else { return Stock::default() };
        let high = block_size.count(wanted.high).min(blocks);
        Stock { low: block_size.count(wanted.low).min(high), high, cpu_percent: wanted.cpu_percent, ..Stock::default() }
    }

    pub(crate) fn stats(&self) -> StockStats {
        StockStats {
            running: self.running.load(Ordering::Relaxed),
            blocks: self.blocks.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)),
        }
    }

    /// Wakes the zeroing thread if it has work. The fault handler calls this when blocks came back or zeroed ones were
    /// taken. While the thread is awake, or if there is none, this is a single load.
    pub(crate) fn nudge(&self, frames: &Frames) {
        if self.parker.is_asleep() && self.is_filling(frames, false) {
            self.parker.wake();
        }
    }

    /// Whether to start clearing or, if `was_filling`, to go on: zeroed blocks are wanted, and there are free blocks
    /// that need clearing, besides those that the thread leaves alone.
    pub(super) fn is_filling(&self, frames: &Frames, was_filling: bool) -> bool {
        let wanted = if was_filling { self.high } else { self.low };
        frames.zeroed() < wanted && frames.used_and_free() > 0 && frames.free() > LEFT_ALONE_BLOCKS
    }
}
