//! `anon-w-seq`: each task writes every 8-byte word of its own new area, `p[i] = i`. vm-scalability's
//! case of this name does the same work.
//!
//! `throughput` is the bytes of all tasks over the write phase, which goes from the common start to the end of the
//! slowest task. `create` is the time before the write phase, in which areas and tasks are created: mappings and
//! `fork(2)`, or regions and threads. `cpu` is the CPU time that all threads and processes use in `create` and in
//! the write phase.
//!
//! The parent maps the areas of the kernel's subjects and does not touch them; each area is written by one child. The
//! areas have no hugetlb reservation, since the reservation would stay with the parent. hugefork's areas are regions
//! of one pool with all defaults, whose blocks have been used before.

use hugefork::{BlockSize, Region};

use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::clock::{self, CpuMeter};
use crate::measure::tasks::{Area, Outcome, Team};
use crate::measure::warm::warm;
use crate::memory::kernel_memory::{Inherit, KernelMemory, PageKind, Reserve};
use crate::memory::pools;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, shown};
use crate::run::sample::{self, Entry, Sample, Work};
use crate::subject::Subject;

/// The case.
#[derive(Debug)]
pub struct AnonWSeq;

impl Case for AnonWSeq {
    fn facts(&self) -> Facts {
        let metrics = &[Metric::THROUGHPUT, Metric::CPU];
        Facts { has_tasks: true, ..Facts::new("anon-w-seq", metrics, [128 << 20, 1 << 30]) }
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![Subject::Hugefork, Subject::KernelThp, Subject::KernelHugetlb, Subject::Kernel4k]
    }

    fn memory(&self, job: &Job, _: &Subject) -> Option<usize> {
        job.size.checked_mul(job.tasks)
    }

    fn in_words(&self, params: &Params) -> String {
        format!("{} tasks write {} each", shown(params, "tasks"), shown(params, "size"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        sample::entries(subjects, &params(job), |planned| -> Work {
            let (job, cpus) = (job.clone(), host.cpu_numbers.clone());
            match planned.subject {
                Subject::Hugefork => Box::new(move |_| in_regions(&job, &cpus)),
                _ => {
                    let kind = planned.pages();
                    Box::new(move |_| in_mappings(&job, kind, &cpus))
                }
            }
        })
    }
}

/// Parameters of the cases with tasks.
pub(super) fn params(job: &Job) -> Params {
    crate::results::result::params([("size", Param::size(job.size)), ("tasks", Param::Number(job.tasks as u64))])
}

/// The figures of the cases with tasks. The areas were created from `start` to `created`, and `meter` has counted since
/// `start`.
pub(super) fn measures(job: &Job, start: u64, created: u64, outcome: Outcome, meter: &CpuMeter) -> Vec<Measure> {
    let gib = (job.size * job.tasks) as f64 / (1u64 << 30) as f64;
    Measure::all([
        (Metric::THROUGHPUT, gib / outcome.seconds),
        (Metric::CREATE, clock::ms(start, created)),
        (Metric::CPU, meter.ms()),
    ])
}

fn in_mappings(job: &Job, kind: PageKind, cpus: &[usize]) -> Result<Sample, BenchError> {
    // Warming also checks that the machine has huge pages: the children do not report whether they got any.
    warm(kind, job.size, job.tasks, cpus)?;
    let (meter, start) = (CpuMeter::start(), clock::now());
    let mut memories = Vec::with_capacity(job.tasks);
    for _ in 0..job.tasks {
        let memory = KernelMemory::map(kind, job.size, Reserve::No)?;
        memory.inherit(Inherit::Yes)?;
        memories.push(memory);
    }
    let areas: Vec<Area> = memories.iter().map(|memory| Area::new(memory.as_ptr(), memory.len())).collect();
    // SAFETY: private mappings, which children get as copies of their own.
    let team = unsafe { Team::of_processes(&areas, cpus) }?;
    let created = clock::now();
    let outcome = team.run()?;
    Ok(Sample::of(measures(job, start, created, outcome, &meter)))
}

fn in_regions(job: &Job, cpus: &[usize]) -> Result<Sample, BenchError> {
    warm(PageKind::Thp, job.size, job.tasks, cpus)?;
    let pool = pools::used(job.size * job.tasks, BlockSize::MIB_2)?;
    let (meter, start) = (CpuMeter::start(), clock::now());
    let regions = (0..job.tasks).map(|_| pool.region(job.size)).collect::<Result<Vec<Region>, _>>()?;
    let areas: Vec<Area> = regions.iter().map(|region| Area::new(region.as_mut_ptr(), region.len())).collect();
    // SAFETY: one region a thread, which outlive the team: it ends within this function.
    let team = unsafe { Team::of_threads(&areas, cpus) }?;
    let created = clock::now();
    let outcome = team.run()?;
    Ok(Sample::on(&pool, Some(pool.clear_kernel()), measures(job, start, created, outcome, &meter)))
}
