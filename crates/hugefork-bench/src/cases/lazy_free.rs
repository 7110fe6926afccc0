//! `lazy-free`: a populated area is lazily freed (`mark`), then either written to again, one byte a block (`mark+rewrite`), or
//! reclaimed (`mark+reclaim`), by size of block or folio.
//!
//! `mark` is `Region::lazy_free` or `madvise(MADV_FREE)` of the whole area; `mark+rewrite` that and the writes, which keep the
//! contents; `mark+reclaim` that and `Pool::reclaim`. A kernel cannot be told to reclaim what it was given with `MADV_FREE`, it
//! does so when it needs memory: `mark+reclaim` of `kernel` is `madvise(MADV_DONTNEED)` alone, which gives everything back
//! at once. It goes back to the system there, and to the pool here.
//!
//! Only the calls and writes are timed, by one thread. Areas are populated before, each word written, anew for both parts.
//! After every sample contents must have been kept by the rewrite and be zero after the reclaim. That the mark marked is
//! seen from what can be reclaimed; of the kernel from `LazyFree` in smaps, in the warm-up only, since looking goes over the
//! page tables that the rewrite will need.
//!
//! `kernel` is anonymous memory in [`folios`] of the block size. With the kernel's usual settings only 4 KiB and
//! the largest size can be had; for the others `--tune` changes settings while an area is populated and used. What size the
//! folios really got is checked each time: 2 MiB by smaps, others by the kernel's count of the folios that it made.

use hugefork::{BlockSize, ByteSize, Pool, Region};
use hugefork_kernels::Kernel;

use crate::affinity::Pinned;
use crate::clock::Stopwatch;
use crate::engine;
use crate::error::BenchError;
use crate::folios::{self, Only, Settings};
use crate::kernel_memory::{KernelMemory, PageKind};
use crate::metric::{Measure, Metric};
use crate::plan::{CasePlan, EngineChoice, SubjectPlan};
use crate::random::Random;
use crate::result::{Param, Params};
use crate::sample::Work;
use crate::work;

/// 4 KiB, and every size that Linux makes folios of anonymous memory in on x86-64.
pub(super) fn blocks() -> Vec<BlockSize> {
    let size = |shift: u32| BlockSize::new(1 << shift).expect("a power of two from 4 KiB to 2 MiB");
    // A folio of two pages has no room for what a large folio keeps in its third.
    (12..=21).filter(|shift| *shift != 13).map(size).collect()
}

/// Areas hold `p[i] = i + BIAS`, which is nowhere zero.
const BIAS: u64 = 1;

/// The least part of an area that must have been marked, or be in folios of the right size.
const ENOUGH: f64 = 0.95;

pub(super) fn work(plan: &CasePlan, subject: &SubjectPlan, cpus: &[usize]) -> (Params, Box<dyn Work>) {
    let mut params = Params::from([
        ("size".to_owned(), Param::size(plan.size)),
        ("block_size".to_owned(), Param::text(plan.block_size)),
    ]);
    let (size, block, settings, cpu) = (plan.size, plan.block_size, plan.settings, cpus[0]);
    match subject.engine {
        Some(choice) => {
            params.extend(engine::asked(choice));
            (params, Box::new(Hugefork { size, choice, cpu, pool: None }))
        }
        None => (params, Box::new(Folios { size, block, settings, cpu, seen: false })),
    }
}

/// A sample; `rewrite` comes without the mark before it.
fn measures(mark: f64, rewrite: f64, mark_and_reclaim: f64, watch: &Stopwatch) -> Vec<Measure> {
    let mut measures = vec![
        Measure::new(Metric::Mark, mark),
        Measure::new(Metric::MarkRewrite, mark + rewrite),
        Measure::new(Metric::MarkReclaim, mark_and_reclaim),
    ];
    measures.extend(Measure::cpu(watch.cpu()));
    measures
}

/// # Safety
/// `area` is `len` bytes that nobody else accesses.
unsafe fn check_kept(area: *const u8, len: usize, block: BlockSize) -> Result<(), BenchError> {
    // SAFETY: by contract.
    unsafe {
        work::check_area(area, len, BIAS)?;
        work::check_rewritten(area, len, block.bytes())
    }
}

struct Folios {
    size: usize,
    block: BlockSize,
    settings: Settings,
    cpu: usize,
    /// Whether a mark was seen to mark.
    seen: bool,
}

