//! `clear` and `copy`: one block, cleared or copied around a random target, then used.
//!
//! One sample goes over [`OPS`] blocks, in turn, and is the median over them. All subjects share one area (for `copy`: two)
//! and one cursor, so that between two visits to a block the whole area has been gone over: at least four times the
//! last-level cache, unless `--size` says less.
//!
//! The area is anonymous memory with transparent huge pages, touched before. What is timed: fence, clock, the operation,
//! fence, clock, the use, fence, clock. `op` is the first interval, `use` the second, `total` both.

use std::cell::RefCell;
use std::rc::Rc;

use hugefork_kernels::{Kernel, Target};

use crate::affinity::Pinned;
use crate::cases::Case;
use crate::clock::{self, CpuTime};
use crate::error::BenchError;
use crate::kernel_memory::{KernelMemory, PageKind};
use crate::plan::{CasePlan, Scope};
use crate::random::Random;
use crate::result::{Param, Params};
use crate::sample::{Entry, Measure, Metric, Work};
use crate::stats::median_in_place;
use crate::subject::Subject;
use crate::work;

/// Blocks a sample.
const OPS: usize = 128;

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
    Libc,
}

pub(super) fn entries(plan: &CasePlan, cpus: &[usize]) -> Vec<Entry> {
    let area = Rc::new(RefCell::new(Area { plan: plan.clone(), held: None }));
    let uses: &[Use] = match plan.scope {
        Scope::Quick => &[Use::Near],
        Scope::Full => &[Use::Near, Use::Block],
    };
    let mut entries = Vec::new();
    for used in uses.iter().copied() {
        for subject in &plan.subjects {
            let tool = match (&subject.subject, plan.case) {
                (Subject::Kernel(kernel), _) => Tool::Kernel(*kernel),
                (Subject::Hugefork, Case::Clear) => Tool::Kernel(Kernel::for_clear()),
                (Subject::Hugefork, _) => Tool::Kernel(Kernel::for_copy()),
                _ => Tool::Libc,
            };
            let work = match &subject.lack {
                Some(lack) => Err(lack.clone()),
                None => Ok(Box::new(ClearCopy { area: Rc::clone(&area), tool, used, cpu: cpus[0] }) as Box<dyn Work>),
            };
            let params = params(plan, tool, used);
            entries.push(Entry { subject: subject.subject.clone(), params, keep: subject.keep, work });
        }
    }
    entries
}

fn params(plan: &CasePlan, tool: Tool, used: Use) -> Params {
    let mut params = Params::from([
        ("size".to_owned(), Param::text(plan.block_size)),
        ("area".to_owned(), Param::size(plan.size)),
        (
            "use".to_owned(),
            match used {
                Use::Near => Param::size(work::NEAR.min(plan.block_size.bytes())),
                Use::Block => Param::text("block"),
            },
        ),
    ]);
    if let Tool::Kernel(kernel) = tool {
        params.insert("kernel".to_owned(), Param::text(kernel.far().name()));
        params.insert("order".to_owned(), Param::text(kernel.order()));
        // Only the hybrid has a window, and a primitive of its own for it.
        if kernel.order() == hugefork_kernels::Order::Hybrid {
            params.insert("near".to_owned(), Param::text(kernel.near().name()));
            params.insert("window".to_owned(), Param::size(kernel.window()));
        }
    }
    params
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

struct ClearCopy {
    area: Rc<RefCell<Area>>,
    tool: Tool,
    used: Use,
    cpu: usize,
}

impl Work for ClearCopy {
    fn prepare(&mut self) -> Result<(), BenchError> {
        let mut area = self.area.borrow_mut();
        if area.held.is_none() {
            let to = populated(area.plan.size)?;
            let from = match area.plan.case {
                Case::Copy => Some(populated(area.plan.size)?),
                _ => None,
            };
            area.held = Some(Held { to, from, next: 0 });
        }
        Ok(())
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let mut area = self.area.borrow_mut();
        let block = area.plan.block_size.bytes();
        let held = area.held.as_mut().expect("prepared before sampled");
        let blocks = held.to.len() / block;
        let mut times = [const { Vec::new() }; 3];
        let _pinned = Pinned::to(self.cpu)?;
        let before = CpuTime::of_this_thread();
        for _ in 0..OPS {
            let offset = held.next * block;
            held.next = (held.next + 1) % blocks;
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
        let area = self.area.borrow();
        let small = area.held.as_ref().is_some_and(|held| held.to.check_huge().is_err());
        small.then(|| {
            format!("{}: the area is not on huge pages, so every subject also pays for TLB misses", area.plan.case)
        })
    }
}

/// Touched memory, huge where the machine allows. The subjects share it, so small pages are a caveat and not an obstacle.
fn populated(len: usize) -> Result<KernelMemory, BenchError> {
    let memory = KernelMemory::map(PageKind::Thp, len, crate::kernel_memory::Reserve::Yes)?;
    memory.touch()?;
    // Words that are not zero: pages that nobody ever wrote might be cheaper to read, and clearing must have work to do.
    // SAFETY: new memory of our own.
    unsafe { work::write_words(memory.as_ptr().cast(), len / 8, 1) };
    Ok(memory)
}

impl Tool {
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
                // Called through libc and not through `ptr::write_bytes`, so that it is the function of that name and not
                // what the compiler would put in its place.
                (Tool::Libc, None) => drop(libc::memset(to.cast(), 0, len)),
                (Tool::Libc, Some(from)) => drop(libc::memcpy(to.cast(), from.cast(), len)),
            }
        }
    }
}
