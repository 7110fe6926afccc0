//! The memory of one pool: a file, and its mapping as a whole (the direct map). The mappings of regions are in
//! shown.rs. The file is a memfd, or a file of a tmpfs of its own (own_tmpfs.rs). Once it is mapped, its descriptor is
//! closed, because all later calls use addresses. A pool that exports keeps a descriptor for reading. A hugetlb pool
//! keeps its file, without which the kernel makes no second mapping of hugetlb.
//!
//! ```text
//! file         | block 0 | block 1 | block 2 | …          size = capacity
//! direct map   | rw      |         | rw      |             in the arena; not in fork(2) children or core dumps
//! template     | r       |         | r       |             the same, for shmem; never touched
//! ```
//! Both mappings are accessible only where the pool is used (pool_map.rs).

use core::ptr;
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) use hugefork_linux::Descriptor;
pub(crate) use hugefork_linux::mappings::{Mappings, map_anonymous, unmap_anonymous};
use hugefork_linux::parking::Failure;
use rustix::fs::{MemfdFlags, fcntl_get_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munlock};
use rustix::process::{Resource, getrlimit};
use thiserror::Error;

use super::arena::Arena;
use super::cow_mapping::CowMappings;
use super::hold;
use super::mappings::FileId;
use super::own_tmpfs::{self, NoTmpfs, Swap};
use super::pool_map::PoolMap;
use super::{LOST, advice, kept, named, owner, pagemap, residence, schedule, settings, share, threads};
use crate::sys::budget::MappingBudget;
use crate::sys::program::ProgramSys;
use crate::sys::racing::{PageBytes, copy_page, differs as differs_racing};
use crate::sys::restore::{differs, restore};
use crate::sys::{Access, Extent, MapFailure, Merging, PageRun, Part, ScanFor, Scanned, Shows, Sys, SystemError};
use crate::units::{BASE_PAGE, HUGE_PAGE};

/// The call that fails when a reset cannot stage private pages or show them again.
const PRIVATE_PAGES: &str = "mremap of private pages";

/// The error of a pool that keeps no file.
pub(crate) const NOTHING_KEPT: SystemError =
    SystemError::new("export of a pool that was not built for it", Errno::OPNOTSUPP);

/// The error of a pool whose regions children do not inherit.
pub(crate) const NOT_INHERITED: SystemError =
    SystemError::new("fork for a region that children do not inherit", Errno::CHILD);

/// The call that gives memory back to the system.
const REMOVE: &str = "madvise(MADV_REMOVE)";

/// The budget of mappings, which all pools of the process share.
static BUDGET: MappingBudget = MappingBudget::new(settings::DEFAULT_MAP_COUNT);

/// The kind of a pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reserved huge pages of this many bytes each.
    Hugetlb { page: usize },
    /// shmem, in huge pages where the kernel can.
    ShmemHuge(Huge),
    /// shmem in base pages.
    ShmemBase,
}

/// The way in which shmem gets huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Huge {
    /// The kernel makes them at first touch, as `shmem_enabled` says.
    BySetting,
    /// The kernel makes them at first touch, as the mount says.
    OwnTmpfs(Swap),
    /// hugefork asks the kernel for each huge page.
    Collapse,
}

/// Why memory of some kind cannot be had.
#[derive(Debug, Error)]
pub(crate) enum NoMemory {
    #[error("there is no tmpfs of its own: {0}")]
    Tmpfs(#[from] NoTmpfs),
    #[error(transparent)]
    System(#[from] SystemError),
}

impl Kind {
    /// The size of its largest page.
    fn align(self) -> usize {
        match self {
            Kind::Hugetlb { page } => page,
            Kind::ShmemHuge(_) => HUGE_PAGE,
            Kind::ShmemBase => BASE_PAGE,
        }
    }
}

/// Why the kernel cannot copy single pages on a write.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum NoPageGrain {
    #[error("the kernel copies whole pages of hugetlb: take Backing::ShmemHuge")]
    Hugetlb,
    #[error("{0}: Linux 6.7 and a readable /proc/self/pagemap are needed")]
    Refused(#[from] SystemError),
    #[error(
        "{0}: RLIMIT_DATA (ulimit -d) and vm.overcommit_memory=2 count all of a private mapping, \
         written or not: raise the limit above the capacity, or lower the capacity"
    )]
    TooMuchData(SystemError),
}

