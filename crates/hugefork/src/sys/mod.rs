//! The only door to the operating system. Everything above it works through this trait. So the same code runs in the
//! signal handler ([`linux`]) and in the tests on the software MMU (`soft`), which counts calls and makes them fail.

pub(crate) mod budget;
mod error;
mod extent;
pub(crate) mod linux;
pub(crate) mod program;
pub(crate) mod racing;
pub(crate) mod restore;
#[cfg(any(test, fuzzing, feature = "model"))]
#[cfg_attr(not(test), allow(dead_code, reason = "the fuzzer and hugefork-program use a part of it"))]
pub(crate) mod soft;

pub use error::SystemError;
pub(crate) use error::answer;
pub(crate) use extent::{Extent, Part};
pub(crate) use hugefork_linux::pagemap_scan::{MOST_RUNS, PageRun};

use std::ops::Range;

use budget::MappingBudget;
use racing::PageBytes;

/// What the program may do where pool memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

/// What addresses show. `M` names pool memory: a block above this door, a byte of the pool at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shows<M> {
    /// Zeros that can be read and take no memory.
    Zeros,
    /// Nothing: every access faults.
    Hidden,
    /// The pool's memory from `start` on.
    Memory { start: M, access: Access },
    /// The pool's memory from `start` on, through a private mapping: the kernel copies each base page that is written,
    /// and from then on that copy is shown in its place. The pool's memory stays as it is.
    CowMapping { start: M, access: Access },
}

impl<M> Shows<M> {
    /// The same, with another name for its memory.
    pub(crate) fn map<N>(self, name: impl FnOnce(M) -> N) -> Shows<N> {
        match self {
            Shows::Zeros => Shows::Zeros,
            Shows::Hidden => Shows::Hidden,
            Shows::Memory { start, access } => Shows::Memory { start: name(start), access },
            Shows::CowMapping { start, access } => Shows::CowMapping { start: name(start), access },
        }
    }
}

/// How mappings of this memory behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merging {
    /// shmem: mappings of neighbouring blocks at neighbouring addresses become one, and a block can be treated in
    /// parts.
    Merge,
    /// hugetlb: each block is a mapping of its own, and nothing is smaller than its pages.
    Separate,
}

/// What is mapped after a mapping call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aftermath {
    /// What was there before: the kernel refused at once.
    Unchanged,
    /// Perhaps a part of what the call asked for.
    Unknown,
    /// What the call asked for, but the right to write may be missing there, or in a part. Where it is not, somebody
    /// may have written by now.
    NotWritable,
}

/// A mapping call that failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapFailure {
    pub(crate) error: SystemError,
    pub(crate) aftermath: Aftermath,
}

/// The pages that a scan finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanFor {
    /// Private pages.
    Private,
    /// The same, which count as not written from then on where writes are tracked.
    PrivateAndMark,
    /// Pages without a mark: all private pages that have none, and perhaps pages that were only read. This scan is five
    /// times as fast.
    Unmarked,
    /// The same, and marks them.
    UnmarkedAndMark,
}

impl ScanFor {
    /// Whether the pages get marks.
    pub(crate) fn marks(self) -> bool {
        matches!(self, ScanFor::PrivateAndMark | ScanFor::UnmarkedAndMark)
    }
}

/// What [`Sys::scan`] has found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scanned {
    /// How many runs.
    pub(crate) runs: usize,
    /// How many bytes of the range it has looked at.
    pub(crate) looked_at: usize,
    /// Whether what it has found is marked now.
    pub(crate) are_marked: bool,
}

