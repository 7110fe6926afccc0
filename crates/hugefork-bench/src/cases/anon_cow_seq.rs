//! `anon-cow-seq`: each task gets a fork of one populated area, and writes every 8-byte word of it. That is the work of
//! vm-scalability's case of this name.
//!
//! `throughput` and `create` are those of `anon-w-seq`; here `create` includes the forks: `fork(2)`, or
//! `Region::fork()` and a thread. The parent area stays, so that every block must be copied and none can be reused.
//! After every sample it is checked that the parent has not changed.
//!
//! `limit` writes areas that are there already, and no forks (`limit.rs`).
//!
//! [`overhead`](Metric::OVERHEAD) of hugefork is measured after the write phase, on one more fork: first writes at
//! random offsets of blocks, beside the pool's own copies of blocks.

use hugefork::{Pool, Region};
use hugefork_kernels::{Kernel, Target};

use super::anon_w_seq::{measures, params};
use super::limit::{self, Limit};
use super::overhead;
use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::clock;
use crate::measure::random::Random;
use crate::measure::tasks::{Area, Team};
use crate::measure::warm::warm;
use crate::measure::work;
use crate::memory::engine;
use crate::memory::kernel_memory::{Inherit, KernelMemory, PageKind};
use crate::plan::job::{EngineChoice, Job, Scope, SubjectPlan};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Params, shown};
use crate::run::sample::{self, Entry, Work};
use crate::subject::Subject;

/// The most faults of an overhead pass: enough for a median.
const OVERHEAD_FAULTS: usize = 256;

/// The parent holds `p[i] = i + BIAS`, so that what a task writes differs from what it copied.
const BIAS: u64 = 1;

/// The case.
#[derive(Debug)]
pub struct AnonCowSeq;

impl Case for AnonCowSeq {
    fn facts(&self) -> Facts {
        Facts { has_tasks: true, forks: true, ..Facts::new("anon-cow-seq", Metric::THROUGHPUT, [256 << 20, 512 << 20]) }
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![Subject::Hugefork, Subject::ForkThp, Subject::ForkHugetlb, Subject::Fork4k, Subject::Limit]
    }

    fn memory(&self, job: &Job, subject: &Subject) -> Option<usize> {
        let forks = job.size.checked_mul(job.tasks + 1)?;
        if subject.stock().is_some() { forks.checked_add(2 * job.rotation) } else { Some(forks) }
    }

    fn in_words(&self, params: &Params) -> String {
        format!("{} tasks write forks of {}", shown(params, "tasks"), shown(params, "size"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let cpus = &host.cpu_numbers;
        sample::entries(subjects, &params(job), |planned| match planned.engine {
            Some(choice) => Box::new(ForkedRegions { job: job.clone(), choice, cpus: cpus.clone(), held: None }),
            None if planned.subject == Subject::Limit => Box::new(Limit::new(job, cpus)),
            None => {
                Box::new(ForkedMappings { job: job.clone(), kind: planned.pages(), cpus: cpus.clone(), original: None })
            }
        })
    }

    fn aside(&self, subject: &Subject) -> Option<&'static str> {
        (*subject == Subject::Limit).then_some(limit::ASIDE)
    }
}

struct ForkedMappings {
    job: Job,
    kind: PageKind,
    cpus: Vec<usize>,
    original: Option<KernelMemory>,
}

impl Work for ForkedMappings {
    fn prepare(&mut self) -> Result<(), BenchError> {
        let original = match self.original.take() {
            Some(held) => held,
            None => KernelMemory::populated(self.kind, self.job.size)?,
        };
        // It is written before every sample, as a program would do: the last fork has left its pages read-only, and a
        // second fork of such pages has less to do.
        // SAFETY: our own mapping; the children of the last sample are gone.
        unsafe { work::write_words(original.as_ptr().cast(), original.len() / 8, BIAS) };
        self.original = Some(original);
        // Warms what the children will copy to.
        warm(self.kind, self.job.size, self.job.tasks, &self.cpus)
    }