impl Folios {
    fn populated(&self) -> Result<KernelMemory, BenchError> {
        if self.block == BlockSize::KIB_4 {
            return KernelMemory::written(PageKind::Base, self.size, BIAS);
        }
        let before = folios::made(self.block);
        let area = KernelMemory::written(PageKind::Thp, self.size, BIAS)?;
        if self.block == BlockSize::MIB_2 {
            area.check_huge()?;
            return Ok(area);
        }
        let made = before.zip(folios::made(self.block)).map(|(before, now)| (now - before) as usize);
        match made {
            Some(made) if (made * self.block.bytes()) as f64 >= self.size as f64 * ENOUGH => Ok(area),
            Some(made) => Err(BenchError::CannotRun(format!(
                "the kernel made only {made} folios of {} where {} were wanted: free memory, or compact it \
                 (echo 1 > /proc/sys/vm/compact_memory)",
                self.block,
                self.size / self.block.bytes(),
            ))),
            None => Err(BenchError::CannotRun(format!(
                "this kernel does not count folios of {}, so nobody knows whether there were any; Linux 6.10 and newer do",
                self.block
            ))),
        }
    }

    /// Checks once that what was marked is marked.
    fn see(&mut self, area: &KernelMemory) -> Result<(), BenchError> {
        let marked = area.lazily_freed();
        if (marked as f64) < self.size as f64 * ENOUGH {
            return Err(BenchError::CannotRun(format!(
                "MADV_FREE marked only {marked} of {} bytes, by LazyFree in smaps; is the memory locked (ulimit -l)?",
                self.size
            )));
        }
        self.seen = true;
        Ok(())
    }
}

impl Work for Folios {
    /// Areas are made in the sample, while the settings are changed.
    fn prepare(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn sample(&mut self, _: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let _folios = (self.settings == Settings::Lent).then(|| Only::size(self.block)).transpose()?;
        let _pinned = Pinned::to(self.cpu)?;
        let mut watch = Stopwatch::default();
        let area = self.populated()?;
        let (marked, mark) = watch.time(|| area.free_lazily());
        marked?;
        if !self.seen {
            self.see(&area)?;
        }
        // SAFETY: our own mapping.
        let ((), rewrite) =
            watch.time(|| unsafe { work::rewrite_blocks(area.as_ptr(), area.len(), self.block.bytes()) });
        // SAFETY: our own mapping.
        unsafe { check_kept(area.as_ptr(), area.len(), self.block) }?;
        drop(area);

        let area = self.populated()?;
        let (discarded, reclaim) = watch.time(|| area.discard());
        discarded?;
        // SAFETY: our own mapping.
        unsafe { work::check_zeros(area.as_ptr(), area.len()) }?;
        Ok(measures(mark, rewrite, reclaim, &watch))
    }

    /// Between samples it holds nothing.
    fn release(&mut self) {}
}

struct Hugefork {
    size: usize,
    choice: EngineChoice,
    cpu: usize,
    pool: Option<Pool>,
}

impl Hugefork {
    /// A new region, every word written, all of it lazily freed; and how long the latter took.
    fn marked(&self, pool: &Pool, watch: &mut Stopwatch) -> Result<(Region, f64), BenchError> {
        let region = engine::written(pool, self.size, BIAS)?;
        let (marked, mark) = watch.time(|| region.lazy_free(0..self.size));
        check("marked", marked?.freed, self.size)?;
        Ok((region, mark))
    }
}

/// Checks how much was marked or reclaimed.
fn check(done: &'static str, bytes: usize, expected: usize) -> Result<(), BenchError> {
    let (bytes, expected) = (ByteSize(bytes), ByteSize(expected));
    if bytes == expected { Ok(()) } else { Err(BenchError::NotAll { done, bytes, expected }) }
}

impl Work for Hugefork {
    fn prepare(&mut self) -> Result<(), BenchError> {
        if self.pool.is_none() {
            // With some room beside the area, as the machine has: in a pool that is nearly full small blocks are given one by
            // one, and mapped so.
            self.pool = Some(engine::warm_pool(
                self.choice,
                (self.size + self.size / 4).next_multiple_of(self.choice.block_size.bytes()),
            )?);
        }
        Ok(())
    }

    fn sample(&mut self, _: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let pool = self.pool.as_ref().expect("prepared before sampled");
        let (size, block) = (self.size, self.choice.block_size);
        let _pinned = Pinned::to(self.cpu)?;
        let mut watch = Stopwatch::default();
        let (region, mark) = self.marked(pool, &mut watch)?;
        // SAFETY: our own region; each block has its memory.
        let ((), rewrite) = watch.time(|| unsafe { work::rewrite_blocks(region.as_mut_ptr(), size, block.bytes()) });
        check("reclaimed", pool.reclaim(size)?, 0)?;
        // SAFETY: our own region.
        unsafe { check_kept(region.as_ptr(), size, block) }?;
        drop(region);

        let (region, mark_again) = self.marked(pool, &mut watch)?;
        let (reclaimed, reclaim) = watch.time(|| pool.reclaim(size));
        check("reclaimed", reclaimed?, size)?;
        // SAFETY: our own region.
        unsafe { work::check_zeros(region.as_ptr(), size) }?;
        Ok(measures(mark, rewrite, mark_again + reclaim, &watch))
    }

    fn release(&mut self) {
        self.pool = None;
    }

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.pool.as_ref().map(|pool| (pool, None))
    }
}
