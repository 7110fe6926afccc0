//! `clear` and `copy`: one block, cleared or copied around a random target, then used.
//!
//! One sample goes over a number of blocks ([`operations`]), in turn, and is the median over them. All subjects share one
//! area (for `copy`: two) and one cursor, so that between two visits to a block the whole area has been gone over: at least
//! four times the last-level cache, unless `--size` says less.
//!
//! The area is anonymous memory with transparent huge pages, touched before. What is timed: fence, clock, the operation,
//! fence, clock, the use, fence, clock. `op` is the first interval, `use` the second, `total` both. Fence and clock are in
//! every figure alike: 0.1 us, which only blocks of 4 KiB notice.
//!
//! `victim_slowdown`, of `clear` when it is named, is an entry of its own: the subject clears block after block, with no use
//! between, while a [victim](crate::victim) walks through its cache on another CPU.

use std::cell::RefCell;
use std::rc::Rc;

use hugefork_kernels::{Kernel, Target};

use crate::affinity::Pinned;
use crate::cases::Case;
use crate::clock::{self, CpuTime};
use crate::error::BenchError;
use crate::kernel_memory::{KernelMemory, PageKind};
use crate::metric::{Measure, Metric};
use crate::plan::{CasePlan, Scope, SubjectPlan};
use crate::random::Random;
use crate::result::{Param, Params};
use crate::reversed::Reversed;
use crate::sample::{Entry, Work};
use crate::stats::median_in_place;
use crate::subject::Subject;
use crate::victim::{Victim, VictimPlan};
use crate::work;

/// Bytes a sample goes over, where the block allows: 128 of 2 MiB.
const SAMPLE: usize = 256 << 20;

/// Blocks a sample: enough for a median of large ones, few enough for small ones to be over in a moment.
fn operations(block: usize) -> usize {
    (SAMPLE / block).clamp(3, 1024)
}

/// What happens to the block after the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Read-modify-write of the 64 KiB around the target.
    Near,
    /// Every word of the block written in order.
    Block,
}

#[derive(Clone, Copy, Debug)]
enum Tool {
    Kernel(Kernel),
    Reversed(Reversed),
    Libc,
}

pub(super) fn entries(plan: &CasePlan, cpus: &[usize]) -> Vec<Entry> {
    let area = Rc::new(RefCell::new(Area { plan: plan.clone(), held: None }));
    let uses: &[Use] = match plan.scope {
        Scope::Quick => &[Use::Near],
        Scope::Full | Scope::Sweep => &[Use::Near, Use::Block],
    };
    let mut entries = Vec::new();
    let mut enter = |subject: &SubjectPlan, used: Use, make: &dyn Fn(Tool, &mut Params) -> MadeWork| {
        let mut params = params(plan);
        let tool = match &subject.lack {
            Some(lack) => Err(lack.clone()),
            None => Tool::of(plan, &subject.subject, used),
        };
        let work = tool.and_then(|tool| {
            tool.name(&mut params);
            make(tool, &mut params)
        });
        entries.push(Entry { subject: subject.subject.clone(), params, keep: subject.keep, work });
    };
    for used in uses.iter().copied() {
        for subject in &plan.subjects {
            enter(subject, used, &|tool, params| {
                params.insert("use".to_owned(), used.param(plan.block_size.bytes()));
                Ok(Box::new(ClearCopy { area: Rc::clone(&area), tool, used, cpu: cpus[0] }))
            });
        }
    }
    if let Some(planned) = &plan.victim {
        let victim = Rc::new(RefCell::new(None));
        for subject in &plan.subjects {
            enter(subject, Use::Near, &|tool, params| {
                let planned = planned.clone()?;
                params.insert("victim".to_owned(), Param::size(planned.set));
                let (area, victim) = (Rc::clone(&area), Rc::clone(&victim));
                Ok(Box::new(Disturb { area, planned, victim, tool, cpu: cpus[0] }))
            });
        }
    }
    entries
}

/// A subject at work, or why it cannot be.
type MadeWork = Result<Box<dyn Work>, String>;