/// Whether the contents of regions are part of a core dump. For hugetlb memory bit 6 of `/proc/self/coredump_filter`
/// decides instead.
///
/// Debuggers do not report that memory was left out: gdb shows **zeros** in its place, or cannot access it. To examine
/// regions in dumps, use [`CoreDump::Included`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hugefork::{CoreDump, Pool};
/// let builder = Pool::builder().capacity(8 << 20);
/// let pool = if cfg!(debug_assertions) { builder.core_dump(CoreDump::Included).build()? } else { builder.build()? };
/// # drop(pool);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CoreDump {
    /// Left out, as databases do with their buffers. Regions may read as zeros in gdb.
    #[default]
    LeftOut,
    /// Included, for 1 us more per fault.
    Included,
}

/// Whether other processes may get access to the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Exports {
    #[default]
    No,
    Yes,
}

/// One pool's memory on Linux.
pub struct Linux {
    /// The file of a hugetlb pool. A read-only descriptor of the file, for a pool that exports, or if system calls are
    /// filtered.
    file: Result<Descriptor, SystemError>,
    /// The identity of the mapped file.
    pub(super) id: FileId,
    exports: Exports,
    pub(super) direct: PoolMap,
    /// The mapping from which read-only mappings are duplicated; none for hugetlb.
    pub(super) template: Option<PoolMap>,
    pub(super) kind: Kind,
    pub(super) dump: CoreDump,
    pub(super) arena: &'static Arena,
    /// The state for CoW mappings, or the reason why there are none.
    pub(super) cow_mappings: Result<CowMappings, NoPageGrain>,
    /// How many pieces of 2 MiB the kernel refused to make huge pages of.
    not_collapsed: AtomicU64,
    pub(super) children: Children,
    /// Whether all addresses were given back, so that everything mapped there now is the program's.
    pub(super) is_left: AtomicBool,
}

/// The part of a pool's memory that a `fork(2)` child has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Children {
    /// Nothing.
    HaveNothing,
    /// The memory that private mappings show at the time of the fork.
    HaveCowMappings,
}

// SAFETY: the pointers lead to mappings that belong to this value, and any thread may use them.
unsafe impl Send for Linux {}
// SAFETY: as above; each use of the pointers argues its own case.
unsafe impl Sync for Linux {}

impl Linux {
    /// Memory for a pool. hugetlb pages are reserved here: after success, they cannot be missing. shmem gets its memory
    /// when blocks are used, or by [`Sys::obtain`].
    pub(crate) fn new(kind: Kind, capacity: usize, dump: CoreDump, exports: Exports) -> Result<Linux, NoMemory> {
        advice::note_filter();
        let arena = Arena::open()?;
        if getrlimit(Resource::Fsize).current.is_some_and(|most| most < capacity as u64) {
            // The kernel would not only refuse: it would send SIGXFSZ, which kills.
            return Err(SystemError::new("ftruncate of the pool's memfd", Errno::FBIG).into());
        }
        refresh_budget();
        let file = create_file(kind, capacity)?;
        if exports == Exports::Yes {
            // If the kernel refuses this, a later export returns an error.
            let _ = share::guard(kept(&file)?);
        }
        let direct = map_direct(arena, &file, capacity, kind, Access::ReadWrite)?;
        let (template, cow_mappings) = match kind {
            Kind::Hugetlb { .. } => {
                // The kernel neither locks nor touches hugetlb memory by itself.
                direct.open(0, capacity)?;
                (None, Err(NoPageGrain::Hugetlb))
            }
            Kind::ShmemHuge(_) | Kind::ShmemBase => (
                Some(map_direct(arena, &file, capacity, kind, Access::Read)?),
                CowMappings::open(arena, &file, capacity, kind.align(), dump),
            ),
        };
        let (device, inode) = file.file();
        let file = match kind {
            Kind::Hugetlb { .. } => Ok(file),
            // A query by address takes a system call that filters may lack ([`residence`]).
            _ if exports == Exports::Yes || advice::has_filter() => share::reopen_for_reading(&file),
            _ => Err(NOTHING_KEPT),
        };
        Ok(Linux {
            file,
            id: FileId::new(device, inode),
            exports,
            direct,
            template,
            kind,
            dump,
            arena,
            cow_mappings,
            not_collapsed: AtomicU64::new(0),
            children: Children::HaveNothing,
            is_left: AtomicBool::new(false),
        })
    }

