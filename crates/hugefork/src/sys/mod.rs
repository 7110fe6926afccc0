//! The only door to the operating system. Everything above is arithmetic over this trait, so the same code runs in
//! the signal handler ([`linux`]) and on the software MMU of the tests (`soft`), which counts calls and fails them.

pub(crate) mod budget;
mod error;
mod extent;
pub(crate) mod linux;
#[cfg(test)]
pub(crate) mod soft;

pub use error::SystemError;
pub(crate) use error::answer;
pub(crate) use extent::{Extent, Part};

use budget::MappingBudget;

/// What a mapping of pool memory lets the program do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

/// What addresses show: pool memory is named by `M`, a block above this door and a byte of the pool at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shows<M> {
    /// Zeros, readable, that take no memory.
    Zeros,
    /// Nothing: every access faults.
    Hidden,
    /// The pool's memory from `start` on.
    Memory { start: M, access: Access },
}

impl<M> Shows<M> {
    /// The same, with its memory named in another way.
    pub(crate) fn map<N>(self, name: impl FnOnce(M) -> N) -> Shows<N> {
        match self {
            Shows::Zeros => Shows::Zeros,
            Shows::Hidden => Shows::Hidden,
            Shows::Memory { start, access } => Shows::Memory { start: name(start), access },
        }
    }
}

/// How mappings of this memory behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merging {
    /// shmem: neighbouring mappings of neighbouring blocks become one, and parts of a block can be treated by themselves.
    Merge,
    /// hugetlb: one mapping a block, always, and nothing smaller than its pages.
    Separate,
}

/// What is mapped after a mapping call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aftermath {
    /// What was there before: the kernel refused at once.
    Unchanged,
    /// Something of the call may have been carried out.
    Unknown,
}

/// A mapping call that failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapFailure {
    pub(crate) error: SystemError,
    pub(crate) aftermath: Aftermath,
}

/// One pool's memory, and the addresses that its regions live at.
///
/// All offsets, lengths and addresses are multiples of the block size, or of a base page where a block is split, and offsets lie
/// inside of the pool. Except for `refresh_budget`, `claim` and `release` the methods are called from the fault handler: no
/// allocation, no lock but the kernel's, no panic.
pub(crate) trait Sys: Send + Sync + Sized + 'static {
    /// First byte of the direct map: the whole pool, readable and writable, at offsets as in the pool.
    fn direct(&self) -> *mut u8;

    /// Whether neighbouring mappings of neighbouring blocks become one.
    fn merging(&self) -> Merging;

    /// How many mappings the process may have and has.
    fn budget(&self) -> &MappingBudget;

    /// Counts afresh what the rest of the program leaves of the budget. Not in a fault.
    fn refresh_budget(&self);

    /// Makes one page of each 2 MiB of the range, which starts and ends at multiples of that and holds nothing yet, where the
    /// kernel does not do so by itself at the first touch. A wish: whether and how much of the range has memory afterwards is
    /// not known; what has is zero.
    fn make_huge(&self, offset: usize, len: usize);

    /// Gets memory for what was never used or was punched out; it is zero afterwards. What has memory keeps it. `touched` is
    /// the byte that is used next.
    fn obtain(&self, offset: usize, len: usize, touched: usize) -> Result<(), SystemError>;

    /// Sets addresses for `len` bytes aside, aligned to `align`, that read as zeros.
    fn claim(&self, len: usize, align: usize) -> Result<Extent, SystemError>;

    /// Takes every access to the addresses away and gives them back. On failure they stay taken for good, and what was shown
    /// there may still be.
    fn release(&self, extent: Extent) -> Result<(), SystemError>;

    /// Shows something else than before. A `fork(2)` child never sees pool memory, not even one that another thread makes
    /// during this call.
    fn show(&self, part: Part<'_>, what: Shows<usize>) -> Result<(), MapFailure>;

    /// Gives the memory of a part of the pool back to the system; what [`Sys::obtain`] gets there afterwards is zero. On failure
    /// all is as it was.
    ///
    /// # Safety
    /// The caller alone holds this memory, it is shown nowhere, and nobody uses it through the direct map.
    unsafe fn punch(&self, offset: usize, len: usize) -> Result<(), SystemError>;

    /// Changes what the program may do where pool memory is shown. When it returns, no processor has the old right cached.
    /// On failure a first part of the range may have changed.
    fn protect(&self, part: Part<'_>, access: Access) -> Result<(), SystemError>;

    /// Nanoseconds on a clock that only goes forward.
    fn now(&self) -> u64;

    /// Nanoseconds that this thread has had a processor.
    fn cpu_time(&self) -> u64;
}
