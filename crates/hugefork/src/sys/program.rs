//! The further calls that hugefork needs to give memory to a program that knows nothing of it: memory that is allocated
//! at the first touch, and plain memory in its place. No fault handler makes these calls.

use std::ops::Range;

use super::{Part, Sys, SystemError};
use crate::units::HUGE_PAGE;

/// The treatment of zero pages when pool memory is replaced by plain memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeros {
    /// Zero pages are copied like any others.
    Copied,
    /// Zero pages are left out: a program that asks the kernel finds no pages there. (Pages that were never used cannot
    /// be distinguished from pages that hold zeros.)
    LeftOut,
}

/// A pool's memory that takes the place of a program's own.
pub(crate) trait ProgramSys: Sys {
    /// Plain private memory of the process, which `fork(2)` children inherit. The drop frees it, unless it is shown.
    type Plain;

    /// Whether the engine has to make the huge pages, because the kernel makes none by itself.
    fn collapses(&self) -> bool;

    /// How many bytes of memory the pool has now; `None` if the kernel does not say.
    fn bytes(&self) -> Option<usize>;

    /// Whether every page of the 2 MiB at `offset` has memory.
    fn is_full(&self, offset: usize) -> bool {
        let all = offset..offset + HUGE_PAGE;
        self.next_memory(all.clone()) == Some(all)
    }

    /// Makes a huge page of the 2 MiB at `offset`, if the kernel does not do so by itself. Returns false if there was
    /// nothing to do, or the kernel refused. For threads that may wait.
    fn collapse_full(&self, offset: usize) -> bool;

    /// The first piece of some addresses that shows this memory: from `offset` on at the first address, or at any
    /// offset. A program may have mapped something else there by a call that hugefork does not intercept. This is the
    /// whole range if the kernel does not say (before Linux 6.11), or if only the engine can map memory there.
    fn shown(&self, range: &Range<usize>, offset: Option<usize>) -> Option<Range<usize>>;

    /// As [`Sys::punch`], for memory that addresses may show: these read as zeros from then on.
    ///
    /// # Safety
    /// The caller alone holds this memory, and the owners of the addresses that show it want zeros there.
    unsafe fn punch_shown(&self, offset: usize, len: usize) -> Result<(), SystemError>;

    /// Writes zeros to all the memory that a part shows.
    ///
    /// # Safety
    /// The part is mapped and writable, and the program wants zeros there.
    unsafe fn fill_with_zeros(&self, part: Part<'_>);

    /// Allocates plain memory of the process, all zero.
    fn plain(&self, len: usize) -> Result<Self::Plain, SystemError>;

    /// Copies the memory that `from` shows to the plain memory from `offset` on. The caller keeps writers off `from`.
    fn fill(&self, plain: &mut Self::Plain, offset: usize, from: Part<'_>, zeros: Zeros);

    /// Shows plain memory at `part`, which has the same length. After a failure the part shows the same as before.
    fn show_plain(&self, plain: Self::Plain, part: Part<'_>) -> Result<(), SystemError>;

    /// Unmaps addresses that belong to the program and that it does not use any more. The kernel may then use them for
    /// others.
    fn unmap_plain(&self, range: Range<usize>) -> Result<(), SystemError>;
}