    /// The file, if the pool keeps it and the program has not closed it.
    pub(crate) fn file(&self) -> Result<BorrowedFd<'_>, SystemError> {
        self.file.as_ref().map_err(|error| *error).and_then(kept)
    }

    /// The state for CoW mappings. An error if there are none.
    pub(super) fn cow_mappings(&self) -> Result<&CowMappings, SystemError> {
        self.cow_mappings.as_ref().map_err(|_| SystemError::new("a private mapping", Errno::NOTSUP))
    }

    /// The state for CoW mappings, if one call moves all of a part at one moment, or refuses to.
    fn mover_of(&self, part: Part<'_>) -> Result<&CowMappings, SystemError> {
        match &self.cow_mappings {
            Ok(cow_mappings) if cow_mappings.mappings.is_one(part.at(), part.len()) => Ok(cow_mappings),
            Ok(_) | Err(_) => Err(SystemError::new("mremap of several mappings", Errno::INVAL)),
        }
    }

    /// The number of the descriptor of the file, and the file's device and inode, if the pool keeps it.
    pub(crate) fn number(&self) -> Option<(RawFd, (u64, u64))> {
        self.file.as_ref().ok().map(|file| (file.as_raw_fd(), file.file()))
    }

    /// Returns an error if some of a part shows other memory than this, because such a part must not be moved.
    fn check_shown(&self, part: Part<'_>) -> Result<(), SystemError> {
        if self.children == Children::HaveNothing {
            return Ok(());
        }
        let mut rest = part.at()..part.at() + part.len();
        while !rest.is_empty() {
            match self.shown(&rest, None) {
                Some(piece) if piece.start == rest.start => rest.start = piece.end,
                _ => return Err(SystemError::new("mremap to hold a range", Errno::FAULT)),
            }
        }
        Ok(())
    }

    /// The reason why the kernel cannot copy single pages on a write, if there is one.
    pub(crate) fn no_page_grain(&self) -> Option<NoPageGrain> {
        self.cow_mappings.as_ref().err().copied()
    }

    /// Opens a read-only descriptor of all the memory.
    pub(crate) fn open_for_reading(&self) -> Result<Descriptor, SystemError> {
        if self.exports == Exports::No {
            return Err(NOTHING_KEPT);
        }
        let file = self.file.as_ref().map_err(|error| *error)?;
        share::guard(kept(file)?)?;
        share::reopen_for_reading(file)
    }

    /// The page size of the file. It can be mapped at offsets that are multiples of it.
    pub(crate) fn page_size(&self) -> usize {
        match self.kind {
            Kind::Hugetlb { page } => page,
            Kind::ShmemHuge(_) | Kind::ShmemBase => BASE_PAGE,
        }
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice, call: &'static str) -> Result<(), SystemError> {
        debug_assert!(offset + len <= self.direct.len);
        // SAFETY: the range lies in the direct map, and none of the advice used here drops contents that are still
        // needed.
        named(call, unsafe { madvise(self.direct.at.byte_add(offset), len, advice) })
    }

    fn populate(&self, offset: usize, len: usize) -> Result<(), SystemError> {
        self.direct.open(offset, len)?;
        self.advise(offset, len, Advice::LinuxPopulateWrite, "madvise(MADV_POPULATE_WRITE)")
    }

    /// Makes one huge page of the 2 MiB at `offset`, and keeps the contents. At least one of its base pages must have
    /// memory, or the kernel refuses. For a range that covers no whole 2 MiB, the kernel returns 0 and does nothing.
    /// Returns false if the kernel refused.
    pub(super) fn collapse(&self, offset: usize) -> bool {
        /// A try fails if the kernel or another thread uses or moves a page at that moment.
        const COLLAPSE_TRIES: usize = 3;
        for _ in 0..COLLAPSE_TRIES {
            // SAFETY: the range lies in the direct map.
            match hugefork_linux::advice::collapse(unsafe { self.direct.at.byte_add(offset) }, HUGE_PAGE) {
                Ok(()) => return true,
                Err(Errno::AGAIN) => {}
                Err(_) => break,
            }
        }
        false
    }

    /// How many pieces of 2 MiB the kernel refused to make huge pages of. They consist of base pages.
    pub(crate) fn not_collapsed(&self) -> u64 {
        self.not_collapsed.load(Ordering::Relaxed)
    }

    /// How many bytes of memory the pool has now, and how many of them are in huge pages. The second number is that of
    /// the direct map, through which all memory is allocated. `None` if the kernel does not say.
    pub(crate) fn memory(&self) -> (Option<usize>, Option<usize>) {
        if owner::is_forked_child() {
            // A child has no direct map.
            return (None, None);
        }
        (self.bytes(), pagemap::huge_bytes(self.direct.at.addr(), self.direct.len))
    }
}

