//! `zero-fault`: the first write to each stretch of a new area, and the use that follows it.
//!
//! One pass goes over the area in steps of the block size, at least 2 MiB. In each step: fence, clock, one 8-byte write
//! at a random offset, fence, clock, read-modify-write of the 64 KiB around it, fence, clock. `latency` is the whole,
//! `fault` the first interval; a sample is the median over the pass.
//!
//! All subjects do the same work: that of a program that writes somewhere and goes on nearby. They do not do the same
//! service: one fault prepares a 2 MiB page, while `kernel-4k` takes one fault for the write and up to fifteen more in
//! the use, and makes 64 KiB of each 2 MiB present. Its figure is that of sparse use.
//!
//! For all but `hugefork-default` the memory was used a moment ago: hugefork's blocks were written and given back, and
//! the kernel's pages belonged to another mapping. Addresses are new every time: a new region or mapping that nobody
//! has touched.
//!
//! `hugefork-default` is what a program has that uses the defaults: a new pool every time, whose blocks get their
//! memory when they are first written to or, from the pool's thread, shortly before. It does more than the others,
//! which have their memory already.
//!
//! `limit` does the same in huge pages that are there already, zeroed and writable: it takes no fault.
//!
//! [`overhead`](Metric::OVERHEAD) of hugefork comes from a second pass over another new region, beside the pool's own
//! clears of blocks.
//!
//! `hugefork-zeroed` takes its blocks from a stock that was filled before. Its faults clear nothing and are all
//! overhead, so that `overhead` is not measured. `zeroing` is the time that the pool's thread takes afterwards to fill
//! the stock again.

use hugefork::{Pool, Region};
use hugefork_kernels::{Kernel, Target};
use statrs::statistics::{Data, OrderStatistics};

use super::{limit, overhead};
use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::Pinned;
use crate::measure::clock::{self, CpuTime};
use crate::measure::random::Random;
use crate::measure::warm::warm;
use crate::measure::work;
use crate::memory::engine;
use crate::memory::kernel_memory::{HUGE_PAGE, KernelMemory, PageKind, Reserve};
use crate::plan::job::{EngineChoice, Job, Scope, SubjectPlan};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, params, shown};
use crate::run::sample::{self, Entry, Work};
use crate::subject::{Stock, Subject};

/// The case.
#[derive(Debug)]
pub struct ZeroFault;

/// Fault and near use.
const LATENCY: Metric = Metric::new("latency", "us");

/// The fault alone.
const FAULT: Metric = Metric::new("fault", "us");

impl Case for ZeroFault {
    fn facts(&self) -> Facts {
        Facts { rotates: true, ..Facts::new("zero-fault", LATENCY, [512 << 20, 1 << 30]) }
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![
            Subject::Hugefork,
            Subject::HugeforkDefault,
            Subject::HugeforkZeroed,
            Subject::KernelThp,
            Subject::KernelHugetlb,
            Subject::Kernel4k,
            Subject::Limit,
        ]
    }

    fn memory(&self, job: &Job, subject: &Subject) -> Option<usize> {
        match subject.stock() {
            Some(Stock::Without) => job.size.checked_add(job.rotation),
            _ => Some(job.size),
        }
    }

    fn in_words(&self, params: &Params) -> String {
        format!("first write + use of {}", shown(params, "use"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let cpu = host.cpu_numbers[0];
        let params = params([
            ("size", Param::size(job.size)),
            ("use", Param::size(work::NEAR)),
            ("stride", Param::size(job.stride())),
        ]);
        sample::entries(subjects, &params, |planned| match planned.engine {
            Some(choice) => Box::new(RegionFaults { job: job.clone(), choice, cpu, held: None }),
            None => {
                let present = if planned.subject == Subject::Limit { Present::All } else { Present::Nothing };
                Box::new(KernelFaults { job: job.clone(), kind: planned.pages(), present, cpu, fresh: None })
            }
        })
    }

    fn aside(&self, subject: &Subject) -> Option<&'static str> {
        match subject {
            Subject::Kernel4k => Some("makes 64 KiB of each stretch present, not all of it"),
            Subject::Limit => Some(limit::ASIDE),
            _ => None,
        }
    }
}

/// What the first word gets. Nothing else in the pass writes this value.
const MARK: u64 = 0x5eed_f00d_0dd5;

/// One pass: first write and near use in every stride of an untouched area.
///
/// # Safety
/// `area` is `len` bytes of demand-zero memory, a multiple of `stride` long, aligned to 4096, ours alone.
unsafe fn pass(area: *mut u8, len: usize, stride: usize, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
    let steps = len / stride;
    let mut written = Vec::with_capacity(steps);
    let (mut latency, mut fault) = (Vec::with_capacity(steps), Vec::with_capacity(steps));
    let before = CpuTime::of_this_thread();
    for step in 0..steps {
        let target = targets.word_offset(stride);
        // SAFETY: `step * stride + stride <= len` and `target + 8 <= stride`.
        unsafe {
            let block = area.add(step * stride);
            let start = clock::now_fenced();
            work::first_write(block, target, MARK);
            let faulted = clock::now_fenced();
            work::near_use(block, stride, target);
            let end = clock::now_fenced();
            fault.push(clock::us(start, faulted));
            latency.push(clock::us(start, end));
        }
        written.push(target);
    }
    let used = CpuTime::of_this_thread().since(before);
    for (step, target) in written.into_iter().enumerate() {
        // SAFETY: as above.
        unsafe { work::check_near(area.add(step * stride), stride, target, MARK) }?;
    }
    let [latency, fault] = [latency, fault].map(|times| Data::new(times).median());
    Ok(Measure::sample([(LATENCY, latency), (FAULT, fault)], used))
}

/// What of a mapping is there before it is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Present {
    Nothing,
    All,
}