    fn sample(&mut self, _: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let original = self.original.as_ref().expect("prepared before sampled");
        original.inherit(Inherit::Yes)?;
        let areas = vec![Area::new(original.as_ptr(), original.len()); self.job.tasks];
        let start = clock::now();
        // SAFETY: a private mapping, of which every child gets a copy of its own.
        let team = unsafe { Team::of_processes(&areas, &self.cpus) }?;
        let created = clock::now();
        let outcome = team.run()?;
        original.inherit(Inherit::No)?;
        // SAFETY: our own mapping, which only children wrote, in their copies.
        unsafe { work::check_area(original.as_ptr(), original.len(), BIAS) }?;
        Ok(measures(&self.job, clock::ms(start, created), outcome))
    }

    fn release(&mut self) {
        self.original = None;
    }
}

struct ForkedRegions {
    job: Job,
    choice: EngineChoice,
    cpus: Vec<usize>,
    held: Option<CowMemory>,
}

struct CowMemory {
    original: Region,
    /// Direct copies go from one half of it to the other. It is twice the rotation.
    reference: Region,
    // Regions before their pool: fields drop in order.
    pool: Pool,
    /// The next block of a half of `reference`.
    next: usize,
}

impl ForkedRegions {
    fn overhead(&mut self, targets: &mut Random) -> Result<Option<Measure>, BenchError> {
        let block = self.choice.block_size.bytes();
        let stride = self.job.stride();
        let held = self.held.as_mut().expect("prepared before sampled");
        let fork = held.original.fork()?;
        let kernel = held.pool.copy_kernel();
        let half = held.reference.len() / 2;
        let fault = |step: usize, target| {
            // SAFETY: the stretch is whole and within the fork, which is ours alone; the target lies in it.
            unsafe { work::first_write(fork.as_mut_ptr().add(step * stride), target, 0) };
        };
        let copy = |target| {
            // SAFETY: two whole blocks in different halves of the reference, which is ours alone and was written, so
            // that copying takes no fault.
            unsafe {
                let to = held.reference.as_mut_ptr().add(held.next * block);
                kernel.copy(to, to.add(half).cast_const(), block, Target::At(target));
            }
            held.next = (held.next + 1) % (half / block);
        };
        let steps = (fork.len() / stride).min(OVERHEAD_FAULTS);
        overhead::measure(self.cpus[0], steps, block, targets, fault, copy)
    }
}

impl Work for ForkedRegions {
    fn prepare(&mut self) -> Result<(), BenchError> {
        if let Some(held) = &self.held {
            // As for the kernel's subjects, it is written between forks.
            // SAFETY: our own region; the forks of the last sample are gone.
            unsafe { work::write_words(held.original.as_mut_ptr().cast(), self.job.size / 8, BIAS) };
            return Ok(());
        }
        let forks = self.job.size * (self.job.tasks + 1);
        let reference = 2 * self.job.rotation;
        let pool = engine::warm_pool(self.choice, forks + reference)?;
        let original = engine::written(&pool, self.job.size, BIAS)?;
        let reference = engine::written(&pool, reference, 0)?;
        self.held = Some(CowMemory { original, reference, pool, next: 0 });
        Ok(())
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let held = self.held.as_ref().expect("prepared before sampled");
        let start = clock::now();
        let forks = (0..self.job.tasks).map(|_| held.original.fork()).collect::<Result<Vec<Region>, _>>()?;
        let areas: Vec<Area> = forks.iter().map(|fork| Area::new(fork.as_mut_ptr(), fork.len())).collect();
        // SAFETY: one fork a thread, which outlive the team: it ends within this function.
        let team = unsafe { Team::of_threads(&areas, &self.cpus) }?;
        let created = clock::now();
        let outcome = team.run()?;
        drop(forks);
        // SAFETY: our own region, which nobody writes.
        unsafe { work::check_area(held.original.as_ptr(), held.original.len(), BIAS) }?;
        let mut measures = measures(&self.job, clock::ms(start, created), outcome);
        measures.extend(self.overhead(targets)?);
        Ok(measures)
    }

    fn release(&mut self) {
        self.held = None;
    }

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.held.as_ref().map(|held| (&held.pool, Some(held.pool.copy_kernel())))
    }
}
