//! `anon-w-seq`: each task writes every 8-byte word of its own new area, `p[i] = i`. That is the work of
//! vm-scalability's case of this name.
//!
//! `throughput` is the bytes of all tasks over the write phase, which goes from the common start to the end of the
//! slowest task. `create` is the time before it, in which areas and tasks are made: mappings and `fork(2)`, or regions
//! and threads.
//!
//! The parent maps the kernel's areas and does not touch them; one child writes each. They have no reservation, since
//! hugetlb reservations would stay with the parent. hugefork's areas are regions of one pool whose blocks have been
//! used before.
//!
//! `hugefork-zeroed` begins with a full stock of zeroed blocks. `hugefork-refilling` begins where a pass has just
//! ended: a first pass, which does not count, takes the stock, and its blocks come back unzeroed. The pass that counts
//! begins at once, with the zeroing thread beside its tasks. `zeroing` is the time that the thread spent on one pass,
//! during or after it.
//!
//! `limit` writes areas that are there already (`limit.rs`).
//!
//! `faults_per_gib` counts hugefork's faults: 512 if each maps one block of 2 MiB, and fewer if a fault maps several.

use hugefork::{Pool, Region};
use hugefork_kernels::Kernel;

use super::limit::{self, Limit};
use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::clock;
use crate::measure::random::Random;
use crate::measure::tasks::{Area, Outcome, Team};
use crate::measure::warm::warm;
use crate::memory::engine;
use crate::memory::kernel_memory::{Inherit, KernelMemory, PageKind, Reserve};
use crate::plan::job::{EngineChoice, Job, Scope, SubjectPlan};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, shown};
use crate::run::sample::{self, Entry, Work};
use crate::subject::{Stock, Subject};

/// The case.
#[derive(Debug)]
pub struct AnonWSeq;

/// Faults for each GiB written.
const FAULTS_PER_GIB: Metric = Metric::new("faults_per_gib", "count");

impl Case for AnonWSeq {
    fn facts(&self) -> Facts {
        Facts { has_tasks: true, ..Facts::new("anon-w-seq", Metric::THROUGHPUT, [256 << 20, 1 << 30]) }
    }

    fn subjects(&self, scope: Scope) -> Vec<Subject> {
        let mut subjects = vec![Subject::Hugefork, Subject::HugeforkZeroed];
        match scope {
            Scope::Quick => {}
            Scope::Full => subjects.push(Subject::HugeforkRefilling),
        }
        subjects.extend([Subject::KernelThp, Subject::KernelHugetlb, Subject::Kernel4k, Subject::Limit]);
        subjects
    }

    fn memory(&self, job: &Job, _: &Subject) -> Option<usize> {
        job.size.checked_mul(job.tasks)
    }

    fn in_words(&self, params: &Params) -> String {
        format!("{} tasks write {} each", shown(params, "tasks"), shown(params, "size"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let cpus = &host.cpu_numbers;
        sample::entries(subjects, &params(job), |planned| match planned.engine {
            Some(choice) => Box::new(NewRegions { job: job.clone(), choice, cpus: cpus.clone(), pool: None }),
            None if planned.subject == Subject::Limit => Box::new(Limit::new(job, cpus)),
            None => Box::new(NewMappings { job: job.clone(), kind: planned.pages(), cpus: cpus.clone() }),
        })
    }

    fn aside(&self, subject: &Subject) -> Option<&'static str> {
        (*subject == Subject::Limit).then_some(limit::ASIDE)
    }
}

/// Parameters of the cases with tasks.
pub(super) fn params(job: &Job) -> Params {
    crate::results::result::params([("size", Param::size(job.size)), ("tasks", Param::Number(job.tasks as u64))])
}

/// What the cases with tasks measure in a sample.
pub(super) fn measures(job: &Job, create_ms: f64, outcome: Outcome) -> Vec<Measure> {
    let gib = (job.size * job.tasks) as f64 / (1u64 << 30) as f64;
    Measure::sample([(Metric::THROUGHPUT, gib / outcome.seconds), (Metric::CREATE, create_ms)], outcome.cpu)
}

struct NewMappings {
    job: Job,
    kind: PageKind,
    cpus: Vec<usize>,
}

impl Work for NewMappings {
    fn prepare(&mut self) -> Result<(), BenchError> {
        // This also sees that there are huge pages: children do not say whether they got any.
        warm(self.kind, self.job.size, self.job.tasks, &self.cpus)
    }

    fn sample(&mut self, _: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let start = clock::now();
        let mut memories = Vec::with_capacity(self.job.tasks);
        for _ in 0..self.job.tasks {
            let memory = KernelMemory::map(self.kind, self.job.size, Reserve::No)?;
            memory.inherit(Inherit::Yes)?;
            memories.push(memory);
        }
        let areas: Vec<Area> = memories.iter().map(|memory| Area::new(memory.as_ptr(), memory.len())).collect();
        // SAFETY: private mappings, which children get as copies of their own.
        let team = unsafe { Team::of_processes(&areas, &self.cpus) }?;
        let created = clock::now();
        Ok(measures(&self.job, clock::ms(start, created), team.run()?))
    }

    /// It holds nothing between samples: what the children wrote has gone with them.
    fn release(&mut self) {}
}

struct NewRegions {
    job: Job,
    choice: EngineChoice,
    cpus: Vec<usize>,
    pool: Option<Pool>,
}

impl NewRegions {
    /// Bytes that all tasks write.
    fn capacity(&self) -> usize {
        self.job.size * self.job.tasks
    }

    fn pass(&self, pool: &Pool) -> Result<Vec<Measure>, BenchError> {
        let start = clock::now();
        let regions = (0..self.job.tasks).map(|_| pool.region(self.job.size)).collect::<Result<Vec<Region>, _>>()?;
        let areas: Vec<Area> = regions.iter().map(|region| Area::new(region.as_mut_ptr(), region.len())).collect();
        // SAFETY: one region a thread, which outlive the team: it ends within this function.
        let team = unsafe { Team::of_threads(&areas, &self.cpus) }?;
        let created = clock::now();
        let mut measures = measures(&self.job, clock::ms(start, created), team.run()?);
        let faults: u64 = regions.iter().map(|region| region.stats().faults.faults()).sum();
        let gib = self.capacity() as f64 / (1u64 << 30) as f64;
        measures.push(Measure::new(FAULTS_PER_GIB, faults as f64 / gib));
        Ok(measures)
    }
}

impl Work for NewRegions {
    fn prepare(&mut self) -> Result<(), BenchError> {
        match &self.pool {
            Some(pool) => engine::use_blocks(pool, self.capacity())?,
            None => self.pool = Some(engine::warm_pool(self.choice, self.capacity())?),
        }
        let pool = self.pool.as_ref().expect("made above");
        engine::fill_stock(pool, self.choice, self.capacity())
    }

    fn sample(&mut self, _: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let pool = self.pool.as_ref().expect("prepared before sampled");
        if self.choice.stock == Stock::Refilling {
            self.pass(pool)?;
        }
        let before = engine::zeroing_so_far(pool);
        let mut measures = self.pass(pool)?;
        engine::fill_stock(pool, self.choice, self.capacity())?;
        measures.extend(engine::zeroing_since(pool, self.choice, before));
        Ok(measures)
    }

    fn release(&mut self) {
        self.pool = None;
    }

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.pool.as_ref().map(|pool| (pool, Some(pool.clear_kernel())))
    }
}
