//! `fork`: what `fork(2)` and the writes after it take from a program that saves itself again and again, as it is and
//! under `hugefork run`.
//!
//! The program is one of ours (`saver.rs`), a process of its own for each sample, so that nothing of the bench is
//! copied with it. It has `size` bytes of anonymous memory from libc's `mmap`, all of it written. In each round it
//! forks a child that holds its snapshot, writes words of the memory, one after the other, and lets the child go, which
//! checks what it holds. Then it waits until its huge pages have stayed what they are for a quarter of a second, as a
//! program does that saves itself once a minute. How many words there are, and where, is as in `writer-latency`; the
//! last of `epoch` rounds counts.
//!
//! | metric | |
//! |---|---|
//! | `pause` | the call of `fork(2)`. Subjects are compared by it |
//! | `total` | all writes together |
//! | `taken` | both |
//!
//! `kernel-4k` and `kernel-thp` have such pages by `madvise(2)`; under `hugefork run` the program asks for nothing.
//!
//! `fork-tails`: the same program, which has a CPU to itself and writes the words at an even pace, in a second. Each
//! write is timed alone: what is longer than a page fault is somebody keeping it waiting. Its children, and the
//! library's threads, are on another CPU.
//!
//! | metric | |
//! |---|---|
//! | `p50`, `p99`, `p99.9`, `max` | nearest ranks of the time of a write. Subjects are compared by `p99.9` |
//! | `off_cpu` | the longest for which the program had no CPU where it did not write: what the machine does by itself |
//! | `pause` | as above |

mod saver;

use std::path::PathBuf;
use std::process::Command;

pub use self::saver::run as run_program;
use self::saver::{Pace, Pages, Program, RoundTimes, SPAN, Tails};
use super::program;
use super::writer_latency::TAKEN;
use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::Pinned;
use crate::measure::random::Random;
use crate::measure::warm::warm_for_copies;
use crate::memory::kernel_memory::PageKind;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::plan::writes::{Density, Epoch, Writes};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Params, shown};
use crate::run::sample::{self, Entry, Work};
use crate::subject::Subject;

/// The hidden command that is the program.
pub const COMMAND: &str = "fork-program";

/// All writes together.
const TOTAL: Metric = Metric::new("total", "ms");

/// The longest that the program was kept off its CPU where it did not write.
const OFF_CPU: Metric = Metric::new("off_cpu", "us");

/// The two cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// `fork`.
    Whole,
    /// `fork-tails`.
    Tails,
}

impl Case for Fork {
    fn facts(&self) -> Facts {
        let (name, lead_metric) = match self {
            Fork::Whole => ("fork", Metric::PAUSE),
            Fork::Tails => ("fork-tails", Metric::P999),
        };
        Facts {
            has_pool: false,
            // The pause comes from page tables, and so do the tails.
            feels_caches: false,
            ..Facts::new(name, lead_metric, [128 << 20, 1 << 30])
        }
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![Subject::RunPool, Subject::KernelThp, Subject::Kernel4k]
    }

    fn in_words(&self, params: &Params) -> String {
        let (size, writes, epoch) = (shown(params, "size"), shown(params, "writes"), shown(params, "epoch"));
        let clustered = if shown(params, "pattern") == "clustered" { "clustered " } else { "" };
        match self {
            Fork::Whole => format!("fork {epoch} of a program with {size}, then {writes} {clustered}writes"),
            Fork::Tails => format!("fork {epoch} of {size}, {writes} {clustered}writes in {} s", SPAN.as_secs()),
        }
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let writes = job.writes.expect("this case is planned by its writes");
        sample::entries(subjects, &writes.params(job.size), |planned| {
            let command = job.command.clone();
            Box::new(Process {
                case: *self,
                command,
                subject: planned.subject.clone(),
                size: job.size,
                writes,
                cpus: (host.cpu_numbers[0], host.cpu_numbers.get(1).copied()),
            })
        })
    }

