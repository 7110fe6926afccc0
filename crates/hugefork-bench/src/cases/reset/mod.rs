//! `reset`: a program writes to some pages of a populated area and puts the area back to its earlier state, again and
//! again, as a fuzzer does between two inputs. The pages are random: the same pages in each round, or other pages
//! (`pages`).
//!
//! `reset` is the time for putting the area back: the median of the rounds of a sample. `cpu` is
//! the CPU time of a round, with the writes and their page faults.
//!
//! | subject | puts the area back by |
//! |---|---|
//! | `hugefork` | `Region::reset_to`, in a pool with all defaults |
//! | `memfd-private` | `MADV_DONTNEED` of a private mapping of a file |
//! | `pagemap-scan` | copies of the pages that the kernel has marked, which are then protected again |
//! | `known-pages` | copies of the pages that the program knows it has written |
//!
//! Each sample is a process of its own (`hugefork reset-program`): the bench has a thread that waits for signals, and a
//! reset of hugefork in a process with another thread takes some 20 us more.

mod rounds;
mod subjects;

use std::path::PathBuf;
use std::process::Command;

use self::rounds::{Figures, Pages, RESET, ResetSetup, measure};
use crate::case::{Case, Facts};
use crate::error::BenchError;
use crate::host::Host;
use crate::measure::affinity::Pinned;
use crate::measure::random::Random;
use crate::measure::warm::warm;
use crate::memory::kernel_memory::PageKind;
use crate::plan::job::{Job, Scope, SubjectPlan};
use crate::results::metric::Metric;
use crate::results::result::{Param, Params, params, shown};
use crate::run::sample::{self, Entry, Sample, Work};
use crate::subject::Subject;

/// The hidden command that takes a sample.
pub const COMMAND: &str = "reset-program";

const SUBJECTS: [Subject; 4] = [Subject::Hugefork, Subject::MemfdPrivate, Subject::PagemapScan, Subject::KnownPages];

/// The case.
#[derive(Debug)]
pub struct Reset;

impl Case for Reset {
    fn facts(&self) -> Facts {
        Facts::new("reset", &[RESET, Metric::CPU], [128 << 20, 1 << 30])
    }

    fn subjects(&self, _: Scope) -> Vec<Subject> {
        SUBJECTS.to_vec()
    }

    fn in_words(&self, params: &Params) -> String {
        let [count, pages, size] = ["written", "pages", "size"].map(|name| shown(params, name));
        let which = if pages == "same" { "the same" } else { "other" };
        format!("{which} {count} pages of {size}")
    }

    fn entries(&self, job: &Job, subjects: &[SubjectPlan], host: &Host) -> Vec<Entry> {
        let counts: &[usize] = match job.scope {
            Scope::Quick => &[44, 1_000],
            Scope::Full => &[10, 44, 100, 1_000, 10_000, 100_000],
        };
        let works = counts.iter().flat_map(|count| [(*count, Pages::Same), (*count, Pages::Others)]);
        let of = |(count, pages): (usize, Pages)| {
            let setup = ResetSetup {
                size: job.size,
                cpu: host.cpu_numbers[0],
                count: count.min(job.size / rounds::PAGE / 2),
                pages,
            };
            let params = params([
                ("size", Param::size(job.size)),
                ("pages", Param::text(pages.name())),
                ("written", Param::Number(count as u64)),
            ]);
            sample::entries(subjects, &params, move |planned| -> Work {
                let (command, subject) = (job.command.clone(), planned.subject.clone());
                Box::new(move |targets| {
                    let seed = targets.below(usize::MAX) as u64;
                    ResetProgram { subject: subject.clone(), setup, seed }.start(command.as_ref())
                })
            })
        };
        works.flat_map(of).collect()
    }
}

/// One sample, in a process of its own.
#[derive(Clone, Debug, PartialEq)]
struct ResetProgram {
    subject: Subject,
    setup: ResetSetup,
    seed: u64,
}

impl ResetProgram {
    /// Starts the process, and waits for its figures.
    fn start(&self, hugefork: Option<&PathBuf>) -> Result<Sample, BenchError> {
        let hugefork = hugefork.ok_or_else(|| {
            BenchError::CannotRun("its program is a part of the command: run `hugefork bench reset`".to_owned())
        })?;
        let output = Command::new(hugefork)
            .arg(COMMAND)
            .args(self.words())
            .output()
            .map_err(|error| BenchError::system("starting a program", error))?;
        let figures = Figures::parse(&String::from_utf8_lossy(&output.stdout));
        match figures.filter(|_| output.status.success()) {
            Some(figures) => Ok(Sample::of(figures.measures())),
            None => {
                let said = String::from_utf8_lossy(&output.stderr);
                let why = said.trim().lines().last().unwrap_or("it said nothing").trim_start_matches("error: ");
                Err(BenchError::CannotRun(why.to_owned()))
            }
        }
    }

    /// The arguments of its command.
    fn words(&self) -> Vec<String> {
        let ResetProgram { subject, setup: ResetSetup { size, cpu, count, pages }, seed } = self;
        let numbers = [*size, *cpu, *count].map(|number| number.to_string());
        [subject.to_string(), pages.name().to_owned()].into_iter().chain(numbers).chain([seed.to_string()]).collect()
    }

    fn parse(words: &[String]) -> Option<ResetProgram> {
        let [subject, pages, size, cpu, count, seed] = words else { return None };
        let setup = ResetSetup {
            size: size.parse().ok()?,
            cpu: cpu.parse().ok()?,
            count: count.parse().ok()?,
            pages: [Pages::Same, Pages::Others].into_iter().find(|known| known.name() == pages)?,
        };
        Some(ResetProgram { subject: subject.parse().ok()?, setup, seed: seed.parse().ok()? })
    }

    fn run(&self) -> Result<Figures, BenchError> {
        warm(PageKind::Thp, self.setup.size, 1, &[self.setup.cpu])?;
        let mut area = subjects::open(&self.subject, self.setup)?;
        let _pinned = Pinned::to(self.setup.cpu)?;
        measure(self.setup, &mut *area, &mut Random::new(self.seed))
    }
}

/// Takes one sample. `words` are the arguments that the case gives to its command. Returns the line to print.
///
/// # Errors
/// Any error of the sample, or wrong arguments.
pub fn run_program(words: &[String]) -> Result<String, BenchError> {
    let program = ResetProgram::parse(words)
        .ok_or_else(|| BenchError::CannotRun("this is for `hugefork bench reset` to call".to_owned()))?;
    program.run().map(|figures| figures.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_read_back_and_run() {
        let setup = ResetSetup {
            size: 4 << 20,
            cpu: crate::measure::affinity::allowed_cpus()[0],
            count: 44,
            pages: Pages::Others,
        };
        let program = ResetProgram { subject: Subject::KnownPages, setup, seed: 7 };
        assert_eq!(ResetProgram::parse(&program.words()), Some(program.clone()));
        let line = run_program(&program.words()).unwrap();
        assert!(Figures::parse(&line).is_some_and(|figures| figures.reset > 0.0), "{line}");
        assert!(run_program(&["nonsense".to_owned()]).unwrap_err().is_lack());
    }
}
