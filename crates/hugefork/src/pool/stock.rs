//! The zeroed stock: used blocks that are cleared in the background, so that a first write finds them zero.
//!
//! ```text
//!   zeroed free blocks
//!   high ┤·······╱╲················╱╲····     the thread clears used free blocks from low to high,
//!        │      ╱  ╲   faults     ╱  ╲        in its own time: lowest scheduling class, and a
//!   low  ┤·····╱    ╲·······     ╱            share of one CPU
//!        └────┴──────┴──────────┴─────▶       asleep otherwise: no timer, woken when there is work
//! ```
//! A block that is being cleared is out of the free list but still counted as available. A fault that needs the very last
//! block waits for it, no longer than the clear takes; the last few free blocks are left alone, so that this is rare where
//! the thread, which gives way to all others, takes its time.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hugefork_kernels::{Target, Use};

use super::core::PoolCore;
use super::frames::Content;
use super::worker::{Nap, Worker};
use crate::own::Counted;
use crate::stats::count;
use crate::sys::Sys;
use crate::units::{BlockId, BlockSize};

/// Free blocks that are for faults only.
const LEFT_ALONE: usize = 2;

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
    /// Clears in the background when less than `low` bytes of free blocks are zero, until `high` bytes are or no used
    /// block is free. Both are cut to the pool's capacity, and `low` to `high`. Uses at most a quarter of one CPU.
    pub fn keep(low: usize, high: usize) -> ZeroedStock {
        ZeroedStock { low, high, cpu_percent: 25 }
    }

    /// The share of one CPU that clearing may take, 1 to 100 per cent; anything else is cut to that. Whatever it is, the
    /// thread runs only while nothing else wants the CPU (`SCHED_IDLE`).
    pub fn cpu_percent(mut self, percent: u32) -> ZeroedStock {
        self.cpu_percent = percent.clamp(1, 100);
        self
    }
}

/// What a pool's background zeroing came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StockStats {
    /// Whether there is a thread for it.
    pub running: bool,
    /// Blocks that it cleared.
    pub blocks: u64,
    /// CPU time that it spent clearing them.
    pub time: Duration,
}

/// The part that faults and releases see. Zero blocks to keep: there is no thread, and nothing is ever woken.
#[derive(Debug, Default)]
pub(crate) struct Stock {
    low: usize,
    high: usize,
    cpu_percent: u32,
    nap: Nap,
    running: AtomicBool,
    blocks: AtomicU64,
    nanoseconds: AtomicU64,
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
}

impl<S: Sys> PoolCore<S> {
    /// Starts the zeroing thread if the pool is to keep a stock. `lower` is called on it first, to make it give way to others.
    /// Without a thread the pool works as if it kept none; the error says why.
    pub(crate) fn start_stock(this: &Counted<Self>, lower: fn()) -> io::Result<Option<Worker>> {
        if this.stock.high == 0 {
            return Ok(None);
        }
        let (working, telling) = (this.clone(), this.clone());
        let work = move || {
            lower();
            working.keep_stock();
        };
        let worker = Worker::start("hugefork-zero", work, move || telling.stock.nap.tell_to_end())?;
        this.stock.running.store(true, Ordering::Relaxed);
        Ok(Some(worker))
    }

    /// Wakes the zeroing thread if there is work for it. After blocks came back or zeroed ones went: for the fault handler,
    /// one load while the thread is awake or there is none.
    pub(crate) fn nudge_stock(&self) {
        if self.stock.nap.is_asleep() && self.stock_is_low() {
            self.stock.nap.wake();
        }
    }

    fn stock_is_low(&self) -> bool {
        self.frames.zeroed() < self.stock.low && self.may_take_used()
    }

    fn may_take_used(&self) -> bool {
        self.frames.used_and_free() > 0 && self.frames.free() > LEFT_ALONE
    }

    /// Clears used blocks until told to stop. The body of the thread.
    fn keep_stock(&self) {
        let stock = &self.stock;
        let (mut filling, mut from) = (false, 0);
        while !stock.nap.is_over() {
            filling = self.frames.zeroed() < if filling { stock.high } else { stock.low };
            let block = if filling && self.may_take_used() { self.frames.take_used(from) } else { None };
            if let Some(block) = block {
                from = block.index() + 1;
                self.clear_for_stock(block);
                continue;
            }
            (filling, from) = (false, 0);
            stock.nap.sleep_unless(|| self.stock_is_low());
        }
    }

    /// Clears one block and pauses for as long as its share of the CPU asks.
    fn clear_for_stock(&self, block: BlockId) {
        let stock = &self.stock;
        let (started, len) = (self.sys.cpu_time(), self.block_size.bytes());
        // Past the cache: it is not known who will use the block, and when.
        let kernel = self.kernels.clear(len, Use::Whole);
        // SAFETY: the block was free and is ours until it is returned: mapped nowhere but in the direct map.
        unsafe { kernel.clear(self.direct(block), len, Target::Unknown) };
        self.frames.put_back(block, Content::Clean);
        let spent = self.sys.cpu_time().saturating_sub(started);
        count(&stock.blocks, 1);
        count(&stock.nanoseconds, spent);
        let pause = spent * u64::from(100 - stock.cpu_percent) / u64::from(stock.cpu_percent);
        if pause > 0 {
            stock.nap.pause(Duration::from_nanos(pause));
        }
    }
}
