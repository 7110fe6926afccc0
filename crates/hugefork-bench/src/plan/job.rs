//! The plan's orders to a case: how much it does, and whether each subject can run.

use std::path::PathBuf;

use hugefork::BlockSize;

use crate::memory::folios::Settings;
use crate::memory::kernel_memory::PageKind;
use crate::subject::Subject;

/// How much is run where no option says how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A few works of each case on small areas, for an answer within a minute.
    Quick,
    /// The works and sizes that figures are published for.
    Full,
}

/// How much a case does.
#[derive(Clone, Debug)]
pub struct Job {
    /// How much is run where no option says how much.
    pub scope: Scope,
    /// Bytes of one area.
    pub size: usize,
    /// Tasks at once; 1 where the case has no tasks.
    pub tasks: usize,
    /// The block of `clear`, `copy` and `lazy-free`.
    pub block_size: BlockSize,
    /// The command `hugefork`, if this bench is a part of it.
    pub command: Option<PathBuf>,
    /// Whether samples may change kernel settings.
    pub settings: Settings,
}

/// One subject of a case.
#[derive(Clone, Debug)]
pub struct SubjectPlan {
    /// The subject.
    pub subject: Subject,
    /// The most bytes that it needs at one time.
    pub memory: usize,
    /// The reason why it cannot run, with a remedy.
    pub lack: Option<String>,
}

impl SubjectPlan {
    /// The pages of a kernel subject.
    ///
    /// # Panics
    /// If the subject has none.
    pub(crate) fn pages(&self) -> PageKind {
        self.subject.pages().expect("a case asks only subjects of the kernel for their pages")
    }
}
