//! `snapshot`: how long the program stands still while a fork or snapshot of its populated area is taken.
//!
//! `pause` is the time of one call, in the thread that makes it: `fork(2)` in the parent (the child exits at once),
//! `Region::snapshot()`, or `memcpy` of the whole area to memory that is already present. `anon-cow-seq` and
//! `writer-latency` measure what writers pay later.
//!
//! Before every sample each page of the area is written, untimed: the last fork or snapshot has left pages read-only,
//! and the next one would have less to do.

use hugefork::Pool;
use hugefork_kernels::Kernel;

use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::Pinned;
use crate::measure::clock::Stopwatch;
use crate::measure::random::Random;
use crate::measure::tasks::{fork_child, wait_for};
use crate::measure::warm::warm_page_tables;
use crate::measure::work;
use crate::memory::engine::{self, Populated};
use crate::memory::kernel_memory::{Inherit, KernelMemory, PageKind};
use crate::plan::job::{EngineChoice, Job, Scope, SubjectPlan};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, params, shown};
use crate::run::sample::{self, Entry, Work};
use crate::subject::Subject;

/// The case.
#[derive(Debug)]
pub struct Snapshot;

impl Case for Snapshot {
    fn facts(&self) -> Facts {
        Facts {
            forks: true,
            // The pause comes from page tables and mappings, not from the contents of the area.
            feels_caches: false,
            ..Facts::new("snapshot", Metric::PAUSE, [512 << 20, 1 << 30])
        }
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![Subject::Hugefork, Subject::ForkThp, Subject::ForkHugetlb, Subject::Fork4k, Subject::Memcpy]
    }

    fn memory(&self, job: &Job, subject: &Subject) -> Option<usize> {
        match subject {
            // The area, and a copy of all of it.
            Subject::Memcpy => job.size.checked_mul(2),
            _ => Some(job.size),
        }
    }

    fn in_words(&self, params: &Params) -> String {
        format!("pause, {}", shown(params, "size"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let (size, cpu) = (job.size, host.cpu_numbers[0]);
        sample::entries(subjects, &params([("size", Param::size(size))]), |planned| match planned.engine {
            Some(choice) => Box::new(RegionPause { size, choice, cpu, held: None }),
            None if planned.subject == Subject::Memcpy => Box::new(MemcpyPause { size, cpu, held: None }),
            None => Box::new(ForkPause { size, kind: planned.pages(), cpu, area: None }),
        })
    }

    fn aside(&self, subject: &Subject) -> Option<&'static str> {
        (*subject == Subject::Memcpy).then_some("a whole second copy, though nothing to pay later")
    }
}

/// Times `call` on one CPU.
fn timed<T>(cpu: usize, call: impl FnOnce() -> Result<T, BenchError>) -> Result<(T, Vec<Measure>), BenchError> {
    let _pinned = Pinned::to(cpu)?;
    let mut watch = Stopwatch::default();
    let (taken, pause) = watch.time(call);
    Ok((taken?, Measure::sample([(Metric::PAUSE, pause)], watch.cpu())))
}

struct ForkPause {
    size: usize,
    kind: PageKind,
    cpu: usize,
    area: Option<KernelMemory>,
}

impl Work for ForkPause {
    fn prepare(&mut self) -> Result<(), BenchError> {
        match &self.area {
            // SAFETY: our own mapping; the last child is gone.
            Some(area) => unsafe { work::touch_pages(area.as_ptr(), area.len()) },
            None => self.area = Some(KernelMemory::populated(self.kind, self.size)?),
        }
        warm_page_tables(self.cpu)
    }

    fn sample(&mut self, _: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let area = self.area.as_ref().expect("prepared before sampled");
        area.inherit(Inherit::Yes)?;
        // SAFETY: the child does nothing but leave.
        let (child, measures) = timed(self.cpu, || unsafe { fork_child(|| 0) })?;
        wait_for(child).map_err(|how| BenchError::Task { task: 0, tasks: 1, how })?;
        area.inherit(Inherit::No)?;
        Ok(measures)
    }

    fn release(&mut self) {
        self.area = None;
    }
}

struct MemcpyPause {
    size: usize,
    cpu: usize,
    held: Option<(KernelMemory, KernelMemory)>,
}

impl Work for MemcpyPause {
    fn prepare(&mut self) -> Result<(), BenchError> {
        match &self.held {
            // SAFETY: our own mapping.
            Some((from, _)) => unsafe { work::touch_pages(from.as_ptr(), from.len()) },
            None => {
                // Transparent huge pages where the kernel has them: memcpy's best case.
                let huge = || KernelMemory::written(PageKind::Thp, self.size, 1);
                self.held = Some((huge()?, huge()?));
            }
        }
        Ok(())
    }

    fn sample(&mut self, _: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let (from, to) = self.held.as_ref().expect("prepared before sampled");
        // SAFETY: two mappings of our own of `size` bytes.
        let ((), measures) = timed(self.cpu, || unsafe {
            libc::memcpy(to.as_ptr().cast(), from.as_ptr().cast(), self.size);
            Ok(())
        })?;
        Ok(measures)
    }

    fn release(&mut self) {
        self.held = None;
    }
}

struct RegionPause {
    size: usize,
    choice: EngineChoice,
    cpu: usize,
    held: Option<Populated>,
}

impl Work for RegionPause {
    fn prepare(&mut self) -> Result<(), BenchError> {
        match &self.held {
            // SAFETY: our own region; the last snapshot is gone, so these writes find room.
            Some(held) => unsafe { work::touch_pages(held.region.as_mut_ptr(), held.region.len()) },
            None => {
                let pool = engine::warm_pool(self.choice, self.size)?;
                self.held = Some(Populated::new(pool, self.choice.grain, self.size, 1)?);
            }
        }
        Ok(())
    }

    fn sample(&mut self, _: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let held = self.held.as_ref().expect("prepared before sampled");
        let (snapshot, measures) = timed(self.cpu, || Ok(held.region.snapshot()?))?;
        drop(snapshot);
        Ok(measures)
    }

    fn release(&mut self) {
        self.held = None;
    }

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.held.as_ref().map(|held| (&held.pool, None))
    }
}
