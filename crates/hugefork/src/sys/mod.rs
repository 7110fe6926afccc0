//! The only door to the operating system: all other code of the engine reaches the kernel through the trait [`Sys`]. So
//! the same code runs in the signal handler ([`linux`]), and in tests on the software MMU (`soft`), which counts calls
//! and makes them fail.

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

/// The program's access rights where pool memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

/// The memory that addresses show. `M` is the type that names pool memory: blocks above this door, byte offsets at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shows<M> {
    /// Zeros, which can be read and take no memory.
    Zeros,
    /// Nothing: every access faults.
    Hidden,
    /// The pool's memory from `start` on.
    Memory { start: M, access: Access },
    /// The pool's memory from `start` on, through a private mapping: the kernel copies each base page that is written,
    /// and the addresses show that copy from then on. The pool's memory does not change.
    CowMapping { start: M, access: Access },
}

impl<M> Shows<M> {
    /// The same value, with memory named by another type.
    pub(crate) fn map<N>(self, name: impl FnOnce(M) -> N) -> Shows<N> {
        match self {
            Shows::Zeros => Shows::Zeros,
            Shows::Hidden => Shows::Hidden,
            Shows::Memory { start, access } => Shows::Memory { start: name(start), access },
            Shows::CowMapping { start, access } => Shows::CowMapping { start: name(start), access },
        }
    }
}

/// How mappings of a pool's memory behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merging {
    /// shmem: mappings of neighbouring blocks at neighbouring addresses merge into one, and each base page of a block
    /// can be treated on its own.
    Merge,
    /// hugetlb: each block is a mapping of its own, and no call can treat a part of a huge page.
    Separate,
}

/// The state of the addresses after a mapping call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aftermath {
    /// The addresses show the same as before, because the kernel refused at once.
    Unchanged,
    /// The addresses may show the requested memory in part.
    Unknown,
    /// The addresses show the requested memory, but all or a part of it may lack the right to write. In the rest, other
    /// threads may have written by now.
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
    /// As [`ScanFor::Private`], and marks the pages: they count as not written from then on, where writes are tracked.
    PrivateAndMark,
    /// Pages without a mark: all unmarked private pages, and perhaps pages that were only read. This scan is five times
    /// as fast.
    Unmarked,
    /// As [`ScanFor::Unmarked`], and marks the pages.
    UnmarkedAndMark,
}

impl ScanFor {
    /// Whether the pages get marks.
    pub(crate) fn marks(self) -> bool {
        matches!(self, ScanFor::PrivateAndMark | ScanFor::UnmarkedAndMark)
    }
}

/// The result of [`Sys::scan`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scanned {
    /// The number of runs.
    pub(crate) runs: usize,
    /// The number of bytes that were scanned, from the start of the range on.
    pub(crate) looked_at: usize,
    /// Whether the pages that were found are marked now.
    pub(crate) are_marked: bool,
}