/// One pool's memory, and the addresses where its regions live.
///
/// All offsets, lengths and addresses are multiples of the block size, or of a base page where a block is split.
/// Offsets lie inside the pool. The fault handler calls all methods except `refresh_budget`, `claim`, `claim_parking`,
/// `claim_staging`, `release` and `tidy`, so they do not allocate, do not panic, and take only the kernel's locks.
pub(crate) trait Sys: Send + Sync + Sized + 'static {
    /// The first byte of the direct map: the whole pool in the pool's order. What has got memory by [`Sys::obtain`], or
    /// was shown by [`Sys::show`], can be read and written there.
    fn direct(&self) -> *mut u8;

    /// Whether mappings of neighbouring blocks at neighbouring addresses become one.
    fn merging(&self) -> Merging;

    /// How many mappings the process has and may have.
    fn budget(&self) -> &MappingBudget;

    /// Counts anew what the rest of the program leaves of the budget. Not for faults.
    fn refresh_budget(&self);

    /// Makes one page of each 2 MiB of the range, if the kernel does not do so by itself at the first touch. The range
    /// begins and ends at multiples of 2 MiB and holds nothing yet. It is only a wish: parts of the range may have
    /// memory afterwards, and that is zero.
    fn make_huge(&self, offset: usize, len: usize);

    /// Gets memory for what was never used or was punched out; it is zero then. Memory that is there stays. The program
    /// uses the byte `touched` next.
    fn obtain(&self, offset: usize, len: usize, touched: usize) -> Result<(), SystemError>;

    /// Sets `len` bytes of addresses aside, aligned to `align`, that read as zeros.
    fn claim(&self, len: usize, align: usize) -> Result<Extent, SystemError>;

    /// Makes the addresses inaccessible and gives them back. On failure they stay taken, and may still show what they
    /// showed.
    fn release(&self, extent: Extent) -> Result<(), SystemError>;

    /// Changes what the addresses show. A `fork(2)` child never sees pool memory, even if another thread forks during
    /// this call.
    fn show(&self, part: Part<'_>, what: Shows<usize>) -> Result<(), MapFailure>;

    /// Gives the memory of a part of the pool back to the system. What [`Sys::obtain`] gets there afterwards is zero. A
    /// failure changes nothing.
    ///
    /// # Safety
    /// The caller alone holds this memory, it is shown nowhere, and nobody uses it through the direct map.
    unsafe fn punch(&self, offset: usize, len: usize) -> Result<(), SystemError>;

    /// As [`Sys::punch`], of memory that is not to be used soon: not through the direct map before [`Sys::obtain`] gets
    /// some there or [`Sys::show`] shows it.
    ///
    /// # Safety
    /// That of [`Sys::punch`].
    unsafe fn retire(&self, offset: usize, len: usize) -> Result<(), SystemError> {
        // SAFETY: by contract.
        unsafe { self.punch(offset, len) }
    }

    /// The first part of a range of the pool that has memory, for all that is known; the rest reads as zeros.
    fn next_memory(&self, range: Range<usize>) -> Option<Range<usize>> {
        Some(range)
    }

    /// Changes what the program may do where pool memory is shown. When it returns, no processor has the old right
    /// cached. On failure, a first part of the range may have changed.
    fn protect(&self, part: Part<'_>, access: Access) -> Result<(), SystemError>;

    /// Whether [`Shows::CowMapping`] can be shown.
    fn has_cow_mappings(&self) -> bool;

    /// Claims `len` bytes of addresses, aligned to `align`, that show nothing: what is held is parked there. An error
    /// if nothing can be held.
    fn claim_parking(&self, len: usize, align: usize) -> Result<Extent, SystemError>;

    /// Takes what `part` shows to `parked`, with its private pages. The part shows pool memory in a row, or one
    /// CoW mapping. From then on whoever uses the part waits, reads and system calls too, until [`Sys::resume`]. After
    /// a failure it shows what it showed, and nobody waits.
    fn hold(&self, part: Part<'_>, parked: Part<'_>) -> Result<(), SystemError>;

    /// Shows at `part`, which is held, what `parked` shows, with the right to write if it has that: nobody finds it
    /// there without. If the kernel refuses, the process aborts with a line.
    fn unpark(&self, part: Part<'_>, parked: Part<'_>);

    /// Wakes those who wait for `part`, after something was shown at all of it. `parked` shows nothing again. If the
    /// kernel refuses, the process aborts with a line.
    fn resume(&self, part: Part<'_>, parked: Part<'_>);

    /// Claims `len` bytes of addresses, aligned to `align`, that show nothing: private pages are staged there while a
    /// reset puts them back.
    fn claim_staging(&self, len: usize, align: usize) -> Result<Extent, SystemError>;

    /// Takes the private pages of `part`, which shows one CoW mapping, to `staging`, which shows that with them from
    /// then on. The part shows what is below, with the same right to write. Whoever uses it sees this happen at one
    /// moment. After a failure nothing has changed; so it is where the part is more than one mapping.
    fn take_pages(&self, part: Part<'_>, staging: Part<'_>) -> Result<(), SystemError>;

    /// Shows at `part` what `staging` shows, in place of what is there, which may be held. Whoever uses it sees this
    /// happen at one moment. What is below is shown at the staging from then on. After a failure nothing has changed.
    fn bring_pages(&self, part: Part<'_>, staging: Part<'_>) -> Result<(), SystemError>;

    /// Finds pages in a part that shows a CoW mapping, in order, until `runs` is full. It scans the whole part, or at
    /// least one page. The result means nothing where the part shows no CoW mapping any more. Each run says whether its
    /// pages may have been written since they were marked. Mappings that were made or moved there since
    /// [`Sys::track_writes`] have no marks.
    fn scan(&self, part: Part<'_>, wanted: ScanFor, runs: &mut [PageRun]) -> Result<Scanned, SystemError>;

    /// Tracks writes to a part that shows CoW mappings. False if that cannot be done: then all pages count as written.
    fn track_writes(&self, part: Part<'_>) -> bool;

    /// Drops the private pages of a part that shows a CoW mapping, which then shows what is below. A failure leaves
    /// some.
    fn drop_private(&self, part: Part<'_>) -> Result<(), SystemError>;

    /// The same at one moment, for whoever uses the part. [`Sys::tidy`] gives the memory back. False if that cannot be
    /// done, and then nothing has changed; so it is where the part is more than one mapping.
    fn drop_at_once(&self, part: Part<'_>) -> bool;

    /// Does what [`Sys::show`] and [`Sys::drop_at_once`] have left for later. Not for faults.
    fn tidy(&self);

    /// Copies what the addresses show.
    ///
    /// # Safety
    /// The addresses can be read, and nobody writes there meanwhile. `to` is valid for writes of as many bytes, and
    /// nobody else uses them.
    unsafe fn copy_shown(&self, part: Part<'_>, to: *mut u8);

    /// Copies one base page of what the addresses show, which others may write to meanwhile: then there is something of
    /// before and something of after. Not for faults.
    ///
    /// # Safety
    /// The addresses can be read, and nothing else is shown there until this returns. `to` is valid for writes of a
    /// base page, and nobody else uses it.
    unsafe fn copy_shown_page(&self, part: Part<'_>, to: *mut u8);

    /// Whether one base page of what the addresses show, which others may write to meanwhile, differs from this one.
    /// Not for faults.
    ///
    /// # Safety
    /// The addresses can be read, and nothing else is shown there until this returns.
    unsafe fn shown_differs(&self, part: Part<'_>, from: &PageBytes) -> bool;

    /// Copies the bytes at `from` to where the addresses show others. True if any were. If the program may not write
    /// there, the kernel has to, which may refuse.
    ///
    /// # Safety
    /// The addresses show a CoW mapping with this access, and nobody else writes there meanwhile. `from` is valid for
    /// reads of as many bytes, which nobody writes.
    unsafe fn restore(&self, part: Part<'_>, access: Access, from: *const u8) -> Result<bool, SystemError>;

    /// Copies bytes to where the addresses show others, without a look at those: that would take one more fault where
    /// nothing was used yet.
    ///
    /// # Safety
    /// The addresses show a CoW mapping that can be written to, and nobody else uses them meanwhile. `from` is valid
    /// for reads of as many bytes, which nobody writes.
    unsafe fn overwrite(&self, part: Part<'_>, from: *const u8);

    /// Whether the calling thread is the only one of the process, but for the engine's own. Then it stays so until this
    /// thread starts another or lets the program's signal handlers run.
    fn is_alone(&self) -> bool;

    /// How many page faults of the process the kernel has resolved. While it stands still, no page has become private.
    fn minor_faults(&self) -> u64;

    /// How many page faults of its threads but the calling one the kernel has resolved, if that says whether they have
    /// written: while it stands still, none has to a page that is marked, or that was not private. Another process that
    /// writes to this one's memory counts them as its own.
    fn faults_of_others(&self) -> Option<u64>;

    /// How often threads of the process have gone to sleep, but for the calling one.
    fn sleeps(&self) -> u64;

    /// Nanoseconds on a clock that only goes forward.
    fn now(&self) -> u64;

    /// Nanoseconds that this thread has run on a processor.
    fn cpu_time(&self) -> u64;
}
