//! `reset`: a populated area is written to in some pages and then put back to what it was, again and again, as by a
//! fuzzer between two inputs.
//!
//! | metric | |
//! |---|---|
//! | `reset` | putting it back: the median of the rounds of a sample |
//! | `p99` | the round that only one in a hundred is slower than |
//! | `round` | a word written in each of the pages, and putting it back |
//! | `faults` | page faults that the writes of a round take in the kernel, once rounds are alike |
//!
//! | subject | puts it back by |
//! |---|---|
//! | `hugefork` | `Region::reset_to` |
//! | `memfd-private` | `MADV_DONTNEED` of a private mapping of a file |
//! | `pagemap-scan` | `PAGEMAP_SCAN`, which tells what was written and protects it again, and copies of these pages |
//! | `fork-thp` | the end of a child of `fork(2)`, which does the writing: its `reset` is the whole round |
//!
//! The pages are random, and the same in each round. Where `read` is `all`, each page of the area is read before the
//! rounds that count, so that all of it is in the page tables.
//!
//! hugefork's program (`resetter.rs`) is a process of its own for each sample: the bench has a thread that waits for
//! signals, and beside another thread a reset takes some 20 us more.
//! `cargo run --release -p hugefork --example reset_cost -- 1024 beside` measures that.

mod resetter;
mod rivals;
mod rounds;
mod scan;

use std::path::PathBuf;
use std::process::Command;

use self::resetter::ResetProgram;
pub use self::resetter::run as run_program;
use self::rivals::{File, Forked};
use self::rounds::{PAGE, ROUND, ResetSetup, Resettable, RoundFigures, measure};
use self::scan::Scanned;
use super::program;
use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::Pinned;
use crate::measure::random::Random;
use crate::plan::job::{EngineChoice, Job, Scope, SubjectPlan};
use crate::results::metric::Measure;
use crate::results::result::{Param, Params, params, shown};
use crate::run::sample::{self, Entry, Work};
use crate::subject::Subject;

/// The hidden command that is hugefork's program.
pub const COMMAND: &str = "reset-program";

/// The case.
#[derive(Debug)]
pub struct Reset;

/// How many pages are written, and whether all are read.
fn works(scope: Scope) -> &'static [(usize, bool)] {
    match scope {
        Scope::Quick => &[(44, false), (1_000, false)],
        Scope::Full => &[
            (10, false),
            (44, false),
            (100, false),
            (1_000, false),
            (10_000, false),
            (100_000, false),
            (44, true),
            (1_000, true),
        ],
    }
}

impl Case for Reset {
    fn facts(&self) -> Facts {
        Facts { forks: true, ..Facts::new("reset", ROUND, [128 << 20, 1 << 30]) }
    }

    fn subjects(&self, scope: Scope) -> Vec<Subject> {
        let rivals = [Subject::MemfdPrivate, Subject::PagemapScan, Subject::ForkThp];
        let mut subjects = vec![Subject::Hugefork];
        if scope != Scope::Quick {
            subjects.push(Subject::HugeforkPage);
        }
        subjects.extend(rivals);
        subjects
    }

    fn in_words(&self, params: &Params) -> String {
        let read = if shown(params, "read") == "all" { ", all read" } else { "" };
        format!("{} pages of {}{read}", shown(params, "written"), shown(params, "size"))
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let (size, cpu) = (job.size, host.cpu_numbers[0]);
        let of = |&(count, is_read): &(usize, bool)| {
            let params = params([
                ("size", Param::size(size)),
                ("written", Param::text(count)),
                ("read", Param::text(if is_read { "all" } else { "what is written" })),
            ]);
            let setup = ResetSetup { size, cpu, count: count.min(size / PAGE / 2), is_read };
            sample::entries(subjects, &params, |planned| {
                let open: Open = match (planned.engine, &planned.subject) {
                    (Some(choice), _) => {
                        return Box::new(ResetProcess { command: job.command.clone(), setup, choice });
                    }
                    (None, Subject::MemfdPrivate) => |setup| Ok(Box::new(File::open(setup)?)),
                    (None, Subject::PagemapScan) => |setup| Ok(Box::new(Scanned::open(setup)?)),
                    (None, Subject::ForkThp) => |setup| Ok(Box::new(Forked::open(setup)?)),
                    (None, other) => unreachable!("{other} is none of this case's without an engine"),
                };
                Box::new(PerSample { setup, open })
            })
        };
        works(job.scope).iter().flat_map(of).collect()
    }

    fn aside(&self, subject: &Subject) -> Option<&'static str> {
        (*subject == Subject::ForkThp).then_some("the whole round: the child does the writing")
    }
}

type Open = fn(ResetSetup) -> Result<Box<dyn Resettable>, BenchError>;

/// A subject that opens an area for each sample.
struct PerSample {
    setup: ResetSetup,
    open: Open,
}

impl Work for PerSample {
    fn prepare(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let _pinned = Pinned::to(self.setup.cpu)?;
        Ok(measure(self.setup, &mut *(self.open)(self.setup)?, targets)?.measures())
    }

    /// It holds nothing between samples.
    fn release(&mut self) {}
}

/// hugefork's program.
struct ResetProcess {
    /// The command `hugefork`.
    command: Option<PathBuf>,
    setup: ResetSetup,
    choice: EngineChoice,
}

impl Work for ResetProcess {
    fn prepare(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn sample(&mut self, targets: &mut Random) -> Result<Vec<Measure>, BenchError> {
        let hugefork = program::hugefork(&self.command, "reset")?;
        let asked = ResetProgram { setup: self.setup, choice: self.choice, seed: targets.below(usize::MAX) as u64 };
        let mut command = Command::new(hugefork);
        command.arg(COMMAND).args(asked.words());
        Ok(program::run(&mut command, self.setup.size, RoundFigures::parse)?.measures())
    }

    /// It holds nothing between samples.
    fn release(&mut self) {}
}
