//! The work that the plan gives to a case: its sizes, and whether each subject can run.

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
    /// The works and sizes of the published figures.
    Full,
}

/// The amount of work of a case.
#[derive(Clone, Debug)]
pub struct Job {
    /// How much is run where no option says how much.
    pub scope: Scope,
    /// Bytes of one area.
    pub size: usize,
    /// Number of tasks that run at once; 1 if the case has no tasks.
    pub tasks: usize,
    /// The block size of `clear`, `copy` and `lazy-free`.
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
    /// The most bytes that the subject needs at one time.
    pub memory: usize,
    /// The reason why the subject cannot run, with a remedy; `None` if it can run.
    pub lack: Option<String>,
}

impl SubjectPlan {
    /// The pages of a kernel subject.
    ///
    /// # Panics
    /// If [`Subject::pages`] is `None` for the subject.
    pub(crate) fn pages(&self) -> PageKind {
        self.subject.pages().expect("a case asks only subjects of the kernel for their pages")
    }
}
