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
//! Under `hugefork run` without `--pool`, and for latencies beside a save, there is the example `redis`.

mod saver;

use std::path::PathBuf;
use std::process::Command;

pub use self::saver::run as run_program;
use self::saver::{Pages, Program, RoundTimes};
use super::program;
use super::writer_latency::TAKEN;
use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
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

/// The case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork;

impl Case for Fork {
    fn facts(&self) -> Facts {
        // The pause comes from page tables.
        Facts { has_pool: false, feels_caches: false, ..Facts::new("fork", Metric::PAUSE, [128 << 20, 1 << 30]) }
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![Subject::RunPool, Subject::KernelThp, Subject::Kernel4k]
    }

    fn in_words(&self, params: &Params) -> String {
        let (size, writes, epoch) = (shown(params, "size"), shown(params, "writes"), shown(params, "epoch"));
        let clustered = if shown(params, "pattern") == "clustered" { "clustered " } else { "" };
        format!("fork {epoch} of a program with {size}, then {writes} {clustered}writes")
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let writes = job.writes.expect("this case is planned by its writes");
        sample::entries(subjects, &writes.params(job.size), |planned| {
            let command = job.command.clone();
            Box::new(Process {
                command,
                subject: planned.subject.clone(),
                size: job.size,
                writes,
                cpu: host.cpu_numbers[0],
            })
        })
    }

    fn usual_writes(&self, scope: Scope) -> Vec<Writes> {
        let third = |density| Writes { epoch: Epoch::Third, ..Writes::first(density) };
        match scope {
            Scope::Quick => vec![third(Density::SPARSE)],
            Scope::Full => {
                let both = [Density::SPARSE, Density::DENSE];
                both.map(Writes::first).into_iter().chain(both.map(third)).collect()
            }
        }
    }
}

/// A subject: the program, started in its way.
struct Process {
    /// The command `hugefork`.
    command: Option<PathBuf>,
    subject: Subject,
    size: usize,
    writes: Writes,
    /// The first one.
    cpu: usize,
}

impl Process {
    fn command(&self, seed: u64) -> Result<Command, BenchError> {
        let hugefork = program::hugefork(&self.command, Fork.name())?;
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
        };
        command.arg(COMMAND).args(program.words());
        Ok(command)
    }
}

impl Work for Process {
    fn prepare(&mut self) -> Result<(), BenchError> {
        // The copies that writes make, and the page tables, take memory that must not be new to this machine.
        warm_for_copies(PageKind::Base, 2 * self.size, &[self.cpu])
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let seed = targets.below(usize::MAX) as u64;
        let outcome = program::run(&mut self.command(seed)?, self.size, RoundTimes::parse)?;
        let taken = outcome.pause + outcome.total;
        let values = [(Metric::PAUSE, outcome.pause), (TOTAL, outcome.total), (TAKEN, taken)];
        Ok(Measure::sample(values, outcome.cpu))
    }

    fn release(&mut self) {}
}
