//! `snapshot`: how long the program stands still while a fork or snapshot of its populated area is taken.
//!
//! `pause` is the time of the one call, in the thread that makes it: `fork(2)` seen from the parent (the child leaves at once),
//! `Region::snapshot()`, or `memcpy` of the whole area into memory that is there already. What writers pay later is
//! `anon-cow-seq`'s matter.
//!
//! Before every sample each page of the area is written, untimed: the last fork or snapshot left pages read-only, which the
//! next one would find done.

use hugefork::{Pool, Region};
use hugefork_kernels::Kernel;

use crate::affinity::Pinned;
use crate::clock::Stopwatch;
use crate::engine;
use crate::error::BenchError;
use crate::kernel_memory::{Inherit, KernelMemory, PageKind};
use crate::metric::{Measure, Metric};
use crate::plan::{CasePlan, EngineChoice, SubjectPlan};
use crate::random::Random;
use crate::result::{Param, Params};
use crate::sample::Work;
use crate::subject::Subject;
use crate::tasks::{fork_child, wait_for};
use crate::warm::warm;
use crate::work;

pub(super) fn work(plan: &CasePlan, subject: &SubjectPlan, cpus: &[usize]) -> (Params, Box<dyn Work>) {
    let (size, cpu) = (plan.size, cpus[0]);
    let mut params = Params::from([("size".to_owned(), Param::size(size))]);
    let work: Box<dyn Work> = match subject.engine {
        Some(choice) => {
            params.extend(engine::asked(choice));
            Box::new(Hugefork { plan: plan.clone(), choice, cpu, held: None })
        }
        None if subject.subject == Subject::Memcpy => Box::new(Memcpy { size, cpu, held: None }),
        None => Box::new(Fork { size, kind: subject.pages(), cpu, area: None }),
    };
    (params, work)
}

/// Times `call`, pinned, and throws away what it returns only after the clock was read.
fn timed<T>(cpu: usize, call: impl FnOnce() -> Result<T, BenchError>) -> Result<(T, Vec<Measure>), BenchError> {
    let _pinned = Pinned::to(cpu)?;
    let mut watch = Stopwatch::default();
    let (taken, pause) = watch.time(call);
    let mut measures = vec![Measure::new(Metric::Pause, pause)];
    measures.extend(Measure::cpu(watch.cpu()));
    Ok((taken?, measures))
}

/// Page tables of 16 GiB in 4 KiB pages.
pub(super) const PAGE_TABLES: usize = 32 << 20;

struct Fork {
    size: usize,
    kind: PageKind,
    cpu: usize,
    area: Option<KernelMemory>,
}

impl Work for Fork {
    fn prepare(&mut self) -> Result<(), BenchError> {
        match &self.area {
            // SAFETY: our own mapping; the last child is gone.
            Some(area) => unsafe { work::touch_pages(area.as_ptr(), area.len()) },
            None => self.area = Some(KernelMemory::populated(self.kind, self.size)?),
        }
        // What the fork's page tables will be made of: 2 MiB a GiB with 4 KiB pages.
        warm(PageKind::Base, PAGE_TABLES, 1, &[self.cpu])
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

struct Memcpy {
    size: usize,
    cpu: usize,
    held: Option<(KernelMemory, KernelMemory)>,
}

impl Work for Memcpy {
    fn prepare(&mut self) -> Result<(), BenchError> {
        match &self.held {
            // SAFETY: our own mapping.
            Some((from, _)) => unsafe { work::touch_pages(from.as_ptr(), from.len()) },
            None => {
                // Transparent huge pages where they are to be had: memcpy's best case.
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

struct Hugefork {
    plan: CasePlan,
    choice: EngineChoice,
    cpu: usize,
    held: Option<Held>,
}

struct Held {
    // The region before its pool: fields drop in order.
    region: Region,
    pool: Pool,
}

impl Work for Hugefork {
    fn prepare(&mut self) -> Result<(), BenchError> {
        match &self.held {
            // SAFETY: our own region; the last snapshot is gone, so these writes find room.
            Some(held) => unsafe { work::touch_pages(held.region.as_mut_ptr(), held.region.len()) },
            None => {
                let pool = engine::warm_pool(self.choice, self.plan.size)?;
                let region = engine::written(&pool, self.plan.size, 1)?;
                self.held = Some(Held { region, pool });
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
