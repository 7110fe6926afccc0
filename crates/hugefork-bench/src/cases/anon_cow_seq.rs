//! `anon-cow-seq`: one populated area, a fork of it for each task, and each task writes every 8-byte word of its fork: the work
//! of vm-scalability's case of that name.
//!
//! `throughput` and `create` as in `anon-w-seq`; here `create` holds the forks themselves: `fork(2)`, or `Region::fork()` and
//! a thread. The original stays as it is, in everybody's way: no block may be reused instead of copied. That it stayed as it
//! was is checked after every sample.
//!
//! `overhead`, for hugefork, is measured after the write phase, on one more fork: a first write at a random offset of a block,
//! alone, then the pool's own copy of a block of the same backing, both out of the caches; median fault less median copy.

use hugefork::{Pool, Region};
use hugefork_kernels::{Kernel, Target};

use super::anon_w_seq::{measures, params};
use crate::affinity::Pinned;
use crate::clock;
use crate::engine;
use crate::error::BenchError;
use crate::kernel_memory::{Inherit, KernelMemory, PageKind};
use crate::metric::{Measure, Metric};
use crate::plan::{CasePlan, EngineChoice, SubjectPlan};
use crate::random::Random;
use crate::result::Params;
use crate::sample::Work;
use crate::stats::median_in_place;
use crate::tasks::{Area, Team};
use crate::warm::warm;
use crate::work;

/// Faults of an overhead pass, at most: enough for a median.
const OVERHEAD_FAULTS: usize = 256;

/// The original holds `p[i] = i + BIAS`, so that what a task writes differs from what it copied.
const BIAS: u64 = 1;

pub(super) fn work(plan: &CasePlan, subject: &SubjectPlan, cpus: &[usize]) -> (Params, Box<dyn Work>) {
    let mut params = params(plan);
    let (plan, cpus) = (plan.clone(), cpus.to_vec());
    match subject.engine {
        Some(choice) => {
            params.extend(engine::asked(choice));
            (params, Box::new(Hugefork { plan, choice, cpus, held: None }))
        }
        None => (params, Box::new(Processes { plan, kind: subject.pages(), cpus, original: None })),
    }
}

struct Processes {
    plan: CasePlan,
    kind: PageKind,
    cpus: Vec<usize>,
    original: Option<KernelMemory>,
}

impl Work for Processes {
    fn prepare(&mut self) -> Result<(), BenchError> {
        let original = match self.original.take() {
            Some(held) => held,
            None => KernelMemory::populated(self.kind, self.plan.size)?,
        };
        // Written anew before every sample, as a program would have: after the last fork its pages are read-only, and a
        // second fork over such pages has less to do.
        // SAFETY: our own mapping; the children of the last sample are gone.
        unsafe { work::write_words(original.as_ptr().cast(), original.len() / 8, BIAS) };
        self.original = Some(original);
        // What the children will copy to.
        warm(self.kind, self.plan.size, self.plan.tasks, &self.cpus)
    }

    fn sample(&mut self, _: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let original = self.original.as_ref().expect("prepared before sampled");
        original.inherit(Inherit::Yes)?;
        let areas = vec![Area::new(original.as_ptr(), original.len()); self.plan.tasks];
        let start = clock::now();
        // SAFETY: a private mapping, of which every child gets a copy of its own.
        let team = unsafe { Team::of_processes(&areas, &self.cpus) }?;
        let created = clock::now();
        let outcome = team.run()?;
        original.inherit(Inherit::No)?;
        // SAFETY: our own mapping, which only children wrote, in their copies.
        unsafe { work::check_area(original.as_ptr(), original.len(), BIAS) }?;
        Ok(measures(&self.plan, clock::ms(start, created), outcome))
    }

    fn release(&mut self) {
        self.original = None;
    }
}

struct Hugefork {
    plan: CasePlan,
    choice: EngineChoice,
    cpus: Vec<usize>,
    held: Option<Held>,
}

struct Held {
    original: Region,
    /// What direct copies go to and come from: twice the rotation.
    reference: Region,
    // Regions before their pool: fields drop in order.
    pool: Pool,
    /// The next block of a half of `reference`.
    next: usize,
}

impl Hugefork {
    fn overhead(&mut self, targets: &mut Random) -> Result<Measure, BenchError> {
        let block = self.choice.block_size.bytes();
        let stride = self.plan.stride();
        let held = self.held.as_mut().expect("prepared before sampled");
        let fork = held.original.fork()?;
        let kernel = held.pool.copy_kernel();
        let half = held.reference.len() / 2;
        let blocks = half / block;
        let steps = (fork.len() / stride).min(OVERHEAD_FAULTS);
        let (mut faults, mut copies) = (Vec::with_capacity(steps), Vec::with_capacity(steps));
        let _pinned = Pinned::to(self.cpus[0])?;
        for step in 0..steps {
            let target = targets.word_offset(block);
            // SAFETY: the fork's stretch and the reference's two blocks are whole and within their regions, which are ours
            // alone; the blocks lie in different halves, and were written, so copying takes no fault.
            unsafe {
                let shared = fork.as_mut_ptr().add(step * stride);
                let start = clock::now_fenced();
                work::first_write(shared, target, 0);
                faults.push(clock::us(start, clock::now_fenced()));
                let to = held.reference.as_mut_ptr().add(held.next * block);
                let from = to.add(half).cast_const();
                let start = clock::now_fenced();
                kernel.copy(to, from, block, Target::At(target));
                copies.push(clock::us(start, clock::now_fenced()));
            }
            held.next = (held.next + 1) % blocks;
        }
        let medians = median_in_place(&mut faults).zip(median_in_place(&mut copies));
        Ok(Measure::new(Metric::Overhead, medians.map_or(f64::NAN, |(fault, copy)| fault - copy)))
    }
}

impl Work for Hugefork {
    fn prepare(&mut self) -> Result<(), BenchError> {
        if let Some(held) = &self.held {
            // As for the kernel's subjects: written since the last forks.
            // SAFETY: our own region; the forks of the last sample are gone.
            unsafe { work::write_words(held.original.as_mut_ptr().cast(), self.plan.size / 8, BIAS) };
            return Ok(());
        }
        let forks = self.plan.size * (self.plan.tasks + 1);
        let reference = 2 * self.plan.rotation;
        let pool = engine::warm_pool(self.choice, forks + reference)?;
        let original = engine::written(&pool, self.plan.size, BIAS)?;
        let reference = engine::written(&pool, reference, 0)?;
        self.held = Some(Held { original, reference, pool, next: 0 });
        Ok(())
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let held = self.held.as_ref().expect("prepared before sampled");
        let start = clock::now();
        let forks = (0..self.plan.tasks).map(|_| held.original.fork()).collect::<Result<Vec<Region>, _>>()?;
        let areas: Vec<Area> = forks.iter().map(|fork| Area::new(fork.as_mut_ptr(), fork.len())).collect();
        // SAFETY: one fork a thread, which outlive the team: it ends within this function.
        let team = unsafe { Team::of_threads(&areas, &self.cpus) }?;
        let created = clock::now();
        let outcome = team.run()?;
        drop(forks);
        // SAFETY: our own region, which nobody writes.
        unsafe { work::check_area(held.original.as_ptr(), held.original.len(), BIAS) }?;
        let mut measures = measures(&self.plan, clock::ms(start, created), outcome);
        measures.push(self.overhead(targets)?);
        Ok(measures)
    }

    fn release(&mut self) {
        self.held = None;
    }

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.held.as_ref().map(|held| (&held.pool, Some(held.pool.copy_kernel())))
    }
}
