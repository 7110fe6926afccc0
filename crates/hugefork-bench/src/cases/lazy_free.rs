//! `lazy-free`: a populated area is lazily freed; then the program writes to the area again, or the memory is
//! reclaimed and the program writes to the area afterwards. Each size of blocks or folios is a work of its own.
//!
//! | metric | |
//! |---|---|
//! | `mark` | `Region::lazy_free` or `madvise(MADV_FREE)` of the whole area |
//! | `mark+rewrite` | the mark, and one byte written in each block, which keeps the contents |
//! | `mark+reclaim` | the mark, and `Pool::reclaim` |
//! | `mark+reclaim+touch` | that, and one byte written in each block, which needs memory again |
//! | `cpu` | all threads, for all of these |
//!
//! No call makes the kernel reclaim memory that was marked with `MADV_FREE`; the kernel reclaims that memory when it
//! needs some. So `mark+reclaim` of `kernel` is `madvise(MADV_DONTNEED)` alone, which returns the whole area to the
//! system at once. hugefork returns the area to the pool.
//!
//! Before the rewrite, and again before the reclaim, every word of a new area is written. In every
//! sample, the rewrite must keep the contents and the reclaim must leave zeros. hugefork must be
//! able to reclaim all the memory that it marked. The case checks how much the kernel marked by
//! `LazyFree` in smaps, but only in the warm-up, because reading smaps walks the page tables that
//! the rewrite needs.
//!
//! `kernel` is anonymous memory in [`folios`] of the block size. With the kernel's default
//! settings, this memory can have only 4 KiB pages and folios of the largest size; for the other
//! sizes, `--tune` changes settings while an area is populated and used. Each time the case checks
//! that folios have the right size: 2 MiB by smaps, others by the kernel's count of the folios that
//! it made.

use hugefork::{BlockSize, Pool, Region};

use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::Pinned;
use crate::measure::clock::{CpuMeter, timed};
use crate::measure::warm::warm;
use crate::measure::work;
use crate::memory::folios::{self, Only, Settings};
use crate::memory::kernel_memory::{HUGE_PAGE, KernelMemory, PageKind};
use crate::memory::pools;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, params, shown};
use crate::run::sample::{self, Entry, Sample, Work};
use crate::subject::Subject;

/// The case.
#[derive(Debug)]
pub struct LazyFree;

/// The call that marks memory as lazily freed.
const MARK: Metric = Metric::new("mark", "ms");

/// The mark, and a write to each block, which cancels the mark of that block.
const MARK_REWRITE: Metric = Metric::new("mark+rewrite", "ms");

/// The mark, and the reclaim, after which the memory is free.
const MARK_RECLAIM: Metric = Metric::new("mark+reclaim", "ms");

/// The mark, the reclaim, and a write to each block.
const MARK_RECLAIM_TOUCH: Metric = Metric::new("mark+reclaim+touch", "ms");

impl Case for LazyFree {
    fn facts(&self) -> Facts {
        let metrics = &[MARK, MARK_REWRITE, MARK_RECLAIM, MARK_RECLAIM_TOUCH, Metric::CPU];
        Facts { has_blocks: true, ..Facts::new("lazy-free", metrics, [128 << 20, 1 << 30]) }
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![Subject::Hugefork, Subject::KernelFolios]
    }

    fn memory(&self, job: &Job, _: &Subject) -> Option<usize> {
        Some(job.size)
    }

    fn in_words(&self, params: &Params) -> String {
        format!("{} in blocks of {}", shown(params, "size"), shown(params, "block_size"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let params = params([("size", Param::size(job.size)), ("block_size", Param::text(job.block_size))]);
        let (size, block, settings, cpu) = (job.size, job.block_size, job.settings, host.cpu_numbers[0]);
        sample::entries(subjects, &params, |planned| -> Work {
            if planned.subject == Subject::Hugefork {
                return Box::new(move |_| in_region(size, block, cpu));
            }
            let mut folios = Folios { size, block, settings, cpu, is_seen: false };
            Box::new(move |_| folios.sample())
        })
    }

    fn usual_blocks(&self, scope: Scope) -> Vec<BlockSize> {
        match scope {
            // The sizes that the kernel offers without a change of settings.
            Scope::Quick => vec![BlockSize::KIB_4, BlockSize::MIB_2],
            Scope::Full => blocks(),
        }
    }
}

/// 4 KiB, and every size that Linux makes folios of anonymous memory in on x86-64.
fn blocks() -> Vec<BlockSize> {
    let size = |shift: u32| BlockSize::new(1 << shift).expect("a power of two from 4 KiB to 2 MiB");
    // There are no folios of two pages: the kernel keeps data of a large folio in the structure of its third page.
    (12..=21).filter(|shift| *shift != 13).map(size).collect()
}

/// Areas hold `p[i] = i + BIAS`, which is zero nowhere.
const BIAS: u64 = 1;

/// The least fraction of an area that must be marked, or be in folios of the right size.
const ENOUGH: f64 = 0.95;

/// The figures of a sample; `rewrite` and `touch` do not include the calls before them.
fn measures(mark: f64, rewrite: f64, mark_and_reclaim: f64, touch: f64, cpu: f64) -> Vec<Measure> {
    Measure::all([
        (MARK, mark),
        (MARK_REWRITE, mark + rewrite),
        (MARK_RECLAIM, mark_and_reclaim),
        (MARK_RECLAIM_TOUCH, mark_and_reclaim + touch),
        (Metric::CPU, cpu),
    ])
}

/// Adds up the CPU time of timed calls.
#[derive(Default)]
struct Calls {
    cpu: f64,
}

impl Calls {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> (T, f64) {
        let meter = CpuMeter::start();
        let timed = timed(call);
        self.cpu += meter.ms();
        timed
    }
}

/// Checks that a rewrite kept the contents.
///
/// # Safety
/// `area` is `len` bytes that no other thread accesses.
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
    /// Whether a sample has checked that the kernel marks the area.
    is_seen: bool,
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
                "this kernel does not count folios of {}, so that nothing proves that there were any; Linux 6.10 and newer do",
                self.block
            ))),
        }
    }

    /// Checks that the kernel marked the area.
    fn see(&mut self, area: &KernelMemory) -> Result<(), BenchError> {
        let marked = area.lazily_freed();
        if (marked as f64) < self.size as f64 * ENOUGH {
            return Err(BenchError::CannotRun(format!(
                "MADV_FREE marked only {marked} of {} bytes, by LazyFree in smaps; is the memory locked (ulimit -l)?",
                self.size
            )));
        }
        self.is_seen = true;
        Ok(())
    }
}

