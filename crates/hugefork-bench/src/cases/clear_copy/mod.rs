//! `clear` and `copy`: one block, cleared or copied around a random target, then used.
//!
//! One sample goes over a number of blocks in turn, and is the median of their times. All subjects share one area
//! (for `copy`: two) and one cursor, so that the subjects have gone over the whole area between two visits to a
//! block. The area is at least four times the last-level cache, unless `--size` requests less.
//!
//! The area is anonymous memory with transparent huge pages, touched before. The sequence is: fence, clock, the
//! operation, fence, clock, the use, fence, clock. `op` is the time of the operation, `use` that of the use, `total`
//! that of both. Every figure includes a fence and a reading of the clock: 0.1 us, which matters only for blocks of 4
//! KiB.
//!
//! A full run of `clear` also measures `victim_slowdown`, as an entry of its own: the subject clears block after block,
//! without using them, while a victim thread on another CPU walks through a set of cache lines.

mod area;
mod disturb;
mod tool;
mod victim;

use std::cell::RefCell;
use std::rc::Rc;

use hugefork_kernels::{Kernel, Use, every_kernel};

use self::area::{RcCell, SharedArea};
use self::disturb::Disturb;
pub use self::disturb::VICTIM_SLOWDOWN;
use self::tool::{Operation, Tool, use_param};
use self::victim::{Victim, VictimPlan};
use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::Pinned;
use crate::measure::clock::{self, CpuTime};
use crate::measure::random::Random;
use crate::measure::work;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, params, shown};
use crate::results::stats::{nearest_rank, sorted};
use crate::run::sample::{Entry, Sample, Work};
use crate::subject::{Subject, linux_order, one_call};

/// The case `clear`, or the case `copy`.
#[derive(Debug)]
pub struct ClearCopy(Operation);

/// The case that clears blocks.
pub const CLEAR: ClearCopy = ClearCopy(Operation::Clear);

/// The case that copies blocks from one area to another.
pub const COPY: ClearCopy = ClearCopy(Operation::Copy);

/// The time of the clear or copy.
const OP: Metric = Metric::new("op", "us");

/// The time of the use that follows the clear or copy.
const USE: Metric = Metric::new("use", "us");

/// The time of a clear or copy and its use together, for each block.
const TOTAL: Metric = Metric::new("total", "us");

impl Case for ClearCopy {
    fn facts(&self) -> Facts {
        Facts { has_blocks: true, ..Facts::new(self.0.name(), &[TOTAL], [256 << 20, 1 << 30]) }
    }

    /// The quick scope has hugefork's choice, libc, the order of Linux up to 6.19, and one `rep` over the whole
    /// block. The full scope has every kernel of the machine.
    fn subjects(&self, scope: Scope) -> Vec<Subject> {
        let libc = match self.0 {
            Operation::Clear => Subject::Memset,
            Operation::Copy => Subject::Memcpy,
        };
        let mut subjects = vec![Subject::Hugefork, libc];
        let kernels: Vec<Kernel> = match scope {
            Scope::Quick => vec![linux_order(), one_call()],
            Scope::Full => every_kernel().collect(),
        };
        subjects.extend(kernels.into_iter().filter(|kernel| self.can_use(kernel)).map(Subject::Kernel));
        subjects
    }

    fn memory(&self, job: &Job, _: &Subject) -> Option<usize> {
        match self.0 {
            Operation::Clear => Some(job.size),
            Operation::Copy => job.size.checked_mul(2),
        }
    }