struct KernelFaults {
    job: Job,
    kind: PageKind,
    present: Present,
    cpu: usize,
    fresh: Option<KernelMemory>,
}

impl Work for KernelFaults {
    fn prepare(&mut self) -> Result<(), BenchError> {
        self.fresh = None;
        warm(self.kind, self.job.size, 1, &[self.cpu])?;
        // A new mapping every time: `MADV_DONTNEED` of the old one would keep its page tables, and hugefork's new
        // region has none either.
        let fresh = KernelMemory::map(self.kind, self.job.size, Reserve::Yes)?;
        if self.present == Present::All {
            fresh.touch()?;
        }
        self.fresh = Some(fresh);
        Ok(())
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let memory = self.fresh.take().expect("prepared before sampled");
        let measures = {
            let _pinned = Pinned::to(self.cpu)?;
            // SAFETY: a new anonymous mapping of our own.
            unsafe { pass(memory.as_ptr(), memory.len(), self.job.stride(), targets)? }
        };
        // The pass must have met huge pages, or its figure would be another subject's.
        memory.check_huge_bytes(memory.len() / self.job.stride() * HUGE_PAGE)?;
        Ok(measures)
    }

    fn release(&mut self) {
        self.fresh = None;
    }
}

struct RegionFaults {
    job: Job,
    choice: EngineChoice,
    cpu: usize,
    held: Option<ZeroFaultMemory>,
}

struct ZeroFaultMemory {
    // Regions before their pool: fields drop in order.
    reference: Option<Reference>,
    pool: Pool,
}

/// What is cleared directly. There is none beside a stock, whose faults clear nothing.
struct Reference {
    region: Region,
    /// The next block to clear.
    next: usize,
}

impl RegionFaults {
    /// The second pass: faults alone, each followed by a direct clear.
    fn overhead(&mut self, targets: &mut Random) -> Result<Option<Measure>, BenchError> {
        let block = self.choice.block_size.bytes();
        let stride = self.job.stride();
        let held = self.held.as_mut().expect("prepared before sampled");
        let Some(reference) = &mut held.reference else { return Ok(None) };
        let region = held.pool.region(self.job.size)?;
        let kernel = held.pool.clear_kernel();
        let blocks = reference.region.len() / block;
        let fault = |step: usize, target| {
            // SAFETY: the stretch is whole and within the region, which is ours alone; the target lies in it.
            unsafe { work::first_write(region.as_mut_ptr().add(step * stride), target, MARK) };
        };
        let clear = |target| {
            // SAFETY: a whole block of the reference, which is ours alone and was written, so that clearing takes no
            // fault.
            unsafe {
                let written = reference.region.as_mut_ptr().add(reference.next * block);
                kernel.clear(written, block, Target::At(target));
            }
            reference.next = (reference.next + 1) % blocks;
        };
        overhead::measure(self.cpu, region.len() / stride, block, targets, fault, clear)
    }
}

impl Work for RegionFaults {
    fn prepare(&mut self) -> Result<(), BenchError> {
        if self.choice.stock == Stock::Unused {
            // The old pool's memory is freed before the new pool gets any.
            self.held = None;
            self.held = Some(ZeroFaultMemory { reference: None, pool: engine::new_pool(self.choice, self.job.size)? });
        }
        if let Some(held) = &self.held {
            if self.choice.stock != Stock::Unused {
                engine::use_blocks(&held.pool, self.job.size)?;
            }
        } else {
            let rotation = if self.choice.stock == Stock::Without { self.job.rotation } else { 0 };
            let pool = engine::warm_pool(self.choice, self.job.size + rotation)?;
            let reference = match self.choice.stock {
                Stock::Without => Some(Reference { region: engine::written(&pool, rotation, 0)?, next: 0 }),
                Stock::Unused | Stock::Filled | Stock::Refilling => None,
            };
            self.held = Some(ZeroFaultMemory { reference, pool });
        }
        let held = self.held.as_ref().expect("made above");
        engine::fill_stock(&held.pool, self.choice, self.job.size)
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let held = self.held.as_ref().expect("prepared before sampled");
        let before = engine::zeroing_so_far(&held.pool);
        let mut measures = {
            let region = held.pool.region(self.job.size)?;
            let _pinned = Pinned::to(self.cpu)?;
            // SAFETY: a new region of our own; its pool has a block for every fault.
            unsafe { pass(region.as_mut_ptr(), region.len(), self.job.stride(), targets)? }
        };
        engine::fill_stock(&held.pool, self.choice, self.job.size)?;
        measures.extend(engine::zeroing_since(&held.pool, self.choice, before));
        measures.extend(self.overhead(targets)?);
        Ok(measures)
    }

    fn release(&mut self) {
        self.held = None;
    }

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.held.as_ref().map(|held| (&held.pool, Some(held.pool.clear_kernel())))
    }
}
