//! What the plan asks of a case: how much it does, and what each subject stands on.

use std::path::PathBuf;

use hugefork::{Backing, BlockSize, CopyGrain, Fallback};

use crate::memory::folios::Settings;
use crate::memory::kernel_memory::{HUGE_PAGE, PageKind};
use crate::plan::writes::Writes;
use crate::subject::{Stock, Subject};

/// How much is run where no option says how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Sizes and subjects that people wait for: all cases take some minutes on two cores.
    Quick,
    /// The sizes that figures are published for.
    Full,
}

/// How much a case does.
#[derive(Clone, Debug)]
pub struct Job {
    /// How much is run of what has no option of its own.
    pub scope: Scope,
    /// Bytes of one area.
    pub size: usize,
    /// Tasks at once; 1 where the case has no tasks.
    pub tasks: usize,
    /// The block of `clear`, `copy` and `lazy-free`; elsewhere the largest block of hugefork's pools.
    pub block_size: BlockSize,
    /// How the area is written after a snapshot, where that is what the case does.
    pub writes: Option<Writes>,
    /// Bytes that reference operations rotate over.
    pub rotation: usize,
    /// The command `hugefork`, if this bench is a part of it.
    pub command: Option<PathBuf>,
    /// Whether samples may change kernel settings.
    pub settings: Settings,
}

impl Job {
    /// Bytes from one block, or one first write, to the next. It is at least 2 MiB, also with smaller blocks, so that
    /// all subjects do the same work whatever their pages.
    pub fn stride(&self) -> usize {
        self.block_size.bytes().max(HUGE_PAGE)
    }
}

/// One subject of a case.
#[derive(Clone, Debug)]
pub struct SubjectPlan {
    /// Which subject.
    pub subject: Subject,
    /// What hugefork's pool is asked for; none for the others.
    pub engine: Option<EngineChoice>,
    /// The most bytes that it needs at one time.
    pub memory: usize,
    /// What becomes of that memory after a sample.
    pub keep: Keep,
    /// Why it cannot run, and what would help.
    pub lack: Option<String>,
}

impl SubjectPlan {
    /// The pages of a kernel subject.
    pub(crate) fn pages(&self) -> PageKind {
        self.subject.pages().expect("cases hold hugefork, memcpy and memset apart; the others have pages")
    }
}

/// What hugefork's pool is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineChoice {
    /// Bytes in a block.
    pub block_size: BlockSize,
    /// What is done about blocks that were used.
    pub stock: Stock,
    /// What a write to a shared block copies.
    pub grain: CopyGrain,
    /// The backing.
    pub backing: Backing,
    /// Only `auto` may fall back: if a backing was asked for by name, figures must be of that backing.
    pub fallback: Fallback,
}

/// What becomes of a subject's memory after a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Held: it fits beside the memory of the others, and does not slow them down.
    Held,
    /// Freed, and got and populated again before the next sample, untimed. This holds for all subjects of a case if one
    /// of them is large. It also holds for hugefork where other subjects fork: a fork walks every mapping of the
    /// process, even those that children do not get, and hugefork may have many. With one mapping for each block of
    /// hugetlb pages, a pool of 1 GiB makes `fork-thp` 40 % slower.
    Freed,
}
