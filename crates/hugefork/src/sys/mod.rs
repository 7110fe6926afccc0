//! The only door to the operating system. Everything above is arithmetic over this trait, so the same resolver runs in
//! the signal handler ([`linux`]) and on the software MMU of the tests (`soft`), which counts calls and fails them.

pub(crate) mod budget;
pub(crate) mod linux;
#[cfg(test)]
pub(crate) mod soft;

use crate::error::SystemError;
use budget::MappingBudget;

/// What a mapping of pool memory lets the program do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
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
pub(crate) enum Left {
    /// What was there before: the kernel refused at once.
    AsItWas,
    /// Something of the call may have been carried out.
    Unknown,
}

/// A mapping call that failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapFailure {
    pub(crate) error: SystemError,
    pub(crate) left: Left,
}

/// One pool's memory, and the addresses that its regions live at.
///
/// All offsets, lengths and addresses are multiples of the block size, or of a base page where a block is split. Except for `refresh_budget`, `reserve` and `release` the methods
/// are called from the fault handler: no allocation, no lock but the kernel's, no panic.
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

    /// Sets aside an address range of `len` bytes, aligned to `align`, that reads as zeros.
    fn reserve(&self, len: usize, align: usize) -> Result<usize, SystemError>;

    /// Takes every access away from a reserved range and gives the range back.
    fn release(&self, at: usize, len: usize) -> Result<(), SystemError>;

    /// Makes pool memory visible at `at` in place of what was there. A `fork(2)` child never sees it, not even one that
    /// another thread makes during this call.
    fn map(&self, at: usize, len: usize, offset: usize, access: Access) -> Result<(), MapFailure>;

    /// Makes `len` bytes at `at` read as zeros, in place of what was there.
    fn map_zeros(&self, at: usize, len: usize) -> Result<(), MapFailure>;

    /// Makes `len` bytes at `at` inaccessible, in place of what was there.
    fn hide(&self, at: usize, len: usize) -> Result<(), MapFailure>;

    /// Gives the memory of a part of the pool back to the system; what [`Sys::obtain`] gets there afterwards is zero. It is
    /// mapped nowhere but in the direct map. On failure all is as it was.
    fn punch(&self, offset: usize, len: usize) -> Result<(), SystemError>;

    /// Changes what the program may do with `len` mapped bytes at `at`. When it returns, no processor has the old right
    /// cached.
    fn protect(&self, at: usize, len: usize, access: Access) -> Result<(), SystemError>;

    /// Nanoseconds on a clock that only goes forward.
    fn now(&self) -> u64;

    /// Nanoseconds that this thread has had a processor.
    fn cpu_time(&self) -> u64;
}