    fn in_words(&self, params: &Params) -> String {
        format!("{} + use of {}", shown(params, "size"), shown(params, "use"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let maker = Maker::new(self.0, job, host);
        let uses: &[Use] = match job.scope {
            Scope::Quick => &[Use::Near],
            Scope::Full => &[Use::Near, Use::Whole],
        };
        let mut entries: Vec<Entry> = Vec::new();
        for used in uses.iter().copied() {
            entries.extend(subjects.iter().map(|planned| maker.timed(planned, used)));
        }
        if self.0 == Operation::Clear && job.scope != Scope::Quick {
            let (found, victim) = (victim::plan(host), Rc::default());
            entries.extend(subjects.iter().map(|planned| maker.disturbing(planned, &found, &victim)));
        }
        entries
    }

    /// Any kernel that has a name can take part, whether `subjects` lists it or not.
    fn has(&self, subject: &Subject) -> bool {
        match subject {
            Subject::Kernel(kernel) => self.can_use(kernel),
            named => self.subjects(Scope::Quick).contains(named),
        }
    }
}

impl ClearCopy {
    fn can_use(&self, kernel: &Kernel) -> bool {
        self.0 == Operation::Clear || (kernel.far().can_copy() && kernel.near().can_copy())
    }
}

/// Bytes that a sample clears or copies, if the block size allows: 128 blocks of 2 MiB.
const SAMPLE: usize = 256 << 20;

/// Number of blocks in a sample: enough for a median if blocks are large, and few enough for a short sample if blocks
/// are small.
fn operations(block: usize) -> usize {
    (SAMPLE / block).clamp(3, 1024)
}

/// Makes entries that share one area.
struct Maker {
    operation: Operation,
    job: Job,
    area: RcCell<SharedArea>,
    cpu: usize,
}

impl Maker {
    fn new(operation: Operation, job: &Job, host: &Host) -> Maker {
        let area = SharedArea { operation, size: job.size, block: job.block_size.bytes(), held: None };
        Maker { operation, job: job.clone(), area: Rc::new(RefCell::new(area)), cpu: host.cpu_numbers[0] }
    }

    /// An entry that times one operation after the other, each together with the use `used` of its block.
    fn timed(&self, planned: &SubjectPlan, used: Use) -> Entry {
        self.entry(planned, used, |tool, params| {
            params.insert("use".to_owned(), use_param(used, self.job.block_size.bytes()));
            let timed = Timed { area: Rc::clone(&self.area), tool, used, cpu: self.cpu };
            Ok(Box::new(move |targets: &mut Random| timed.sample(targets)) as Work)
        })
    }

    /// An entry for clears while a victim thread runs, or for the reason why no CPU was found for the victim.
    fn disturbing(
        &self,
        subject: &SubjectPlan,
        found: &Result<VictimPlan, String>,
        victim: &RcCell<Option<Victim>>,
    ) -> Entry {
        self.entry(subject, Use::Near, |tool, params| {
            let planned = found.clone()?;
            params.insert("victim".to_owned(), Param::size(planned.set));
            let (area, victim) = (Rc::clone(&self.area), Rc::clone(victim));
            let disturb = Disturb { area, planned, victim, tool, cpu: self.cpu };
            Ok(Box::new(move |targets: &mut Random| disturb.sample(targets)) as Work)
        })
    }

    fn entry(
        &self,
        planned: &SubjectPlan,
        used: Use,
        make: impl FnOnce(Tool, &mut Params) -> Result<Work, String>,
    ) -> Entry {
        let mut params = params([("size", Param::text(self.job.block_size)), ("area", Param::size(self.job.size))]);
        let tool = match &planned.lack {
            Some(lack) => Err(lack.clone()),
            None => Tool::of(&planned.subject, self.operation, self.job.block_size.bytes(), used),
        };
        let work = tool.and_then(|tool| {
            tool.name(&mut params);
            make(tool, &mut params)
        });
        Entry { subject: planned.subject.clone(), params, work }
    }
}

/// Times one operation after the other.
struct Timed {
    area: RcCell<SharedArea>,
    tool: Tool,
    used: Use,
    cpu: usize,
}

impl Timed {
    fn sample(&self, targets: &mut Random) -> Result<Sample, BenchError> {
        let mut area = self.area.borrow_mut();
        area.prepare()?;
        let block = area.block;
        let held = area.held.as_mut().expect("prepared before sampled");
        let mut times = [const { Vec::new() }; 3];
        let _pinned = Pinned::to(self.cpu)?;
        let before = CpuTime::of_this_thread();
        for _ in 0..operations(block) {
            let offset = held.advance(block);
            let target = targets.word_offset(block);
            // SAFETY: a whole block from `offset` on lies within both areas; the areas are ours alone, have the same
            // length, are 2 MiB-aligned and do not overlap; `target` lies in the block.
            let [start, done, end] = unsafe {
                let to = held.to.as_ptr().add(offset);
                let from = held.from.as_ref().map(|from| from.as_ptr().add(offset).cast_const());
                let start = clock::now_fenced();
                self.tool.run(to, from, block, target);
                let done = clock::now_fenced();
                if self.used == Use::Whole {
                    work::write_words(to.cast(), block / 8, 0);
                } else {
                    work::near_use(to, block, target);
                }
                [start, done, clock::now_fenced()]
            };
            for (times, (from, to)) in times.iter_mut().zip([(start, done), (done, end), (start, end)]) {
                times.push(clock::us(from, to));
            }
        }
        let cpu = CpuTime::of_this_thread().since(before).ms();
        let [op, used, total] = times.map(|times| nearest_rank(&sorted(times), 0.5));
        let measures = Measure::all([(OP, op), (USE, used), (TOTAL, total), (Metric::CPU, cpu)]);
        Ok(Sample { measures, caveat: area.caveat(), ..Sample::default() })
    }
}

#[cfg(test)]
mod tests {
    use hugefork::BlockSize;

    use super::*;
    use crate::memory::folios::Settings;

    #[test]
    fn kernels_that_cannot_copy_stay_out_of_copy() {
        for subject in COPY.subjects(Scope::Full) {
            if let Subject::Kernel(kernel) = subject {
                assert!(kernel.far().can_copy(), "{kernel}");
            }
        }
    }

    #[test]
    fn a_victim_is_looked_for_where_clear_is_named() {
        let job = |scope| Job {
            scope,
            size: 2 << 20,
            tasks: 1,
            block_size: BlockSize::MIB_2,
            command: None,
            settings: Settings::Fixed,
        };
        let subject = SubjectPlan { subject: Subject::Memset, memory: 0, lack: None };
        let victims = |case: ClearCopy, scope, host: &Host| -> Vec<bool> {
            let entries = case.entries(&job(scope), std::slice::from_ref(&subject), host);
            entries.iter().filter(|entry| !entry.params.contains_key("use")).map(|entry| entry.work.is_ok()).collect()
        };
        let mut host = Host { cpu_numbers: vec![0, 1], ..Host::default() };
        assert!(victims(CLEAR, Scope::Quick, &host).is_empty());
        assert_eq!(victims(CLEAR, Scope::Full, &host), [true]);
        assert!(victims(COPY, Scope::Full, &host).is_empty());
        host.cpu_numbers = vec![0];
        assert_eq!(victims(CLEAR, Scope::Full, &host), [false]);
    }
}