    fn usual_writes(&self, scope: Scope) -> Vec<Writes> {
        let third = |density| Writes { epoch: Epoch::Third, ..Writes::first(density) };
        match (self, scope) {
            (Fork::Tails, Scope::Quick) => vec![Writes::first(Density::HALF_DENSE)],
            (Fork::Tails, Scope::Full) => vec![third(Density::HALF_DENSE)],
            (Fork::Whole, Scope::Quick) => vec![third(Density::SPARSE)],
            (Fork::Whole, Scope::Full) => {
                let both = [Density::SPARSE, Density::DENSE];
                both.map(Writes::first).into_iter().chain(both.map(third)).collect()
            }
        }
    }
}

/// A subject: the program, started in its way.
struct Process {
    case: Fork,
    /// The command `hugefork`.
    command: Option<PathBuf>,
    subject: Subject,
    size: usize,
    writes: Writes,
    /// The first two, if there are two.
    cpus: (usize, Option<usize>),
}

impl Process {
    /// The CPU that the program has to itself, and that of its children; none if it may be anywhere.
    fn own_and_other(&self) -> Result<Option<(usize, usize)>, BenchError> {
        match (self.case, self.cpus) {
            (Fork::Whole, _) => Ok(None),
            (Fork::Tails, (own, Some(other))) => Ok(Some((own, other))),
            (Fork::Tails, (_, None)) => {
                Err(BenchError::CannotRun("two CPUs are needed: the program has one to itself".to_owned()))
            }
        }
    }

    fn command(&self, seed: u64, pace: Pace) -> Result<Command, BenchError> {
        let hugefork = program::hugefork(&self.command, self.case.name())?;
        let (run, pages): (&[&str], _) = match &self.subject {
            Subject::RunPool => (&["run", "--quiet", "--pool", "--"], Pages::AsTheyCome),
            Subject::KernelThp => (&[], Pages::Of(PageKind::Thp)),
            _ => (&[], Pages::Of(PageKind::Base)),
        };
        let mut command = Command::new(hugefork);
        if !run.is_empty() {
            command.args(run).arg(hugefork);
        }
        let program = Program {
            pages,
            size: self.size,
            writes: self.writes.density.writes(self.size),
            pattern: self.writes.pattern,
            rounds: self.writes.epoch.number(),
            seed,
            pace,
        };
        command.arg(COMMAND).args(program.words());
        Ok(command)
    }
}

impl Work for Process {
    fn prepare(&mut self) -> Result<(), BenchError> {
        // The copies that writes make, and the page tables, take memory that must not be new to this machine.
        self.own_and_other()?;
        warm_for_copies(PageKind::Base, 2 * self.size, &[self.cpus.0])
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let seed = targets.below(usize::MAX) as u64;
        let Some((own, other)) = self.own_and_other()? else {
            let outcome = program::run(&mut self.command(seed, Pace::Full)?, self.size, RoundTimes::parse)?;
            let taken = outcome.pause + outcome.total;
            let values = [(Metric::PAUSE, outcome.pause), (TOTAL, outcome.total), (TAKEN, taken)];
            return Ok(Measure::sample(values, outcome.cpu));
        };
        // The program inherits it, and moves to its own; what it has beside itself stays.
        let _started_there = Pinned::to(other)?;
        let mut command = self.command(seed, Pace::Even { own, other })?;
        let RoundTimes { pause, cpu, tails: Tails { p50, p99, p999, max, off_cpu }, .. } =
            program::run(&mut command, self.size, RoundTimes::parse)?;
        let values = [
            (Metric::P50, p50),
            (Metric::P99, p99),
            (Metric::P999, p999),
            (Metric::MAX, max),
            (OFF_CPU, off_cpu),
            (Metric::PAUSE, pause),
        ];
        Ok(Measure::sample(values, cpu))
    }

    fn release(&mut self) {}
}
