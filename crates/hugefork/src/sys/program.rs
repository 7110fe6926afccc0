//! What the memory of a program that knows nothing of hugefork takes of the system beside [`Sys`]: memory that comes
//! page by page, and plain memory in its place. No fault handler calls any of this.

use std::ops::Range;

use super::{Part, Sys, SystemError};

/// What is done about pages of zeros where memory becomes plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeros {
    /// They are there.
    Copied,
    /// They are missing, for all who ask: nobody can tell those that were never used from those that were.
    LeftOut,
}

/// A pool's memory that stands in for a program's own.
pub(crate) trait ProgramSys: Sys {
    /// Plain private memory of the process, which `fork(2)` children inherit. It goes with this, unless it is shown.
    type Plain;

    /// Whether the kernel makes no huge pages by itself.
    fn collapses(&self) -> bool;

    /// How many bytes of memory the pool has now; `None` if the kernel cannot tell.
    fn bytes(&self) -> Option<usize>;

    /// Whether all of the 2 MiB at `offset` has memory.
    fn is_full(&self, offset: usize) -> bool;

    /// Makes a huge page of the 2 MiB at `offset`, if the kernel does not do so by itself. False if there was nothing
    /// to do, or the kernel refused. For threads that have time.
    fn collapse_full(&self, offset: usize) -> bool;

    /// The first piece of some addresses that shows this memory, from `offset` on at the first of them or at any
    /// offset: a program may have put something else there, past whatever stands in for its calls. All of it where the
    /// kernel does not tell (before Linux 6.11), or nobody's memory is there but the engine's.
    fn shown(&self, range: &Range<usize>, offset: Option<usize>) -> Option<Range<usize>>;

    /// As [`Sys::punch`], of memory that may be shown: it reads as zeros there from now on.
    ///
    /// # Safety
    /// The caller alone holds this memory, and whoever is shown it wants zeros there.
    unsafe fn punch_shown(&self, offset: usize, len: usize) -> Result<(), SystemError>;

    /// Fills what a part shows with zeros.
    ///
    /// # Safety
    /// The part is mapped and writable, and the program wants zeros there.
    unsafe fn fill_with_zeros(&self, part: Part<'_>);

    /// New plain memory of the process, all zero.
    fn plain(&self, len: usize) -> Result<Self::Plain, SystemError>;

    /// Copies what `from` shows to the bytes of plain memory from `offset` on. Writers are kept off `from`.
    fn fill(&self, plain: &mut Self::Plain, offset: usize, from: Part<'_>, zeros: Zeros);

    /// Shows plain memory at `part`, which is as long. After a failure the part shows what it showed.
    fn show_plain(&self, plain: Self::Plain, part: Part<'_>) -> Result<(), SystemError>;

    /// Unmaps addresses of the process that nobody uses, and that are the program's: the kernel gives them to others.
    fn unmap_plain(&self, range: Range<usize>) -> Result<(), SystemError>;
}
