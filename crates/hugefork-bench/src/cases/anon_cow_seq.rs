//! `anon-cow-seq`: each task gets a fork of one populated area, and writes every 8-byte word of that fork.
//! vm-scalability's case of this name does the same work.
//!
//! `throughput`, `create` and `cpu` are the metrics of `anon-w-seq`; in this case `create` includes the forks:
//! `fork(2)`, or `Region::fork()` and a thread. The parent area stays mapped, so that every block must be copied
//! and no block can be reused. After every sample the case checks that the parent has not changed.

use hugefork::{BlockSize, Region};

use super::anon_w_seq::{measures, params};
use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::clock::{self, CpuMeter};
use crate::measure::tasks::{Area, Team};
use crate::measure::warm::warm;
use crate::measure::work;
use crate::memory::kernel_memory::{Inherit, KernelMemory, PageKind};
use crate::memory::pools;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::results::metric::Metric;
use crate::results::result::{Params, shown};
use crate::run::sample::{self, Entry, Sample, Work};
use crate::subject::Subject;

/// The parent holds `p[i] = i + BIAS`, so that a written word differs from a copied one.
const BIAS: u64 = 1;

/// The case.
#[derive(Debug)]
pub struct AnonCowSeq;

impl Case for AnonCowSeq {
    fn facts(&self) -> Facts {
        let metrics = &[Metric::THROUGHPUT, Metric::CREATE, Metric::CPU];
        Facts { has_tasks: true, ..Facts::new("anon-cow-seq", metrics, [128 << 20, 512 << 20]) }
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![Subject::Hugefork, Subject::ForkThp, Subject::ForkHugetlb, Subject::Fork4k]
    }

    fn memory(&self, job: &Job, _: &Subject) -> Option<usize> {
        job.size.checked_mul(job.tasks + 1)
    }

    fn in_words(&self, params: &Params) -> String {
        format!("{} tasks write forks of {}", shown(params, "tasks"), shown(params, "size"))
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

fn in_mappings(job: &Job, kind: PageKind, cpus: &[usize]) -> Result<Sample, BenchError> {
    warm(kind, job.size, 1, cpus)?;
    let original = KernelMemory::written(kind, job.size, BIAS)?;
    original.check_huge()?;
    original.inherit(Inherit::Yes)?;
    // Warms the memory for the children's copies.
    warm(kind, job.size, job.tasks, cpus)?;
    let areas = vec![Area::new(original.as_ptr(), original.len()); job.tasks];
    let (meter, start) = (CpuMeter::start(), clock::now());
    // SAFETY: a private mapping, of which every child gets a copy of its own.
    let team = unsafe { Team::of_processes(&areas, cpus) }?;
    let created = clock::now();
    let outcome = team.run()?;
    let measures = measures(job, start, created, outcome, &meter);
    // SAFETY: our own mapping, which only children wrote, in their copies.
    unsafe { work::check_area(original.as_ptr(), original.len(), BIAS) }?;
    Ok(Sample::of(measures))
}

fn in_regions(job: &Job, cpus: &[usize]) -> Result<Sample, BenchError> {
    warm(PageKind::Thp, job.size, job.tasks, cpus)?;
    let pool = pools::used(job.size * (job.tasks + 1), BlockSize::MIB_2)?;
    let original = pools::written(&pool, job.size, BIAS)?;
    let (meter, start) = (CpuMeter::start(), clock::now());
    let forks = (0..job.tasks).map(|_| original.fork()).collect::<Result<Vec<Region>, _>>()?;
    let areas: Vec<Area> = forks.iter().map(|fork| Area::new(fork.as_mut_ptr(), fork.len())).collect();
    // SAFETY: one fork a thread, which outlive the team: it ends within this function.
    let team = unsafe { Team::of_threads(&areas, cpus) }?;
    let created = clock::now();
    let outcome = team.run()?;
    let measures = measures(job, start, created, outcome, &meter);
    drop(forks);
    // SAFETY: our own region, to which no thread writes.
    unsafe { work::check_area(original.as_ptr(), original.len(), BIAS) }?;
    Ok(Sample::on(&pool, Some(pool.copy_kernel()), measures))
}