/// What all entries have; the rest depends on the subject and on what is measured.
fn params(plan: &CasePlan) -> Params {
    Params::from([("size".to_owned(), Param::text(plan.block_size)), ("area".to_owned(), Param::size(plan.size))])
}

impl Use {
    fn param(self, block: usize) -> Param {
        match self {
            Use::Near => Param::size(work::NEAR.min(block)),
            Use::Block => Param::text("block"),
        }
    }
}

/// The shared area, got by whoever comes first.
struct Area {
    plan: CasePlan,
    held: Option<Held>,
}

struct Held {
    to: KernelMemory,
    from: Option<KernelMemory>,
    next: usize,
}

impl Area {
    fn prepare(&mut self) -> Result<(), BenchError> {
        if self.held.is_none() {
            // Huge where the machine allows: the subjects share it, so small pages are a caveat and not an obstacle. Words
            // that are not zero: pages that nobody ever wrote might be cheaper to read, and clearing must have work to do.
            let populated = || KernelMemory::written(PageKind::Thp, self.plan.size, 1);
            let to = populated()?;
            let from = match self.plan.case {
                Case::Copy => Some(populated()?),
                _ => None,
            };
            self.held = Some(Held { to, from, next: 0 });
        }
        Ok(())
    }

    fn caveat(&self) -> Option<String> {
        let small = self.held.as_ref().is_some_and(|held| held.to.check_huge().is_err());
        small.then(|| {
            format!("{}: the area is not on huge pages, so every subject also pays for TLB misses", self.plan.case)
        })
    }
}

impl Held {
    /// The offset of the next block.
    fn advance(&mut self, block: usize) -> usize {
        let offset = self.next * block;
        self.next = (self.next + 1) % (self.to.len() / block);
        offset
    }
}

struct ClearCopy {
    area: Rc<RefCell<Area>>,
    tool: Tool,
    used: Use,
    cpu: usize,
}

impl Work for ClearCopy {
    fn prepare(&mut self) -> Result<(), BenchError> {
        self.area.borrow_mut().prepare()
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let mut area = self.area.borrow_mut();
        let block = area.plan.block_size.bytes();
        let held = area.held.as_mut().expect("prepared before sampled");
        let mut times = [const { Vec::new() }; 3];
        let _pinned = Pinned::to(self.cpu)?;
        let before = CpuTime::of_this_thread();
        for _ in 0..operations(block) {
            let offset = held.advance(block);
            let target = targets.word_offset(block);
            // SAFETY: `offset` is a whole block's within both areas, which are ours alone, of the same length, 2 MiB-aligned
            // and do not overlap; `target` lies in the block.
            let [start, done, end] = unsafe {
                let to = held.to.as_ptr().add(offset);
                let from = held.from.as_ref().map(|from| from.as_ptr().add(offset).cast_const());
                let start = clock::now_fenced();
                self.tool.run(to, from, block, target);
                let done = clock::now_fenced();
                match self.used {
                    Use::Near => work::near_use(to, block, target),
                    Use::Block => work::write_words(to.cast(), block / 8, 0),
                }
                [start, done, clock::now_fenced()]
            };
            for (times, (from, to)) in times.iter_mut().zip([(start, done), (done, end), (start, end)]) {
                times.push(clock::us(from, to));
            }
        }
        let used = CpuTime::of_this_thread().since(before);
        let metrics = [Metric::Op, Metric::Use, Metric::Total].into_iter().zip(times.iter_mut());
        let mut measures: Vec<Measure> =
            metrics.map(|(metric, times)| Measure::new(metric, median_in_place(times).unwrap_or(f64::NAN))).collect();
        measures.extend(Measure::cpu(used));
        Ok(measures)
    }

    fn release(&mut self) {
        self.area.borrow_mut().held = None;
    }

    fn caveat(&self) -> Option<String> {
        self.area.borrow().caveat()
    }
}

