//! `lazy-free`: a populated area is lazily freed (`mark`), and then either written to again, one byte in each block
//! (`mark+rewrite`), or reclaimed (`mark+reclaim`). Each size of blocks or folios is a work of its own.
//!
//! `mark` is `Region::lazy_free` or `madvise(MADV_FREE)` of the whole area. `mark+rewrite` is the mark and the writes,
//! which keep the contents. `mark+reclaim` is the mark and `Pool::reclaim`. Nobody can tell a kernel to reclaim what
//! was marked with `MADV_FREE`, and it does so only when it needs memory. So `mark+reclaim` of `kernel` is
//! `madvise(MADV_DONTNEED)` alone, which gives everything back at once: to the system, where hugefork gives it back to
//! the pool.
//!
//! One thread does everything, and only the calls and writes are timed. Before each of the two parts a new area is
//! populated, with every word written. In every sample, the rewrite must keep the contents and the reclaim must leave
//! zeros. hugefork must be able to reclaim all that it marked. What the kernel marked is read from `LazyFree` in smaps,
//! but only in the warm-up, since reading it goes over the page tables that the rewrite needs.
//!
//! `kernel` is anonymous memory in [`folios`] of the block size. With the kernel's usual settings it can have only 4
//! KiB and the largest size; for the others `--tune` changes settings while an area is populated and used. Each time it
//! is checked that folios have the right size: 2 MiB by smaps, others by the kernel's count of the folios that it made.

use hugefork::{BlockSize, Pool, Region};
use hugefork_kernels::Kernel;

use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::Pinned;
use crate::measure::clock::Stopwatch;
use crate::measure::random::Random;
use crate::measure::work;
use crate::memory::engine;
use crate::memory::folios::{self, Only, Settings};
use crate::memory::kernel_memory::{KernelMemory, PageKind};
use crate::plan::job::{EngineChoice, Job, Scope, SubjectPlan};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, params, shown};
use crate::run::sample::{self, Entry, Work};
use crate::subject::Subject;

/// The case.
#[derive(Debug)]
pub struct LazyFree;

/// The call that marks memory as lazily freed.
const MARK: Metric = Metric::new("mark", "ms");

/// The mark, and a write to each block, which takes it back.
const MARK_REWRITE: Metric = Metric::new("mark+rewrite", "ms");

/// From populated memory to memory that is free again.
const MARK_RECLAIM: Metric = Metric::new("mark+reclaim", "ms");

impl Case for LazyFree {
    fn facts(&self) -> Facts {
        Facts { works_differ_by_block: true, ..Facts::new("lazy-free", MARK, [256 << 20, 1 << 30]) }
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![Subject::Hugefork, Subject::KernelFolios]
    }

    fn memory(&self, job: &Job, _: &Subject) -> Option<usize> {
        Some(job.size)
    }

    fn in_words(&self, params: &Params) -> String {
        format!("mark {}", shown(params, "size"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let params = params([("size", Param::size(job.size)), ("block_size", Param::text(job.block_size))]);
        let (size, block, settings, cpu) = (job.size, job.block_size, job.settings, host.cpu_numbers[0]);
        sample::entries(subjects, &params, |planned| match planned.engine {
            Some(choice) => Box::new(FreedRegion { size, choice, cpu, pool: None }),
            None => Box::new(Folios { size, block, settings, cpu, seen: false }),
        })
    }

    fn usual_blocks(&self, scope: Scope) -> Vec<BlockSize> {
        match scope {
            // What the kernel offers to any user, without a change of settings.
            Scope::Quick => vec![BlockSize::KIB_4, BlockSize::MIB_2],
            Scope::Full => blocks(),
        }
    }
}

/// 4 KiB, and every size that Linux makes folios of anonymous memory in on x86-64.
fn blocks() -> Vec<BlockSize> {
    let size = |shift: u32| BlockSize::new(1 << shift).expect("a power of two from 4 KiB to 2 MiB");
    // There are no folios of two pages: a large folio keeps something in its third.
    (12..=21).filter(|shift| *shift != 13).map(size).collect()
}

/// Areas hold `p[i] = i + BIAS`, which is zero nowhere.
const BIAS: u64 = 1;

/// The least part of an area that must be marked, or be in folios of the right size.
const ENOUGH: f64 = 0.95;

/// What a sample measures; `rewrite` does not include the mark before it.
fn measures(mark: f64, rewrite: f64, mark_and_reclaim: f64, watch: &Stopwatch) -> Vec<Measure> {
    let values = [(MARK, mark), (MARK_REWRITE, mark + rewrite), (MARK_RECLAIM, mark_and_reclaim)];
    Measure::sample(values, watch.cpu())
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
    /// Whether it was checked that a mark marks.
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

    /// Checks that what was marked is marked.
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

    /// It holds nothing between samples.
    fn release(&mut self) {}
}

struct FreedRegion {
    size: usize,
    choice: EngineChoice,
    cpu: usize,
    pool: Option<Pool>,
}

impl FreedRegion {
    /// A new region in which every word was written and which was then lazily freed, and the time that freeing it took.
    fn marked(&self, pool: &Pool, watch: &mut Stopwatch) -> Result<(Region, f64), BenchError> {
        let region = engine::written(pool, self.size, BIAS)?;
        let (marked, mark) = watch.time(|| region.lazy_free(0..self.size));
        BenchError::unless_all("marked", marked?.freed, self.size)?;
        Ok((region, mark))
    }
}

impl Work for FreedRegion {
    fn prepare(&mut self) -> Result<(), BenchError> {
        if self.pool.is_none() {
            // The pool has room beside the area, as a machine has: a pool that is nearly full gives and maps small
            // blocks one by one.
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
        BenchError::unless_all("reclaimed", pool.reclaim(size)?, 0)?;
        // SAFETY: our own region.
        unsafe { check_kept(region.as_ptr(), size, block) }?;
        drop(region);

        let (region, mark_again) = self.marked(pool, &mut watch)?;
        let (reclaimed, reclaim) = watch.time(|| pool.reclaim(size));
        BenchError::unless_all("reclaimed", reclaimed?, size)?;
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
