//! What the plan asks of a case: how much it does, and for each subject what that stands on.

use hugefork::{Backing, BlockSize, Fallback};

use crate::density::Density;
use crate::folios::Settings;
use crate::kernel_memory::{HUGE_PAGE, PageKind};
use crate::subject::{Stock, Subject};

/// How much is run when nothing says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Sizes and subjects that fit well inside a minute on two cores.
    Quick,
    /// The sizes that figures are published for.
    Full,
    /// As `Full`; for cases that [sweep](crate::Case::sweeps) also every window, and blocks from 4 KiB to 1 GiB.
    Sweep,
}

/// How much a case does.
#[derive(Clone, Debug)]
pub struct Job {
    /// How much of everything that has no option of its own.
    pub scope: Scope,
    /// Bytes of one area.
    pub size: usize,
    /// Tasks at once; 1 where the case has no tasks.
    pub tasks: usize,
    /// The block of `clear`, `copy` and `lazy-free`; elsewhere the largest block of hugefork's pools.
    pub block_size: BlockSize,
    /// How much is written after a snapshot, where that is what the case does.
    pub density: Option<Density>,
    /// Bytes that reference operations rotate over.
    pub rotation: usize,
    /// Whether samples may change kernel settings.
    pub settings: Settings,
}

impl Job {
    /// Bytes from one first write or one block to the next. At least 2 MiB also with smaller blocks, so that every subject
    /// does the same work whatever its pages.
    pub fn stride(&self) -> usize {
        self.block_size.bytes().max(HUGE_PAGE)
    }
}

/// One subject of a case.
#[derive(Clone, Debug)]
pub struct SubjectPlan {
    /// Who.
    pub subject: Subject,
    /// What hugefork's pool is asked for; none for the others.
    pub engine: Option<EngineChoice>,
    /// Bytes that it needs at the same time.
    pub memory: usize,
    /// What becomes of that memory after a sample.
    pub keep: Keep,
    /// Why it cannot run, and what would mend that.
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
    /// The backing.
    pub backing: Backing,
    /// Only `auto` may fall back: figures of a backing that was asked for by name must be of that backing.
    pub fallback: Fallback,
}

/// What becomes of a subject's memory after a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Held: it fits beside the memory of the others, and is in nobody's way.
    Held,
    /// Freed, and before the next sample got and populated again, untimed. So it is for all subjects of a case if one of them
    /// is large. And so it is for hugefork where other subjects fork: a fork walks every mapping of the process, also those
    /// that children do not get, and hugefork may have many (with one mapping for each block of hugetlb pages, a pool of
    /// 1 GiB makes `fork-thp` 40 % slower).
    Freed,
}
