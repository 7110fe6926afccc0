//! The options of a run, and the check that the machine can run them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use hugefork::{BlockSize, ByteSize};

use crate::case::Case;
use crate::error::UsageError;
use crate::host::Host;
use crate::memory::kernel_memory::HUGE_PAGE;
use crate::plan::COUNTED_MINIMUM;
use crate::plan::job::Scope;
use crate::subject::Subject;

/// The check refuses more tasks than this, as a slip of the user.
const MAX_TASKS: usize = 1024;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cases, in order.
    pub cases: Vec<&'static dyn Case>,
    /// The amount of work where an option below is absent.
    pub scope: Scope,
    /// Bytes of one area. Each case runs once with each of these sizes; if there are none, with a default size of its
    /// own.
    pub sizes: Vec<usize>,
    /// Tasks of the `anon-*` cases; one for each CPU if absent.
    pub tasks: Option<usize>,
    /// The block sizes of `clear`, `copy` and `lazy-free`; if there are none, [`Case::usual_blocks`].
    pub block_sizes: Vec<BlockSize>,
    /// Counted rounds.
    pub runs: usize,
    /// The subjects to run; all if absent.
    pub subjects: Option<Vec<Subject>>,
    /// The path of the command `hugefork`, which contains the program that the case `reset` starts.
    pub command: Option<PathBuf>,
}

impl Options {
    /// The options of `hugefork bench CASE` for these cases.
    pub fn new(cases: Vec<&'static dyn Case>) -> Options {
        Options {
            cases,
            scope: Scope::Quick,
            sizes: Vec::new(),
            tasks: None,
            block_sizes: Vec::new(),
            runs: COUNTED_MINIMUM,
            subjects: None,
            command: None,
        }
    }

    /// Refuses requests that are impossible in any state of the machine.
    pub(crate) fn check(&self, host: &Host) -> Result<(), UsageError> {
        check_numbers(self)?;
        self.sizes.iter().try_for_each(|size| check_size(self, *size, host))?;
        check_subjects(self)?;
        let has_blocks = |case: &&dyn Case| case.facts().has_blocks;
        if !self.block_sizes.is_empty() && !self.cases.iter().any(has_blocks) {
            let cases = "clear, copy and lazy-free";
            return Err(UsageError(format!("--block-size: is for {cases}; name one of them, or leave it out")));
        }
        Ok(())
    }

    /// The sizes to run, each once; `None` stands for the default size of a case. The list is never empty.
    pub(crate) fn sizes(&self) -> Vec<Option<usize>> {
        let mut seen = BTreeSet::new();
        let asked: Vec<Option<usize>> =
            self.sizes.iter().copied().filter(|size| seen.insert(*size)).map(Some).collect();
        if asked.is_empty() { vec![None] } else { asked }
    }

    /// The block sizes of a case, each once. The list is never empty.
    pub(crate) fn blocks(&self, case: &dyn Case) -> Vec<BlockSize> {
        let is_asked = !self.block_sizes.is_empty() && case.facts().has_blocks;
        let mut blocks = if is_asked { self.block_sizes.clone() } else { case.usual_blocks(self.scope) };
        let mut seen = BTreeSet::new();
        blocks.retain(|block| seen.insert(*block));
        blocks
    }
}

fn check_numbers(options: &Options) -> Result<(), UsageError> {
    if options.runs == 0 {
        return Err(UsageError("--runs 0: take at least 1 (5 for figures to publish)".to_owned()));
    }
    match options.tasks {
        Some(0) => Err(UsageError("--tasks 0: take at least 1".to_owned())),
        Some(tasks) if tasks > MAX_TASKS => Err(UsageError(format!("--tasks {tasks}: take at most {MAX_TASKS}"))),
        _ => Ok(()),
    }
}

/// The size of an area is a multiple of this number: of the block size, and of a huge page for the kernel's subjects.
pub(crate) fn unit(blocks: &[BlockSize]) -> usize {
    blocks.iter().map(|block| block.bytes()).max().unwrap_or(0).max(HUGE_PAGE)
}

fn check_size(options: &Options, size: usize, host: &Host) -> Result<(), UsageError> {
    let unit = unit(&options.block_sizes);
    if size == 0 {
        return Err(UsageError(format!("--size 0: take a multiple of {}", ByteSize(unit))));
    }
    if !size.is_multiple_of(unit) {
        let below = size / unit * unit;
        let nearest = if below == 0 { unit } else { below };
        return Err(UsageError(format!(
            "--size {}: not a multiple of {} (the larger of a huge page and --block-size); the nearest is {}",
            ByteSize(size),
            ByteSize(unit),
            ByteSize(nearest)
        )));
    }
    if size > host.memory_bytes {
        return Err(UsageError(format!(
            "--size {}: larger than this machine's memory ({}MiB); take a smaller one",
            ByteSize(size),
            host.memory_bytes >> 20
        )));
    }
    Ok(())
}

fn check_subjects(options: &Options) -> Result<(), UsageError> {
    for subject in options.subjects.iter().flatten() {
        if !options.cases.iter().any(|case| case.has(subject)) {
            let mut have: Vec<String> =
                options.cases.iter().flat_map(|case| case.subjects(Scope::Quick)).map(|s| s.to_string()).collect();
            have.sort_unstable();
            have.dedup();
            return Err(UsageError(format!(
                "--subjects {subject}: no chosen case has it; their subjects are {}",
                have.join(", ")
            )));
        }
    }
    Ok(())
}