/// Creates the file of a pool.
fn create_file(kind: Kind, capacity: usize) -> Result<Descriptor, NoMemory> {
    let of_what = match kind {
        Kind::ShmemHuge(Huge::OwnTmpfs(swap)) => return Ok(own_tmpfs::create(capacity, swap)?),
        Kind::Hugetlb { page } => {
            MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(page.trailing_zeros() << libc::MFD_HUGE_SHIFT)
        }
        Kind::ShmemHuge(Huge::BySetting | Huge::Collapse) | Kind::ShmemBase => MemfdFlags::empty(),
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | of_what;
    let file = named("memfd_create", Descriptor::keep(|| memfd_create("hugefork", flags)))?;
    // If the program has meanwhile put another file in the descriptor's place, that file has bytes, or is no memfd and
    // takes no seals.
    let is_new = file.stat().is_ok_and(|stat| stat.st_size == 0) && fcntl_get_seals(kept(&file)?).is_ok();
    if !is_new {
        return Err(SystemError::new(LOST, Errno::BADF).into());
    }
    named("ftruncate of the pool's memfd", ftruncate(kept(&file)?, capacity as u64))?;
    Ok(file)
}

/// Maps the whole file in the arena, at a multiple of its largest page size. The mapping is inaccessible at first: if
/// another thread forks before the mapping is excluded from children, the child must not get access to the pool.
fn map_direct(
    arena: &'static Arena,
    file: &Descriptor,
    capacity: usize,
    kind: Kind,
    access: Access,
) -> Result<PoolMap, SystemError> {
    let range = arena.take(capacity, kind.align())?;
    let (at, file, flags) = (pointer(range.at), kept(file)?, MapFlags::SHARED | MapFlags::FIXED);
    // SAFETY: the range was just taken, and no other code uses it.
    named("mmap of the pool", unsafe { mmap(at, capacity, ProtFlags::empty(), flags, file, 0) })?;
    // After mlockall(MCL_FUTURE), the mapping and all mappings made of it would be locked.
    // SAFETY: our own range; this changes no contents.
    let _ = unsafe { munlock(at, capacity) };
    // SAFETY: the mapping is ours, and none of the advice drops contents.
    let advise = |advice, call| named(call, unsafe { madvise(at, capacity, advice) });
    advise(Advice::LinuxDontFork, "madvise(MADV_DONTFORK)")?;
    advise(Advice::LinuxDontDump, "madvise(MADV_DONTDUMP)")?;
    // If hugefork asks for each huge page, the kernel must make none at first touch by `shmem_enabled=advise`.
    if matches!(kind, Kind::ShmemHuge(Huge::BySetting | Huge::OwnTmpfs(_))) {
        advise(Advice::LinuxHugepage, "madvise(MADV_HUGEPAGE)")?;
    }
    Ok(PoolMap::new(range, protection(access)))
}

/// Counts again how many mappings regions may have: the limit, less those of the rest of the program, less a margin.
pub(crate) fn refresh_budget() {
    let others = settings::map_count().unwrap_or(0).saturating_sub(BUDGET.used());
    BUDGET.set(settings::map_count_limit(), others);
}

pub(super) fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

/// The flags of mprotect(2) for this access.
fn protection(access: Access) -> MprotectFlags {
    match access {
        Access::Read => MprotectFlags::READ,
        Access::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
    }
}

impl Sys for Linux {
    fn direct(&self) -> *mut u8 {
        self.direct.at.cast()
    }

    fn merging(&self) -> Merging {
        match self.kind {
            Kind::Hugetlb { .. } => Merging::Separate,
            Kind::ShmemHuge(_) | Kind::ShmemBase => Merging::Merge,
        }
    }

    fn budget(&self) -> &MappingBudget {
        &BUDGET
    }

    fn refresh_budget(&self) {
        refresh_budget();
    }

    fn make_huge(&self, offset: usize, len: usize) {
        debug_assert!(offset.is_multiple_of(HUGE_PAGE) && len.is_multiple_of(HUGE_PAGE));
        if !self.collapses() {
            return;
        }
        for at in (offset..offset + len).step_by(HUGE_PAGE) {
            if self.populate(at, BASE_PAGE).is_err() || !self.collapse(at) {
                self.not_collapsed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn obtain(&self, offset: usize, len: usize, touched: usize) -> Result<(), SystemError> {
        // The touched page comes first: if the kernel makes a huge page for it, it clears that page around the address.
        self.populate(offset + touched / BASE_PAGE * BASE_PAGE, BASE_PAGE)?;
        // After a huge page, this takes less than a microsecond; otherwise it allocates the remaining base pages.
        self.populate(offset, len)
    }

    fn claim(&self, len: usize, align: usize) -> Result<Extent, SystemError> {
        let range = self.arena.take_in_whole_gib(len, align)?;
        self.arena.show_zeros(range.at, len)?;
        Ok(range.into_extent())
    }

    fn release(&self, extent: Extent) -> Result<(), SystemError> {
        self.arena.give_up(extent.base(), extent.len())
    }

    fn show(&self, part: Part<'_>, what: Shows<usize>) -> Result<(), MapFailure> {
        match what {
            Shows::Zeros => self.map_zeros(part),
            Shows::Hidden => self.hide(part),
            Shows::Memory { start, access } => match self.kind {
                Kind::Hugetlb { .. } => self.map_hugetlb(part, start, access),
                Kind::ShmemHuge(_) | Kind::ShmemBase => self.map(part, start, access),
            },
            Shows::CowMapping { start, access } => self.cow_map(part, start, access),
        }
    }

    unsafe fn punch(&self, offset: usize, len: usize) -> Result<(), SystemError> {
        assert!(offset + len <= self.direct.len, "only pool memory is punched");
        if self.is_left.load(Ordering::Acquire) {
            return Err(SystemError::new(REMOVE, Errno::FAULT));
        }
        let removed = self.advise(offset, len, Advice::LinuxRemove, REMOVE);
        if removed == Err(SystemError::new(REMOVE, Errno::INVAL)) {
            // The program has locked the direct map (`mlockall`). The mappings of regions stay locked.
            // SAFETY: our own range; this changes no contents.
            let _ = unsafe { munlock(self.direct.at, self.direct.len) };
            return self.advise(offset, len, Advice::LinuxRemove, REMOVE);
        }
        removed
    }

    unsafe fn retire(&self, offset: usize, len: usize) -> Result<(), SystemError> {
        // SAFETY: by this function's contract, which includes that of `punch`.
        unsafe { self.punch(offset, len) }?;
        let others = self.cow_mappings.as_ref().ok().map(|cow_mappings| &cow_mappings.template);
        for map in [Some(&self.direct), self.template.as_ref(), others].into_iter().flatten() {
            // SAFETY: by this function's contract.
            unsafe { map.close(offset, len) };
        }
        Ok(())
    }

    /// Only the memory of a program that knows nothing of hugefork is allocated page by page.
    fn next_memory(&self, range: Range<usize>) -> Option<Range<usize>> {
        if self.children == Children::HaveNothing || self.is_left.load(Ordering::Acquire) {
            return (!range.is_empty()).then_some(range);
        }
        match self.file() {
            Ok(file) => residence::next_of_file(file, range),
            Err(_) => residence::next(self.direct.at.addr(), range),
        }
    }

    fn protect(&self, part: Part<'_>, access: Access) -> Result<(), SystemError> {
        // SAFETY: the range is the caller's.
        named("mprotect", unsafe { mprotect(pointer(part.at()), part.len(), protection(access)) })
    }

    fn has_cow_mappings(&self) -> bool {
        self.cow_mappings.is_ok()
    }

    fn claim_parking(&self, len: usize, align: usize) -> Result<Extent, SystemError> {
        self.cow_mappings()?.claim_parking(len, align)
    }

    fn hold(&self, part: Part<'_>, parked: Part<'_>) -> Result<(), SystemError> {
        let cow_mappings = self.cow_mappings()?;
        self.check_shown(part)?;
        cow_mappings.hold(part, parked).inspect_err(|_| {
            // Nothing of the part is parked. If the kernel refuses this, too, the next hold replaces the mapping.
            let _ = self.hide(parked);
        })
    }

    fn unpark(&self, part: Part<'_>, parked: Part<'_>) {
        if let Ok(cow_mappings) = &self.cow_mappings
            && let Err(errno) = cow_mappings.parking(part, parked).bring_back()
        {
            hold::abort(part, errno);
        }
    }

    fn resume(&self, part: Part<'_>, parked: Part<'_>) {
        if let Ok(cow_mappings) = &self.cow_mappings
            && let Some(holder) = cow_mappings.holder()
        {
            holder.wake(part);
        }
        // As in `hold`. The parked pages were copied, or are back at their place.
        let _ = self.hide(parked);
    }

    fn claim_staging(&self, len: usize, align: usize) -> Result<Extent, SystemError> {
        // The range is aligned so that a GiB moves as one entry of its page tables.
        Ok(self.arena.take_in_whole_gib(len, align)?.into_extent())
    }

    fn take_pages(&self, part: Part<'_>, staging: Part<'_>) -> Result<(), SystemError> {
        let moved = self.mover_of(part)?.parking(part, staging).take_at_once();
        if moved.is_err() {
            // As in `hold`.
            let _ = self.hide(staging);
        }
        named(PRIVATE_PAGES, moved)
    }

    fn bring_pages(&self, part: Part<'_>, staging: Part<'_>) -> Result<(), SystemError> {
        match self.mover_of(staging)?.parking(part, staging).bring_back_at_once() {
            Ok(()) => Ok(()),
            Err(Failure::Refused(errno)) => Err(SystemError::new(PRIVATE_PAGES, errno)),
            Err(Failure::Lost(errno)) => hold::abort(part, errno),
        }
    }

    fn scan(&self, part: Part<'_>, wanted: ScanFor, runs: &mut [PageRun]) -> Result<Scanned, SystemError> {
        self.cow_mappings()?.scan(part, wanted, runs)
    }

    fn track_writes(&self, part: Part<'_>) -> bool {
        self.cow_mappings.as_ref().is_ok_and(|cow_mappings| cow_mappings.track_writes(part))
    }

    fn drop_private(&self, part: Part<'_>) -> Result<(), SystemError> {
        if let Ok(cow_mappings) = &self.cow_mappings {
            cow_mappings.unmark(part);
        }
        // SAFETY: the range is the caller's, and the caller does not need the pages. The memory below is a file, which
        // stays.
        named("madvise(MADV_DONTNEED)", unsafe { madvise(pointer(part.at()), part.len(), Advice::LinuxDontNeed) })
    }

    fn tidy(&self) {
        if let Ok(CowMappings { parked: Some(parked), .. }) = &self.cow_mappings {
            parked.empty();
        }
    }

    unsafe fn copy_shown(&self, part: Part<'_>, to: *mut u8) {
        // SAFETY: by this function's contract.
        unsafe { ptr::copy_nonoverlapping(pointer(part.at()).cast::<u8>(), to, part.len()) };
    }

    unsafe fn copy_shown_page(&self, part: Part<'_>, to: *mut u8) {
        assert!(part.len() == BASE_PAGE, "one page is copied");
        // SAFETY: by this function's contract; a part of an extent and pool memory do not overlap.
        unsafe { copy_page(pointer(part.at()).cast_const().cast(), to) };
    }

    unsafe fn shown_differs(&self, part: Part<'_>, from: &PageBytes) -> bool {
        assert!(part.len() == BASE_PAGE, "one page is compared");
        // SAFETY: by this function's contract.
        unsafe { differs_racing(pointer(part.at()).cast_const().cast(), from) }
    }

    unsafe fn restore(&self, part: Part<'_>, access: Access, from: *const u8) -> Result<bool, SystemError> {
        let (at, len) = (pointer(part.at()).cast::<u8>(), part.len());
        match access {
            // SAFETY: by this function's contract. A part of an extent and pool memory do not overlap.
            Access::ReadWrite => Ok(unsafe { restore(at, from, len) }),
            // SAFETY: as above; both can be read.
            Access::Read if !unsafe { differs(at, from, len) } => Ok(false),
            // SAFETY: by this function's contract.
            Access::Read => unsafe { self.cow_mappings()?.write_through(part, from) }.map(|()| true),
        }
    }

    fn writes_through(&self) -> bool {
        self.cow_mappings.as_ref().is_ok_and(|cow_mappings| cow_mappings.writes_through)
    }

    unsafe fn overwrite(&self, part: Part<'_>, from: *const u8) {
        // SAFETY: by this function's contract. A part of an extent and pool memory do not overlap.
        unsafe { pointer(part.at()).cast::<u8>().copy_from_nonoverlapping(from, part.len()) };
    }

    fn is_alone(&self) -> bool {
        threads::others() == Some(0)
    }

    fn minor_faults(&self) -> u64 {
        schedule::page_faults()
    }

    fn faults_of_others(&self) -> Option<u64> {
        schedule::faults_of_others()
    }

    fn sleeps(&self) -> u64 {
        schedule::sleeps_of_others()
    }

    fn now(&self) -> u64 {
        now()
    }

    fn cpu_time(&self) -> u64 {
        cpu_time()
    }
}

/// The time of the monotonic clock in nanoseconds, read through the vDSO.
pub(crate) fn now() -> u64 {
    nanoseconds(libc::CLOCK_MONOTONIC)
}

/// The CPU time of this thread in nanoseconds.
pub(crate) fn cpu_time() -> u64 {
    nanoseconds(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Uses libc, because rustix allocates when it first looks for the vDSO, and the fault handler reads the clock.
fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` can be written. Both clocks exist on every Linux, so the call cannot fail.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
