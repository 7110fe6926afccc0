//! The thread that keeps the zeroed stock (stock.rs).

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hugefork_kernels::{Target, Use};

use super::core::PoolCore;
use super::frames::Content;
use super::worker::Worker;
use crate::mem::EngineArc;
use crate::stats::counters::count;
use crate::sys::Sys;
use crate::units::BlockId;

impl<S: Sys> PoolCore<S> {
    /// Starts the zeroing thread if the pool keeps a stock. The thread first calls `lower`, which lowers its priority.
    /// If the thread cannot start, the pool works as one without a stock.
    pub(crate) fn start_stock(this: &EngineArc<Self>, lower: fn()) -> io::Result<Option<Worker>> {
        if this.stock.high == 0 {
            return Ok(None);
        }
        let (working, telling) = (this.clone(), this.clone());
        let work = move || {
            lower();
            working.keep_stock();
        };
        let worker = Worker::start("hugefork-zero", work, move || telling.stock.parker.tell_to_end())?;
        this.stock.running.store(true, Ordering::Relaxed);
        Ok(Some(worker))
    }

    /// Clears used blocks until it is told to end. This is the body of the thread.
    fn keep_stock(&self) {
        let stock = &self.stock;
        let (mut filling, mut from) = (false, 0);
        while !stock.parker.is_over() {
            filling = stock.is_filling(&self.frames, filling);
            if let Some(block) = filling.then(|| self.frames.take_used(from)).flatten() {
                from = block.index() + 1;
                self.clear_for_stock(block);
                continue;
            }
            (filling, from) = (false, 0);
            stock.parker.sleep(None, || stock.is_filling(&self.frames, false));
        }
    }

    /// Clears one block, and then pauses for as long as the thread's share of the CPU demands.
    fn clear_for_stock(&self, block: BlockId) {
        let stock = &self.stock;
        let (started, len) = (self.sys.cpu_time(), self.block_size.bytes());
        // This clears past the cache, because it is unknown when, and on which CPU, the block will be used.
        let kernel = self.kernels.clear(len, Use::Whole);
        let cleared = if seeded!("stock-hands-out-half-a-zeroed-block") { len / 2 } else { len };
        // SAFETY: the block was free, and this thread alone has it until it is put back; it is mapped only in the
        // direct map.
        unsafe { kernel.clear(self.direct(block), cleared, Target::Unknown) };
        self.frames.put_back(block, Content::Clean);
        let spent = self.sys.cpu_time().saturating_sub(started);
        count(&stock.blocks, 1);
        count(&stock.nanoseconds, spent);
        let pause = spent * u64::from(100 - stock.cpu_percent) / u64::from(stock.cpu_percent);
        if pause > 0 {
            stock.parker.pause(Duration::from_nanos(pause));
        }
    }
}