impl Folios {
    fn sample(&mut self) -> Result<Sample, BenchError> {
        let _folios = (self.settings == Settings::Lent).then(|| Only::size(self.block)).transpose()?;
        let _pinned = Pinned::to(self.cpu)?;
        // The warming takes 4 KiB pages, since huge pages may be switched off at this point.
        warm(PageKind::Base, self.size, 1, &[self.cpu])?;
        let mut calls = Calls::default();
        let area = self.populated()?;
        let (marked, mark) = calls.time(|| area.free_lazily());
        marked?;
        if !self.is_seen {
            self.see(&area)?;
        }
        let block = self.block.bytes();
        // SAFETY: our own mapping.
        let ((), rewrite) = calls.time(|| unsafe { work::rewrite_blocks(area.as_ptr(), area.len(), block) });
        // SAFETY: our own mapping.
        unsafe { check_kept(area.as_ptr(), area.len(), self.block) }?;
        drop(area);

        let area = self.populated()?;
        let (discarded, reclaim) = calls.time(|| area.discard());
        discarded?;
        // SAFETY: our own mapping.
        let ((), touch) = calls.time(|| unsafe { work::rewrite_blocks(area.as_ptr(), area.len(), block) });
        // SAFETY: our own mapping.
        unsafe { work::check_zeros(area.as_ptr(), area.len()) }?;
        Ok(Sample::of(measures(mark, rewrite, reclaim, touch, calls.cpu)))
    }
}

/// A sample of hugefork, in a pool with blocks of this size and otherwise all defaults.
fn in_region(size: usize, block_size: BlockSize, cpu: usize) -> Result<Sample, BenchError> {
    warm(PageKind::Thp, size + size / 4 / HUGE_PAGE * HUGE_PAGE, 1, &[cpu])?;
    let block = block_size.bytes();
    // The pool has more memory than the area, as a machine has: a nearly full pool allocates and maps small blocks one
    // by one.
    let pool = pools::used((size + size / 4).next_multiple_of(block), block_size)?;
    let _pinned = Pinned::to(cpu)?;
    let mut calls = Calls::default();
    let (region, mark) = marked(&pool, size, &mut calls)?;
    // SAFETY: our own region; each block has its memory.
    let ((), rewrite) = calls.time(|| unsafe { work::rewrite_blocks(region.as_mut_ptr(), size, block) });
    BenchError::unless_all("reclaimed", pool.reclaim(size)?, 0)?;
    // SAFETY: our own region.
    unsafe { check_kept(region.as_ptr(), size, block_size) }?;
    drop(region);

    let (region, mark_again) = marked(&pool, size, &mut calls)?;
    let (reclaimed, reclaim) = calls.time(|| pool.reclaim(size));
    BenchError::unless_all("reclaimed", reclaimed?, size)?;
    // SAFETY: our own region.
    let ((), touch) = calls.time(|| unsafe { work::rewrite_blocks(region.as_mut_ptr(), size, block) });
    // SAFETY: our own region.
    unsafe { work::check_zeros(region.as_ptr(), size) }?;
    Ok(Sample::on(&pool, None, measures(mark, rewrite, mark_again + reclaim, touch, calls.cpu)))
}

/// A new region in which every word was written and which was then lazily freed, and the time of the call that freed it
/// lazily.
fn marked(pool: &Pool, size: usize, calls: &mut Calls) -> Result<(Region, f64), BenchError> {
    let region = pools::written(pool, size, BIAS)?;
    let (marked, mark) = calls.time(|| region.lazy_free(0..size));
    BenchError::unless_all("marked", marked?.freed, size)?;
    Ok((region, mark))
}
