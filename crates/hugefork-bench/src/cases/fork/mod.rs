//! `fork`: what `fork(2)` and the writes after it take from a program that saves itself again and again, as it is and
//! under `hugefork run`.
//!
//! The program is one of ours (`program.rs`), a process of its own for each sample, so that nothing of the bench is
//! copied with it. It has `size` bytes of anonymous memory from libc's `mmap`, all of it written. In each round it
//! forks a child that holds its snapshot, writes words of the memory, one after the other, and lets the child go, which
//! checks what it holds. Then it waits until its huge pages have stayed what they are for a quarter of a second, as a
//! program does that saves itself once a minute. How many words there are, and where, is as in `writer-latency`; the
//! last of
//! `epoch` rounds counts.
//!
//! | metric | |
//! |---|---|
//! | `pause` | the call of `fork(2)`. Subjects are compared by it |
//! | `total` | all writes together |
//! | `taken` | both |
//!
//! `kernel-4k` and `kernel-thp` have such pages by `madvise(2)`; under `hugefork run` the program asks for nothing.

mod program;

use std::path::PathBuf;
use std::process::Command;

use hugefork::ByteSize;

pub use self::program::run as run_program;
use self::program::{Pages, Program, RoundTimes};
use super::writer_latency::TAKEN;
use crate::case::Case;
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::random::Random;
use crate::measure::warm::{warm, warm_page_tables};
use crate::memory::kernel_memory::PageKind;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::plan::writes::{Density, Epoch, Writes};
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, params, shown};
use crate::run::sample::{self, Entry, Work};
use crate::subject::Subject;

/// The hidden command that is the program.
pub const COMMAND: &str = "fork-program";

/// All writes together.
const TOTAL: Metric = Metric::new("total", "ms");

/// The case.
#[derive(Debug)]
pub struct Fork;

impl Case for Fork {
    fn name(&self) -> &'static str {
        "fork"
    }

    fn lead_metric(&self) -> Metric {
        Metric::PAUSE
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        vec![Subject::RunPool, Subject::RunCollapse, Subject::KernelThp, Subject::Kernel4k]
    }

    fn usual_size(&self, scope: Scope) -> usize {
        match scope {
            Scope::Quick => 128 << 20,
            Scope::Full => 1 << 30,
        }
    }

    /// The memory, and a copy of all of it.
    fn memory(&self, job: &Job, _: &Subject) -> Option<usize> {
        job.size.checked_mul(2)
    }

    fn in_words(&self, params: &Params) -> String {
        let (size, writes, epoch) = (shown(params, "size"), shown(params, "writes"), shown(params, "epoch"));
        let clustered = if shown(params, "pattern") == "clustered" { "clustered " } else { "" };
        format!("fork {epoch} of a program with {size}, then {writes} {clustered}writes")
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let writes = job.writes.expect("this case is planned by its writes");
        let params = params([
            ("size", Param::size(job.size)),
            ("density", Param::Number(writes.density.to_a_gib() as u64)),
            ("pattern", Param::text(writes.pattern.name())),
            ("epoch", Param::Number(writes.epoch.number() as u64)),
            ("writes", Param::Number(writes.density.writes(job.size) as u64)),
        ]);
        sample::entries(subjects, &params, |planned| {
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

    fn has_pool(&self) -> bool {
        false
    }

    /// The pause comes from page tables.
    fn feels_caches(&self) -> bool {
        false
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
    cpu: usize,
}

impl Process {
    fn command(&self, seed: u64) -> Result<Command, BenchError> {
        let hugefork = self.command.as_ref().ok_or_else(|| {
            BenchError::CannotRun(
                "its program is a part of the command `hugefork`: run `hugefork bench fork`".to_owned(),
            )
        })?;
        let (mode, pages) = match &self.subject {
            Subject::RunCollapse => (Some("collapse"), Pages::AsTheyCome),
            Subject::RunPool => (Some("pool"), Pages::AsTheyCome),
            Subject::KernelThp => (None, Pages::Of(PageKind::Thp)),
            _ => (None, Pages::Of(PageKind::Base)),
        };
        let mut command = Command::new(hugefork);
        if let Some(mode) = mode {
            command.args(["run", "--quiet", "--mode", mode, "--"]).arg(hugefork);
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
        warm(PageKind::Base, 2 * self.size, 1, &[self.cpu])?;
        warm_page_tables(self.cpu)
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let seed = targets.below(usize::MAX) as u64;
        let output = self.command(seed)?.output().map_err(|error| BenchError::system("starting a program", error))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let outcome = RoundTimes::parse(&said).filter(|_| output.status.success()).ok_or_else(|| {
            let why = String::from_utf8_lossy(&output.stderr);
            BenchError::CannotRun(format!(
                "a program with {} ended with {}: {}",
                ByteSize(self.size),
                output.status,
                why.trim().lines().last().unwrap_or("it said nothing"),
            ))
        })?;
        let taken = outcome.pause + outcome.total;
        let values = [(Metric::PAUSE, outcome.pause), (TOTAL, outcome.total), (TAKEN, taken)];
        Ok(Measure::sample(values, outcome.cpu))
    }

    fn release(&mut self) {}
}