/// Clears block after block beside a victim.
struct Disturb {
    area: Rc<RefCell<Area>>,
    planned: VictimPlan,
    /// Shared like the area.
    victim: Rc<RefCell<Option<Victim>>>,
    tool: Tool,
    cpu: usize,
}

impl Work for Disturb {
    fn prepare(&mut self) -> Result<(), BenchError> {
        let mut victim = self.victim.borrow_mut();
        if victim.is_none() {
            *victim = Some(Victim::new(self.planned)?);
        }
        self.area.borrow_mut().prepare()
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let mut area = self.area.borrow_mut();
        let block = area.plan.block_size.bytes();
        let held = area.held.as_mut().expect("prepared before sampled");
        let victim = self.victim.borrow();
        let victim = victim.as_ref().expect("prepared before sampled");
        let _pinned = Pinned::to(self.cpu)?;
        let slowdown = victim.slowdown(|| {
            let offset = held.advance(block);
            // SAFETY: a whole block of the area, which is ours alone; the target lies in it.
            unsafe { self.tool.run(held.to.as_ptr().add(offset), None, block, targets.word_offset(block)) };
        })?;
        Ok(vec![Measure::new(Metric::VictimSlowdown, slowdown)])
    }

    fn release(&mut self) {
        *self.victim.borrow_mut() = None;
        self.area.borrow_mut().held = None;
    }

    fn caveat(&self) -> Option<String> {
        self.area.borrow().caveat()
    }
}

impl Tool {
    /// Or why there is none.
    fn of(plan: &CasePlan, subject: &Subject, used: Use) -> Result<Tool, String> {
        Ok(match subject {
            Subject::Kernel(kernel) => Tool::Kernel(*kernel),
            Subject::Reversed => Tool::Reversed(Reversed::new()),
            Subject::Hugefork => {
                let used = match used {
                    Use::Near => hugefork_kernels::Use::Near,
                    Use::Block => hugefork_kernels::Use::Whole,
                };
                let (kernels, block) =
                    (hugefork::machine::kernels().map_err(|error| error.to_string())?, plan.block_size.bytes());
                Tool::Kernel(if plan.case == Case::Clear {
                    kernels.clear(block, used)
                } else {
                    kernels.copy(block, used)
                })
            }
            _ => Tool::Libc,
        })
    }

    /// Adds what it is to `params`.
    fn name(self, params: &mut Params) {
        match self {
            Tool::Kernel(kernel) => {
                params.insert("kernel".to_owned(), Param::text(kernel.far().name()));
                params.insert("order".to_owned(), Param::text(kernel.order()));
                // Only the hybrid has a window, and a primitive of its own for it.
                if kernel.order() == hugefork_kernels::Order::Hybrid {
                    params.insert("near".to_owned(), Param::text(kernel.near().name()));
                    params.insert("window".to_owned(), Param::size(kernel.window()));
                }
            }
            Tool::Reversed(reversed) => {
                params.insert("kernel".to_owned(), Param::text(reversed.stores));
                params.insert("order".to_owned(), Param::text("target-last"));
            }
            Tool::Libc => {}
        }
    }

    /// # Safety
    /// `to` and, for a copy, `from` are blocks of `len` bytes, aligned to 4096, that do not overlap and that nobody else
    /// accesses; `target < len`.
    #[inline]
    unsafe fn run(self, to: *mut u8, from: Option<*const u8>, len: usize, target: usize) {
        // SAFETY: by contract, in each arm.
        unsafe {
            match (self, from) {
                (Tool::Kernel(kernel), None) => kernel.clear(to, len, Target::At(target)),
                (Tool::Kernel(kernel), Some(from)) => kernel.copy(to, from, len, Target::At(target)),
                (Tool::Reversed(reversed), _) => reversed.clear(to, len, target),
                // Called through libc and not through `ptr::write_bytes`, so that it is the function of that name and not
                // what the compiler would put in its place.
                (Tool::Libc, None) => drop(libc::memset(to.cast(), 0, len)),
                (Tool::Libc, Some(from)) => drop(libc::memcpy(to.cast(), from.cast(), len)),
            }
        }
    }
}
