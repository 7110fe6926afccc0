//! `limit` of the cases with tasks: threads write memory that is populated with huge pages and writable already. So it
//! is the best that any memory engine could reach, and how far a subject is from it is what that subject costs.

use super::anon_w_seq::measures;
use crate::error::BenchError;
use crate::measure::clock;
use crate::measure::random::Random;
use crate::measure::tasks::{Area, Team};
use crate::measure::work;
use crate::memory::kernel_memory::{KernelMemory, PageKind};
use crate::plan::job::Job;
use crate::results::metric::Measure;
use crate::run::sample::Work;

/// Why it is set aside.
pub(super) const ASIDE: &str = "has nothing to clear, copy or map: the best that is possible";

pub(super) struct Limit {
    job: Job,
    cpus: Vec<usize>,
    /// An area for each task.
    areas: Vec<KernelMemory>,
}

impl Limit {
    pub(super) fn new(job: &Job, cpus: &[usize]) -> Limit {
        Limit { job: job.clone(), cpus: cpus.to_vec(), areas: Vec::new() }
    }
}

impl Work for Limit {
    fn prepare(&mut self) -> Result<(), BenchError> {
        while self.areas.len() < self.job.tasks {
            self.areas.push(KernelMemory::populated(PageKind::Thp, self.job.size)?);
        }
        for area in &self.areas {
            // Other words than the tasks will write, so that it is seen if they do not.
            // SAFETY: our own mapping; the threads of the last sample have ended.
            unsafe { work::write_words(area.as_ptr().cast(), area.len() / 8, 1) };
        }
        Ok(())
    }

    fn sample(&mut self, _: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let start = clock::now();
        let areas: Vec<Area> = self.areas.iter().map(|area| Area::new(area.as_ptr(), area.len())).collect();
        // SAFETY: one area a thread, which outlive the team: it ends within this function.
        let team = unsafe { Team::of_threads(&areas, &self.cpus) }?;
        let created = clock::now();
        Ok(measures(&self.job, clock::ms(start, created), team.run()?))
    }

    fn release(&mut self) {
        self.areas.clear();
    }
}