/// The memory of one pool, and the addresses of its regions.
///
/// All offsets, lengths and addresses are multiples of the block size, or of a base page where a block is split.
/// Offsets lie inside the pool. The fault handler calls all methods except `refresh_budget`, `claim`, `claim_parking`,
/// `claim_staging` and `release`, so these others do not allocate, do not panic, and take only the kernel's
/// locks.
pub(crate) trait Sys: Send + Sync + Sized + 'static {
    /// The first byte of the direct map: the whole pool in the pool's order. Memory that [`Sys::obtain`] has allocated,
    /// or that [`Sys::show`] has shown, can be read and written there.
    fn direct(&self) -> *mut u8;

    /// Whether mappings of neighbouring blocks at neighbouring addresses become one.
    fn merging(&self) -> Merging;

    /// The number of mappings that the process has and may have.
    fn budget(&self) -> &MappingBudget;

    /// Counts again how many mappings the rest of the program has. Not for faults.
    fn refresh_budget(&self);

    /// Asks for one huge page in each 2 MiB of the range, if the kernel does not make them by itself at the first
    /// touch. The range begins and ends at multiples of 2 MiB and has no contents yet. The request may fail or succeed
    /// in part; parts that have memory afterwards are zero.
    fn make_huge(&self, offset: usize, len: usize);

    /// Allocates memory for parts that were never used or were punched out; it is zero. Existing memory stays.
    /// `touched` is the byte that the program will access next.
    fn obtain(&self, offset: usize, len: usize, touched: usize) -> Result<(), SystemError>;

    /// Claims `len` bytes of addresses, aligned to `align`, that read as zeros.
    fn claim(&self, len: usize, align: usize) -> Result<Extent, SystemError>;

    /// Makes the addresses inaccessible and gives them back. On failure they stay claimed, and may still show the same
    /// as before.
    fn release(&self, extent: Extent) -> Result<(), SystemError>;

    /// Changes the memory that the addresses show. A `fork(2)` child never sees pool memory, even if another thread
    /// forks during this call.
    fn show(&self, part: Part<'_>, what: Shows<usize>) -> Result<(), MapFailure>;

    /// Gives the memory of a part of the pool back to the system. Memory that [`Sys::obtain`] allocates there later is
    /// zero. A failure changes nothing.
    ///
    /// # Safety
    /// The caller alone holds this memory, no address shows it, and no thread uses it through the direct map.
    unsafe fn punch(&self, offset: usize, len: usize) -> Result<(), SystemError>;

    /// As [`Sys::punch`], for memory that will not be used soon: the direct map there may be used only after
    /// [`Sys::obtain`] has allocated memory or [`Sys::show`] has shown it.
    ///
    /// # Safety
    /// The caller keeps the contract of [`Sys::punch`].
    unsafe fn retire(&self, offset: usize, len: usize) -> Result<(), SystemError> {
        // SAFETY: by this function's contract, which includes that of `punch`.
        unsafe { self.punch(offset, len) }
    }

    /// The first part of a range of the pool that has memory, as far as the system can tell. The rest reads as zeros.
    fn next_memory(&self, range: Range<usize>) -> Option<Range<usize>> {
        Some(range)
    }

    /// Changes the program's rights where pool memory is shown. When it returns, no processor has the old right cached.
    /// On failure, a first part of the range may have changed.
    fn protect(&self, part: Part<'_>, access: Access) -> Result<(), SystemError>;

    /// Whether [`Shows::CowMapping`] can be shown.
    fn has_cow_mappings(&self) -> bool;

    /// Claims `len` bytes of addresses, aligned to `align`, that show nothing. The memory of held addresses is parked
    /// there. Fails if this system can hold no addresses.
    fn claim_parking(&self, len: usize, align: usize) -> Result<Extent, SystemError>;

    /// Holds `part`, which shows consecutive pool memory or one CoW mapping: moves its memory, with the private pages,
    /// to `parked`. From then on, any thread or system call that uses the part waits until [`Sys::resume`], even to
    /// read. After a failure the part shows the same as before, and no thread waits.
    fn hold(&self, part: Part<'_>, parked: Part<'_>) -> Result<(), SystemError>;

    /// Shows the memory at `parked` at `part`, which is held. If `parked` has the right to write, `part` has it from
    /// the first moment on, so no thread finds the memory there without it. If the kernel refuses, the process aborts
    /// with a line.
    fn unpark(&self, part: Part<'_>, parked: Part<'_>);

    /// Wakes the threads that wait for `part`, after all of it shows something. `parked` then shows nothing again. If
    /// the kernel refuses, the process aborts with a line.
    fn resume(&self, part: Part<'_>, parked: Part<'_>);

    /// Claims `len` bytes of addresses, aligned to `align`, that show nothing. Private pages are staged there while a
    /// reset puts them back.
    fn claim_staging(&self, len: usize, align: usize) -> Result<Extent, SystemError>;

    /// Moves the private pages of `part`, which shows one CoW mapping, to `staging`, which then shows that mapping with
    /// them. The part then shows the memory below, with the same right to write. Threads that use the part see all of
    /// this happen at one moment. After a failure nothing has changed. It fails where the part is more than one
    /// mapping.
    fn take_pages(&self, part: Part<'_>, staging: Part<'_>) -> Result<(), SystemError>;

    /// Shows at `part`, which may be held, the memory at `staging` in place of its own. Threads that use the part see
    /// this happen at one moment. The staging then shows the memory below. After a failure nothing has changed.
    fn bring_pages(&self, part: Part<'_>, staging: Part<'_>) -> Result<(), SystemError>;

    /// Finds pages of a part that shows a CoW mapping, in order, until `runs` is full. It scans the whole part, or at
    /// least one page. The result means nothing if the part has ceased to show a CoW mapping. Each run says whether its
    /// pages may have been written since they were marked. Mappings that were made there or moved there after
    /// [`Sys::track_writes`] have no marks.
    fn scan(&self, part: Part<'_>, wanted: ScanFor, runs: &mut [PageRun]) -> Result<Scanned, SystemError>;

    /// Tracks writes to a part that shows CoW mappings. Returns false if that is impossible; then all pages count as
    /// written.
    fn track_writes(&self, part: Part<'_>) -> bool;

    /// Drops the private pages of a part that shows a CoW mapping, which then shows the memory below. After a failure
    /// some private pages may remain.
    fn drop_private(&self, part: Part<'_>) -> Result<(), SystemError>;

    /// Frees the page tables that [`Sys::show`] has left for later. Not for faults.
    fn tidy(&self);

    /// Copies the bytes that the addresses show.
    ///
    /// # Safety
    /// The addresses can be read, and no thread writes there meanwhile. `to` is valid for writes of as many bytes, and
    /// no other code uses them.
    unsafe fn copy_shown(&self, part: Part<'_>, to: *mut u8);

    /// Copies one base page that the addresses show. Other threads may write to it meanwhile; the copy then has some
    /// bytes of before and some of after such a write. Not for faults.
    ///
    /// # Safety
    /// The addresses can be read, and show the same memory until this returns. `to` is valid for writes of a base page,
    /// and no other code uses it.
    unsafe fn copy_shown_page(&self, part: Part<'_>, to: *mut u8);

    /// Whether one base page that the addresses show differs from `from`. Other threads may write to the page
    /// meanwhile. Not for faults.
    ///
    /// # Safety
    /// The addresses can be read, and show the same memory until this returns.
    unsafe fn shown_differs(&self, part: Part<'_>, from: &PageBytes) -> bool;

    /// Makes the bytes that the addresses show equal to those at `from`, and writes only where they differ. Returns
    /// true if any differed. Where the program may not write, the kernel has to write, and may refuse.
    ///
    /// # Safety
    /// The addresses show a CoW mapping with this access, and no other thread writes there meanwhile. `from` is valid
    /// for reads of as many bytes, and no thread writes to them.
    unsafe fn restore(&self, part: Part<'_>, access: Access, from: *const u8) -> Result<bool, SystemError>;

    /// Whether the kernel has [`Sys::restore`] write where the program may not.
    fn writes_through(&self) -> bool;

    /// Overwrites the bytes that the addresses show with those at `from`, without a comparison: that would cost one
    /// more fault where no page was used yet.
    ///
    /// # Safety
    /// The addresses show a CoW mapping that can be written to, and no other thread uses them meanwhile. `from` is
    /// valid for reads of as many bytes, and no thread writes to them.
    unsafe fn overwrite(&self, part: Part<'_>, from: *const u8);

    /// Whether the calling thread is the only one of the process, apart from the engine's own threads. This then stays
    /// true until the thread starts another or lets the program's signal handlers run.
    fn is_alone(&self) -> bool;

    /// How many page faults of the process the kernel has resolved. While the number stands still, no page becomes
    /// private.
    fn minor_faults(&self) -> u64;

    /// How many page faults of the other threads of the process the kernel has resolved; `None` if this does not show
    /// whether they have written. While the number stands still, no other thread writes to a page that is marked or not
    /// private. Another process that writes to this one's memory counts such faults as its own.
    fn faults_of_others(&self) -> Option<u64>;

    /// How often the other threads of the process have gone to sleep.
    fn sleeps(&self) -> u64;

    /// The time in nanoseconds, by a clock that never goes back.
    fn now(&self) -> u64;

    /// The CPU time of the calling thread in nanoseconds.
    fn cpu_time(&self) -> u64;
}
