//! hugefork: a region, and a snapshot of it.
//!
//! What it copies is what its own counter says, plus the pages that the kernel copies for it. The latter are the
//! writer's minor faults, less one for each block that hugefork copied, which maps the copy; but not more than the
//! pages that were written, and none if every block that was written was copied.

use std::time::Duration;

use hugefork::{CopyGrain, Pool, Snapshot};
use hugefork_kernels::Kernel;

use super::{Read, Rival};
use crate::cases::footprint::Footprint;
use crate::error::BenchError;
use crate::measure::warm::warm_for_copies;
use crate::measure::work::{self, reader};
use crate::memory::engine::{self, Populated};
use crate::memory::kernel_memory::PageKind;
use crate::plan::job::EngineChoice;
use crate::subject::Stock;

pub(in crate::cases) struct HugeforkRival {
    choice: EngineChoice,
    /// Bytes for copies; none: as many as the area has.
    room: Option<usize>,
    held: Option<Populated>,
    /// Where the counters stood before the last snapshot.
    earlier: Counted,
}

/// What the region counts.
#[derive(Clone, Copy, Default)]
struct Counted {
    paused: Duration,
    blocks: usize,
    bytes: usize,
}

impl HugeforkRival {
    pub(in crate::cases) fn new(choice: EngineChoice) -> HugeforkRival {
        HugeforkRival { choice, room: None, held: None, earlier: Counted::default() }
    }

    /// With so many bytes for copies.
    pub(in crate::cases) fn with_room(choice: EngineChoice, room: usize) -> HugeforkRival {
        HugeforkRival { room: Some(room), ..HugeforkRival::new(choice) }
    }

    fn held(&self) -> &Populated {
        self.held.as_ref().expect("populated before used")
    }

    fn counted(&self) -> Counted {
        let faults = self.held().region.stats().faults;
        Counted { paused: faults.paused, blocks: faults.blocks_copied as usize, bytes: faults.bytes_copied as usize }
    }

    /// Bytes of the pages that the kernel has copied, where hugefork has copied so many blocks.
    pub(in crate::cases) fn pages_copied(
        &self,
        blocks: usize,
        distinct: &dyn Fn(usize) -> usize,
        minor_faults: usize,
    ) -> usize {
        if self.choice.grain == CopyGrain::Block || blocks >= distinct(self.choice.block_size.bytes()) {
            return 0;
        }
        minor_faults.saturating_sub(blocks).min(distinct(4096)) * 4096
    }
}

impl Rival for HugeforkRival {
    type Snapshot = Snapshot;

    fn populate(&mut self, size: usize, bias: u64) -> Result<(), BenchError> {
        let choice = self.choice;
        // Room for the area, and for a copy of each of its blocks, if nobody has said more.
        let capacity = size + self.room.unwrap_or(size);
        let new = |pool: Pool| Populated::new(pool, choice.grain, size, bias);
        if choice.stock == Stock::Unused {
            // The old pool's memory is freed before the new pool gets any.
            self.held = None;
            self.held = Some(new(engine::new_pool(choice, capacity)?)?);
            return Ok(());
        }
        match &self.held {
            // SAFETY: our own region; the last snapshot is gone, so these writes find room.
            Some(held) => unsafe { work::write_words(held.region.as_mut_ptr().cast(), size / 8, bias) },
            None => self.held = Some(new(engine::warm_pool(choice, capacity)?)?),
        }
        Ok(())
    }

    /// What the kernel copies by page is its own memory, and the pool's was touched when that was made. A pool with
    /// the defaults finds the machine as it is.
    fn warm(&self, size: usize, cpus: &[usize]) -> Result<(), BenchError> {
        let has_pages = self.choice.grain != CopyGrain::Block;
        match has_pages && self.choice.stock != Stock::Unused {
            true => warm_for_copies(PageKind::Base, size, cpus),
            false => Ok(()),
        }
    }

    fn start(&self) -> *mut u8 {
        self.held().region.as_mut_ptr()
    }

    fn ready(&mut self) -> Result<(), BenchError> {
        self.earlier = self.counted();
        Ok(())
    }

    fn take(&mut self, _: impl Fn(Read<'_>) -> bool) -> Result<Snapshot, BenchError> {
        Ok(self.held().region.snapshot()?)
    }

    fn pause(&self, _: f64) -> f64 {
        (self.counted().paused - self.earlier.paused).as_secs_f64() * 1e3
    }

    fn copied(&self, distinct: &dyn Fn(usize) -> usize, minor_faults: usize) -> Option<usize> {
        let now = self.counted();
        let blocks = now.blocks - self.earlier.blocks;
        Some(now.bytes - self.earlier.bytes + self.pages_copied(blocks, distinct, minor_faults))
    }

    /// The blocks in use, whether their memory was there before or not, and private pages.
    fn memory(&self, _: &[Snapshot]) -> Option<usize> {
        let stats = self.held().pool.stats();
        let blocks = (stats.blocks - stats.blocks_free) * self.choice.block_size.bytes();
        Footprint::by_this().map(|held| held.anonymous + blocks)
    }

    fn first_read(&self, snapshot: &Snapshot, size: usize) -> Result<bool, BenchError> {
        let view = snapshot.map()?;
        // SAFETY: the snapshot is as long as the region.
        let read = unsafe { reader(view.as_ptr()) };
        std::hint::black_box((0..size).step_by(2 << 20).map(read).fold(0, u64::wrapping_add));
        Ok(true)
    }

    fn let_go(
        &mut self,
        snapshot: Snapshot,
        check: impl FnOnce(Read<'_>) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let view = snapshot.map()?;
        // SAFETY: the snapshot is as long as the region.
        check(&unsafe { reader(view.as_ptr()) })
    }

    fn release(&mut self) {
        self.held = None;
    }

    /// A pool that may stay is used again, as a program does.
    fn end_sample(&mut self) {}

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.held.as_ref().map(|held| (&held.pool, Some(held.pool.copy_kernel())))
    }
}
