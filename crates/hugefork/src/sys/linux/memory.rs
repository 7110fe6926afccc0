//! One pool's memory: a memfd that is mapped once as a whole (the direct map), and block by block into regions.
//!
//! ```text
//! memfd        | block 0 | block 1 | block 2 | …          size = capacity
//! direct map   | rw                            |           in the arena; not in fork(2) children or core dumps
//! template     | r, never touched              |           the same, for shmem
//! region       | block 7 rw | block 8 r | zeros …          made from these by mremap (shmem), or by mmap (hugetlb)
//! ```
//! A block must be mapped so that `fork(2)` children never get the mapping. With `mmap` and then `MADV_DONTFORK` there
//! is a gap, in which another thread's `fork` hands a child a writable mapping of our memory. So we use `mremap` of
//! the direct map with an old size of zero: it duplicates a shared mapping with all its flags, in one call, and takes
//! as long as the `mmap` alone. What is to be read only is a duplicate of a template that is: it must not be writable
//! for a moment, since a writer that comes by would change what snapshots hold. hugetlb refuses duplicates (`EINVAL`);
//! there the block is mapped read-only, marked, and then made writable, which takes about 2 us longer. Zeros are
//! private memory. They are made by an `mremap` of the arena's own zeros that leaves those where they are
//! (`MREMAP_DONTUNMAP`), also with all flags.

use core::ptr::{self, NonNull};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, fallocate, fstat, ftruncate, memfd_create, seek};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, MsyncFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect,
    mremap_fixed, msync, munmap,
};
use rustix::process::{Resource, getrlimit};
use thiserror::Error;

use super::arena::{self, Arena};
use super::hold::{self, Holder};
use super::overlay::Overlays;
use super::{move_high, named, owner, pagemap, schedule, settings, share, threads};
use crate::sys::budget::MappingBudget;
use crate::sys::racing::{PageBytes, differs as differs_racing};
use crate::sys::restore::{differs, restore};
use crate::sys::{Access, Aftermath, Extent, MapFailure, Merging, PageRun, Part, Scanned, Shows, Sys, SystemError};
use crate::units::{BASE_PAGE, HUGE_PAGE};

/// All pools of the process share one limit.
static BUDGET: MappingBudget = MappingBudget::new(settings::DEFAULT_MAP_COUNT);

/// What a memfd is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reserved huge pages of this many bytes each.
    Hugetlb { page: usize },
    /// shmem, in huge pages where the kernel can. With `collapse`, it has to be asked for each block.
    ShmemHuge { collapse: bool },
    /// shmem in base pages.
    ShmemBase,
}

impl Kind {
    /// The size of its largest page.
    fn align(self) -> usize {
        match self {
            Kind::Hugetlb { page } => page,
            Kind::ShmemHuge { .. } => HUGE_PAGE,
            Kind::ShmemBase => BASE_PAGE,
        }
    }
}

/// Why a write cannot copy single pages.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum NoPageGrain {
    #[error("the kernel copies whole pages of hugetlb: take Backing::ShmemHuge")]
    Hugetlb,
    #[error("{0}: Linux 6.7 and a readable /proc/self/pagemap are needed")]
    Refused(SystemError),
}

/// Whether a core dump contains the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dump {
    LeftOut,
    Included,
}

/// One pool's memory on Linux.
pub(crate) struct Linux {
    fd: OwnedFd,
    direct: *mut c_void,
    /// What read-only mappings are duplicates of; none for hugetlb.
    template: Option<*mut c_void>,
    capacity: usize,
    kind: Kind,
    dump: Dump,
    arena: &'static Arena,
    /// What page grain takes, or why there is none.
    overlays: Result<Overlays, NoPageGrain>,
    /// How many stretches of 2 MiB the kernel refused to make one page of.
    not_collapsed: AtomicU64,
    children: Children,
}

/// What a `fork(2)` child has of a pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Children {
    /// Nothing.
    HaveNothing,
    /// What is shown through private mappings when it is forked. The pool's memory is this file.
    HaveOverlays { device: u64, inode: u64 },
}

// SAFETY: the pointers are to mappings that belong to this value and may be used from any thread.
unsafe impl Send for Linux {}
// SAFETY: as above; each use of the pointers argues its own case.
unsafe impl Sync for Linux {}

impl Linux {
    /// Memory for a pool. hugetlb pages are reserved here: if this succeeds, they are there. shmem gets its memory as
    /// blocks are used, or by [`Sys::obtain`].
    pub(crate) fn new(kind: Kind, capacity: usize, dump: Dump) -> Result<Linux, SystemError> {
        let arena = Arena::open()?;
        if getrlimit(Resource::Fsize).current.is_some_and(|most| most < capacity as u64) {
            // The kernel would not only refuse: it sends SIGXFSZ, which kills.
            return named("ftruncate of the pool's memfd", Err(Errno::FBIG));
        }
        refresh_budget();
        let flags = MemfdFlags::CLOEXEC
            | MemfdFlags::ALLOW_SEALING
            | match kind {
                Kind::Hugetlb { page } => {
                    MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(page.trailing_zeros() << libc::MFD_HUGE_SHIFT)
                }
                Kind::ShmemHuge { .. } | Kind::ShmemBase => MemfdFlags::empty(),
            };
        let fd = named("memfd_create", memfd_create("hugefork", flags))?;
        named("ftruncate of the pool's memfd", ftruncate(&fd, capacity as u64))?;
        // If it is refused, an export says so.
        let _ = share::guard(&fd);
        let direct = map_direct(arena, &fd, capacity, kind)?;
        let overlays = match kind {
            Kind::Hugetlb { .. } => Err(NoPageGrain::Hugetlb),
            Kind::ShmemHuge { .. } | Kind::ShmemBase => {
                Overlays::open(arena, &fd, capacity, kind.align(), dump).map_err(NoPageGrain::Refused)
            }
        };
        let not_collapsed = AtomicU64::new(0);
        let children = Children::HaveNothing;
        let mut memory =
            Linux { fd, direct, template: None, capacity, kind, dump, arena, overlays, not_collapsed, children };
        memory.open_map(direct, Access::ReadWrite)?;
        if !matches!(kind, Kind::Hugetlb { .. }) {
            let template = map_direct(arena, &memory.fd, capacity, kind)?;
            memory.template = Some(template);
            memory.open_map(template, Access::Read)?;
        }
        Ok(memory)
    }

    /// The same memory; what is shown through private mappings is inherited by `fork(2)` children, and writable at
    /// once. Its descriptors are in a program that does not know of them, and may close them.
    ///
    /// # Errors
    /// The kernel cannot say which file it is.
    pub(crate) fn with_heirs(mut self) -> Result<Linux, SystemError> {
        move_high(&mut self.fd);
        if let Ok(overlays) = &mut self.overlays {
            overlays.move_high();
        }
        let file = named("fstat", fstat(&self.fd))?;
        self.children = Children::HaveOverlays { device: file.st_dev, inode: file.st_ino };
        Ok(self)
    }

    /// The descriptors that the program must not close.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = i32> + '_ {
        let others = self.overlays.iter().flat_map(Overlays::descriptors);
        [self.fd.as_raw_fd()].into_iter().chain(others)
    }

    /// An error if the descriptor is not that of the pool any more: whoever did not know of it has closed it.
    fn check_descriptor(&self) -> Result<(), SystemError> {
        let Children::HaveOverlays { device, inode } = self.children else { return Ok(()) };
        let is_ours = fstat(&self.fd).is_ok_and(|file| (file.st_dev, file.st_ino) == (device, inode));
        if is_ours { Ok(()) } else { Err(SystemError::new("fstat", Errno::BADF)) }
    }

    /// Why a write cannot copy single pages, if it cannot.
    pub(crate) fn no_page_grain(&self) -> Option<NoPageGrain> {
        self.overlays.as_ref().err().copied()
    }

    /// A descriptor of all of the memory, for reading only.
    pub(crate) fn open_for_reading(&self) -> Result<OwnedFd, SystemError> {
        share::guard(&self.fd)?;
        share::reopen_for_reading(&self.fd)
    }

    /// What divides the offsets at which it can be mapped.
    pub(crate) fn page_size(&self) -> usize {
        match self.kind {
            Kind::Hugetlb { page } => page,
            Kind::ShmemHuge { .. } | Kind::ShmemBase => BASE_PAGE,
        }
    }

    /// The address of the direct map, to look it up in `/proc/self/smaps`.
    pub(crate) fn direct_address(&self) -> usize {
        self.direct.addr()
    }

    /// Marks a mapping of the whole pool, which nobody uses yet, and makes it accessible.
    fn open_map(&self, map: *mut c_void, access: Access) -> Result<(), SystemError> {
        let (fork, dump, huge) = (Advice::LinuxDontFork, Advice::LinuxDontDump, Advice::LinuxHugepage);
        let marks =
            [(fork, "madvise(MADV_DONTFORK)"), (dump, "madvise(MADV_DONTDUMP)"), (huge, "madvise(MADV_HUGEPAGE)")];
        let count = if matches!(self.kind, Kind::ShmemHuge { .. }) { 3 } else { 2 };
        for (advice, call) in marks.into_iter().take(count) {
            // SAFETY: the mapping is ours, and none of the advice drops contents.
            named(call, unsafe { madvise(map, self.capacity, advice) })?;
        }
        // SAFETY: nobody else uses it yet.
        named("mprotect", unsafe { mprotect(map, self.capacity, protection(access)) })
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice, call: &'static str) -> Result<(), SystemError> {
        debug_assert!(offset + len <= self.capacity);
        // SAFETY: the range lies in the direct map, and none of the advice used drops contents.
        named(call, unsafe { madvise(self.direct.byte_add(offset), len, advice) })
    }

    fn populate(&self, offset: usize, len: usize) -> Result<(), SystemError> {
        self.advise(offset, len, Advice::LinuxPopulateWrite, "madvise(MADV_POPULATE_WRITE)")
    }

    /// Makes one page of the 2 MiB at `offset`, of which one page has memory: without any, the kernel refuses. For a
    /// range that covers no whole 2 MiB the kernel returns 0 and does nothing. Contents stay. False if the kernel
    /// refused.
    fn collapse(&self, offset: usize) -> bool {
        /// A try fails if somebody holds or moves a page just then.
        const TRIES: usize = 3;
        for _ in 0..TRIES {
            // rustix does not know this advice yet.
            // SAFETY: the range lies in the direct map, and to collapse it keeps its contents.
            let failed = unsafe { libc::madvise(self.direct.byte_add(offset), HUGE_PAGE, libc::MADV_COLLAPSE) } != 0;
            if !failed {
                return true;
            }
            if super::last_error() != Errno::AGAIN {
                break;
            }
        }
        false
    }

    /// How many stretches of 2 MiB the kernel has refused to make one page of. They consist of base pages.
    pub(crate) fn not_collapsed(&self) -> u64 {
        self.not_collapsed.load(Ordering::Relaxed)
    }

    /// How many bytes of memory the pool has now, and how many of them are in huge pages, as seen in the direct map,
    /// through which all memory is obtained. `None` if the kernel cannot tell.
    pub(crate) fn memory(&self) -> (Option<usize>, Option<usize>) {
        let all = fstat(&self.fd).ok().map(|status| status.st_blocks as usize * 512);
        // A fork(2) child has no direct map.
        let is_mapped = !owner::is_forked_child();
        (all, is_mapped.then(|| pagemap::huge_bytes(self.direct.addr(), self.capacity)).flatten())
    }
}

impl Linux {
    /// Shows pool memory with one call that duplicates a mapping of the pool with this access. It never has another.
    fn map(&self, part: Part<'_>, offset: usize, access: Access) -> Result<(), MapFailure> {
        assert!(offset + part.len() <= self.capacity, "only pool memory is shown");
        if let Kind::Hugetlb { .. } = self.kind {
            return self.map_hugetlb(part, offset, access);
        }
        let of = match (access, self.template) {
            (Access::Read, Some(template)) => template,
            (Access::Read, None) | (Access::ReadWrite, _) => self.direct,
        };
        let duplicated = self.duplicate(part, of, offset);
        if duplicated.is_ok() && self.dump == Dump::Included {
            // Its failure must not count: at worst the block is missing from a core dump.
            // SAFETY: the range is the caller's, and shows this; the advice changes no contents.
            let _ = unsafe { madvise(pointer(part.at()), part.len(), Advice::LinuxDoDump) };
        }
        refused(part, duplicated)
    }

    /// Shows pool memory through a private mapping.
    fn overlay(&self, part: Part<'_>, offset: usize, access: Access) -> Result<(), MapFailure> {
        let shown = match &self.overlays {
            Ok(overlays) if self.children != Children::HaveNothing => {
                let checked = self.check_descriptor();
                return refused(part, checked.and_then(|()| overlays.show_to_heirs(part, &self.fd, offset)));
            }
            Ok(overlays) => overlays.show(part, offset),
            Err(_) => Err(SystemError::new("a private mapping", Errno::NOTSUP)),
        };
        match refused(part, shown) {
            Ok(()) if access == Access::ReadWrite => not_writable(self.protect(part, access)),
            shown => shown,
        }
    }

    /// What holds faults, if the process may.
    fn holder(&self) -> Option<&Holder> {
        match &self.overlays {
            Ok(overlays) => overlays.holder(),
            Err(_) => None,
        }
    }

    /// Duplicates a part of `of`, a mapping of the pool.
    fn duplicate(&self, part: Part<'_>, of: *mut c_void, offset: usize) -> Result<(), SystemError> {
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: `offset` lies in the pool, and `of` stays as it is with an old size of zero; the new range is the
        // caller's.
        let mapped = unsafe { mremap_fixed(of.byte_add(offset), 0, part.len(), flags, pointer(part.at())) };
        named("mremap of a block", mapped).map(drop)
    }

    /// As [`Linux::map`], where `mremap` cannot duplicate. This takes three calls.
    fn map_hugetlb(&self, part: Part<'_>, offset: usize, access: Access) -> Result<(), MapFailure> {
        let (at, len) = (pointer(part.at()), part.len());
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range is the caller's.
        let mapped = unsafe { mmap(at, len, ProtFlags::READ, flags, self.fd.as_fd(), offset as u64) };
        refused(part, named("mmap of a block", mapped))?;
        // SAFETY: as above; this advice changes no contents.
        torn(named("madvise(MADV_DONTFORK)", unsafe { madvise(at, len, Advice::LinuxDontFork) }))?;
        // A core dump contains shared hugetlb memory only if bit 6 of coredump_filter is set: core(5).
        if access == Access::ReadWrite { not_writable(self.protect(part, access)) } else { Ok(()) }
    }

    /// Makes a huge page of the 2 MiB at `offset`, if all of it has memory, and the kernel does not do so by itself.
    /// False if there was nothing to do, or the kernel refused.
    pub(crate) fn collapse_full(&self, offset: usize) -> bool {
        if self.kind != (Kind::ShmemHuge { collapse: true }) || self.check_descriptor().is_err() {
            return false;
        }
        let hole = seek(&self.fd, SeekFrom::Hole(offset as u64));
        hole.is_ok_and(|hole| hole >= (offset + HUGE_PAGE) as u64) && self.collapse(offset)
    }

    /// Whether there is no memory for a range of the pool.
    pub(crate) fn is_hole(&self, offset: usize, len: usize) -> bool {
        if self.check_descriptor().is_err() {
            return false;
        }
        match seek(&self.fd, SeekFrom::Data(offset as u64)) {
            Ok(data) => data >= (offset + len) as u64,
            Err(errno) => errno == Errno::NXIO,
        }
    }

    /// Makes addresses of the process inaccessible that show plain memory nobody uses.
    pub(crate) fn hide_plain(&self, range: core::ops::Range<usize>) -> Result<(), SystemError> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the caller's.
        let hidden = unsafe { mmap_anonymous(pointer(range.start), range.len(), ProtFlags::empty(), flags) };
        named("mmap to hide a part", hidden).map(drop)
    }

    /// New plain memory of the process, all zero.
    pub(crate) fn plain(&self, len: usize) -> Result<Plain, SystemError> {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping where the kernel likes.
        let at = named("mmap", unsafe { mmap_anonymous(ptr::null_mut(), len, rights, flags) })?;
        Ok(Plain { at, len })
    }

    /// Shows zeros with calls that duplicate the arena's own.
    fn map_zeros(&self, part: Part<'_>) -> Result<(), MapFailure> {
        let (mut at, end) = (part.at(), part.at() + part.len());
        while at < end {
            let len = arena::ZEROS.min(end - at);
            if let Err(mut failure) = refused(part, self.map_zeros_once(at, len)) {
                if at > part.at() {
                    failure.aftermath = Aftermath::Unknown;
                }
                return Err(failure);
            }
            at += len;
        }
        Ok(())
    }

    fn map_zeros_once(&self, at: usize, len: usize) -> Result<(), SystemError> {
        let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
        // SAFETY: the zeros stay as they are, since they have no pages; the new range is the caller's.
        let moved = unsafe { mremap_fixed(pointer(self.arena.zeros()), len, len, flags, pointer(at)) };
        named("mremap of zeros", moved).map(drop)
    }

    fn hide(&self, part: Part<'_>) -> Result<(), MapFailure> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range is the caller's.
        let mapped = unsafe { mmap_anonymous(pointer(part.at()), part.len(), ProtFlags::empty(), flags) };
        refused(part, named("mmap to hide a block", mapped))
    }
}

/// Plain private memory of the process, which `fork(2)` children inherit. It goes with this, unless it is shown.
pub(crate) struct Plain {
    at: *mut c_void,
    len: usize,
}

impl Plain {
    /// Copies what `from` shows to the bytes from `offset` on.
    pub(crate) fn fill(&self, offset: usize, from: Part<'_>) {
        assert!(offset + from.len() <= self.len, "what is copied lies inside");
        // SAFETY: this memory is ours alone. `from` shows pool memory, which can be read; writers are kept off it.
        unsafe {
            ptr::copy_nonoverlapping(pointer(from.at()).cast::<u8>(), self.at.byte_add(offset).cast(), from.len())
        };
    }

    /// Shows it at `part`, which is as long. After a failure the part shows what it showed.
    pub(crate) fn show(mut self, part: Part<'_>) -> Result<(), SystemError> {
        assert_eq!(self.len, part.len(), "it is shown as a whole");
        // SAFETY: both ranges are ours; what the part shows is to go.
        let moved = unsafe { mremap_fixed(self.at, self.len, self.len, MremapFlags::MAYMOVE, pointer(part.at())) };
        if moved.is_ok() {
            self.len = 0;
        }
        named("mremap of plain memory", moved).map(drop)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: it is ours alone. If the kernel refuses, it stays.
            let _ = unsafe { munmap(self.at, self.len) };
        }
    }
}

/// Maps the whole memfd in the arena, at a multiple of its largest page size.
fn map_direct(arena: &Arena, fd: &OwnedFd, capacity: usize, kind: Kind) -> Result<*mut c_void, SystemError> {
    let at = arena.take(capacity, kind.align())?;
    // It is inaccessible until it is marked. Otherwise a fork(2) in between would hand a child the whole pool.
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the range was just taken, and nobody else uses it.
    let mapped = unsafe { mmap(pointer(at), capacity, ProtFlags::empty(), flags, fd, 0) };
    if mapped.is_err() {
        let _ = give_up(arena, at, capacity);
    }
    named("mmap of the pool", mapped)
}

/// Makes a range of the arena inaccessible and gives it back.
pub(super) fn give_up(arena: &Arena, at: usize, len: usize) -> Result<(), SystemError> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller took the range from the arena, and gives it up.
    named("mmap to unmap a range", unsafe { mmap_anonymous(pointer(at), len, ProtFlags::empty(), flags) })?;
    arena.give_back(at, len);
    Ok(())
}

/// Looks up how many mappings regions may have: the limit, less what the rest of the program has, less a margin.
pub(crate) fn refresh_budget() {
    const MARGIN: usize = 1024;
    let limit = settings::map_count_limit();
    let others = settings::map_count().unwrap_or(0).saturating_sub(BUDGET.used());
    BUDGET.set_limit(limit.saturating_sub(others + MARGIN));
}

/// New memory for the engine's own data. It is all zeros.
pub(crate) fn map_anonymous(len: usize) -> Option<NonNull<u8>> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new anonymous mapping touches nothing that exists.
    let mapped = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, flags) };
    mapped.ok().and_then(|at| NonNull::new(at.cast()))
}

/// Gives memory of [`map_anonymous`] back; false if the kernel refuses.
///
/// # Safety
/// The range is part of what [`map_anonymous`] made, and nobody uses it any more.
pub(crate) unsafe fn unmap_anonymous(at: *mut u8, len: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { munmap(at.cast(), len) }.is_ok()
}

pub(super) fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

fn protection(access: Access) -> MprotectFlags {
    match access {
        Access::Read => MprotectFlags::READ,
        Access::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
    }
}

impl Sys for Linux {
    fn direct(&self) -> *mut u8 {
        self.direct.cast()
    }

    fn merging(&self) -> Merging {
        match self.kind {
            Kind::Hugetlb { .. } => Merging::Separate,
            Kind::ShmemHuge { .. } | Kind::ShmemBase => Merging::Merge,
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
        if self.kind != (Kind::ShmemHuge { collapse: true }) {
            return;
        }
        for at in (offset..offset + len).step_by(HUGE_PAGE) {
            if self.populate(at, BASE_PAGE).is_err() || !self.collapse(at) {
                self.not_collapsed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn obtain(&self, offset: usize, len: usize, touched: usize) -> Result<(), SystemError> {
        // The touched page comes first: if the kernel makes a huge page of it, it clears around that address.
        self.populate(offset + touched / BASE_PAGE * BASE_PAGE, BASE_PAGE)?;
        // Where a huge page has come, this takes less than a microsecond; the rest gets base pages.
        self.populate(offset, len)
    }

    fn claim(&self, len: usize, align: usize) -> Result<Extent, SystemError> {
        let at = self.arena.take_in_whole_gib(len, align)?;
        // SAFETY: the arena sets each range aside for one caller until it is given back.
        let extent = unsafe { Extent::new(at, len) };
        match self.arena.show_zeros(at, len) {
            Ok(()) => Ok(extent),
            Err(error) => {
                // This also removes what the try has left. If it fails, the addresses stay taken.
                let _ = self.release(extent);
                Err(error)
            }
        }
    }

    fn release(&self, extent: Extent) -> Result<(), SystemError> {
        give_up(self.arena, extent.base(), extent.len())
    }

    fn show(&self, part: Part<'_>, what: Shows<usize>) -> Result<(), MapFailure> {
        match what {
            Shows::Zeros => self.map_zeros(part),
            Shows::Hidden => self.hide(part),
            Shows::Memory { start, access } => self.map(part, start, access),
            Shows::Overlay { start, access } => self.overlay(part, start, access),
        }
    }

    unsafe fn punch(&self, offset: usize, len: usize) -> Result<(), SystemError> {
        assert!(offset + len <= self.capacity, "only pool memory is punched");
        self.check_descriptor()?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        named("fallocate(FALLOC_FL_PUNCH_HOLE)", fallocate(&self.fd, flags, offset as u64, len as u64))
    }

    fn protect(&self, part: Part<'_>, access: Access) -> Result<(), SystemError> {
        // SAFETY: the range is the caller's.
        named("mprotect", unsafe { mprotect(pointer(part.at()), part.len(), protection(access)) })
    }

    fn has_overlays(&self) -> bool {
        self.overlays.is_ok()
    }

    fn set_aside(&self, len: usize, align: usize) -> Result<Extent, SystemError> {
        match &self.overlays {
            Ok(overlays) => overlays.set_aside(len, align),
            Err(_) => named("userfaultfd", Err(Errno::NOTSUP)),
        }
    }

    fn hold(&self, part: Part<'_>, aside: Part<'_>) -> Result<(), SystemError> {
        let Some(holder) = self.holder() else { return Err(SystemError::new("userfaultfd", Errno::NOTSUP)) };
        match holder.hold(part, aside) {
            Ok(()) => Ok(()),
            Err(error) => {
                // Nothing is left there. If the kernel refuses that too, the next hold replaces it.
                let _ = self.hide(aside);
                Err(error)
            }
        }
    }

    fn put_back(&self, part: Part<'_>, aside: Part<'_>) {
        hold::put_back(part, aside);
    }

    fn let_go(&self, part: Part<'_>, aside: Part<'_>) {
        if let Some(holder) = self.holder() {
            holder.wake(part);
        }
        // As in `hold`. What was there was copied, or is where it belongs.
        let _ = self.hide(aside);
    }

    fn private_pages(&self, part: Part<'_>, runs: &mut [PageRun]) -> Result<Scanned, SystemError> {
        match &self.overlays {
            Ok(overlays) => overlays.private_pages(part, runs),
            Err(_) => Ok(Scanned { runs: 0, looked_at: part.len() }),
        }
    }

    fn drop_private(&self, part: Part<'_>) -> Result<(), SystemError> {
        // SAFETY: the range is the caller's, who has no use for the pages. What is below is a file, which stays.
        named("madvise(MADV_DONTNEED)", unsafe { madvise(pointer(part.at()), part.len(), Advice::LinuxDontNeed) })
    }

    fn tidy(&self) {
        if let Ok(overlays) = &self.overlays {
            overlays.tidy();
        }
    }

    unsafe fn copy_shown(&self, part: Part<'_>, to: *mut u8) {
        // SAFETY: by contract.
        unsafe { ptr::copy_nonoverlapping(pointer(part.at()).cast::<u8>(), to, part.len()) };
    }

    unsafe fn shown_differs(&self, part: Part<'_>, from: &PageBytes) -> bool {
        assert!(part.len() == BASE_PAGE, "one page is compared");
        // SAFETY: by contract.
        unsafe { differs_racing(pointer(part.at()).cast_const().cast(), from) }
    }

    unsafe fn restore(&self, part: Part<'_>, access: Access, from: *const u8) -> Result<bool, SystemError> {
        let (at, len) = (pointer(part.at()).cast::<u8>(), part.len());
        match (access, &self.overlays) {
            // SAFETY: by contract. A part of an extent and pool memory do not overlap.
            (Access::ReadWrite, _) => Ok(unsafe { restore(at, from, len) }),
            // SAFETY: as above; both can be read.
            (Access::Read, Ok(_)) if !unsafe { differs(at, from, len) } => Ok(false),
            // SAFETY: by contract.
            (Access::Read, Ok(overlays)) => unsafe { overlays.write_through(part, from) }.map(|()| true),
            (Access::Read, Err(_)) => Err(SystemError::new("a private mapping", Errno::NOTSUP)),
        }
    }

    fn is_alone(&self) -> bool {
        threads::is_only_one()
    }

    fn minor_faults(&self) -> u64 {
        schedule::page_faults()
    }

    fn now(&self) -> u64 {
        now()
    }

    fn cpu_time(&self) -> u64 {
        cpu_time()
    }
}

/// The failure of the call that replaces a mapping. The kernel has mostly refused before it touched anything, as it
/// does when the process has too many mappings. If it had begun, there would be a hole.
fn refused<T>(part: Part<'_>, result: Result<T, SystemError>) -> Result<(), MapFailure> {
    let Err(error) = result else { return Ok(()) };
    // SAFETY: with this flag the call only looks whether all of a range in the arena is mapped.
    let is_whole = unsafe { msync(pointer(part.at()), part.len(), MsyncFlags::ASYNC) }.is_ok();
    Err(MapFailure { error, aftermath: if is_whole { Aftermath::Unchanged } else { Aftermath::Unknown } })
}

/// The failure of a call after the mapping was replaced.
fn torn(result: Result<(), SystemError>) -> Result<(), MapFailure> {
    result.map_err(|error| MapFailure { error, aftermath: Aftermath::Unknown })
}

/// The failure to give the right to write to what is shown by now.
fn not_writable(result: Result<(), SystemError>) -> Result<(), MapFailure> {
    result.map_err(|error| MapFailure { error, aftermath: Aftermath::NotWritable })
}

/// Nanoseconds on the monotonic clock, read through the vDSO.
pub(crate) fn now() -> u64 {
    nanoseconds(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds that this thread has run on a processor.
pub(crate) fn cpu_time() -> u64 {
    nanoseconds(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// libc's, since rustix's first look allocates to find the vDSO, and the fault handler reads the clock.
fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is there to be written. Both clocks exist on every Linux, so the call cannot fail.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Drop for Linux {
    fn drop(&mut self) {
        // A fork(2) child never had the direct map, and something else may be in its place.
        if !owner::is_forked_child() {
            // Regions and snapshots keep the pool alive, so none is left. If the kernel refuses, the addresses stay
            // taken.
            for map in self.template.into_iter().chain([self.direct]) {
                let _ = give_up(self.arena, map.expose_provenance(), self.capacity);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;

    use rustix::fs::MemfdFlags;
    use rustix::io::pwrite;

    use super::*;
    use crate::sys::linux::descriptor;

    /// A system call that writes tells whether it may, without a fault.
    #[test]
    fn what_is_shown_read_only_is_never_writable() {
        const TIMES: usize = 20_000;
        for kind in [Kind::ShmemBase, Kind::ShmemHuge { collapse: false }] {
            let memory = Linux::new(kind, HUGE_PAGE, Dump::LeftOut).unwrap();
            memory.obtain(0, HUGE_PAGE, 0).unwrap();
            let extent = memory.claim(HUGE_PAGE, HUGE_PAGE).unwrap();
            let (part, over) = (extent.part(0, HUGE_PAGE), AtomicBool::new(false));
            let source = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
            assert_eq!(pwrite(&source, &[7], 0), Ok(1));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let to = pointer(part.at()).cast();
                        // SAFETY: the range is ours, and nobody reads it.
                        let written = unsafe { descriptor::read(source.as_fd(), to, 1, Some(0)) };
                        assert!(written.is_err(), "it was writable");
                    }
                });
                for _ in 0..TIMES {
                    memory.show(part, Shows::Memory { start: 0, access: Access::Read }).unwrap();
                    memory.show(part, Shows::Zeros).unwrap();
                }
                over.store(true, Ordering::Relaxed);
            });
            // SAFETY: within the direct map, and nobody writes there.
            assert_eq!(unsafe { memory.direct().read_volatile() }, 0);
            memory.release(extent).unwrap();
        }
    }

    /// They were moved out of the way when the kernel refused, and are nowhere else.
    #[test]
    fn private_pages_are_there_still_if_nothing_else_can_be_shown() {
        const LEN: usize = 16 << 20;
        let memory = Linux::new(Kind::ShmemBase, LEN, Dump::LeftOut).unwrap();
        let Ok(overlays) = &memory.overlays else {
            return println!("skipped: this kernel copies no single pages of a pool (Linux 6.7)");
        };
        memory.obtain(0, LEN, 0).unwrap();
        let extent = memory.claim(LEN, HUGE_PAGE).unwrap();
        let (part, shows) = (extent.part(0, LEN), Shows::Overlay { start: 0, access: Access::ReadWrite });
        memory.show(part, shows).unwrap();
        memory.tidy();
        let written = pointer(part.at()).cast::<u8>().wrapping_add(3 * BASE_PAGE);
        // SAFETY: the range is ours, and shows a private mapping.
        unsafe { written.write_volatile(7) };
        // From now on there is nothing that another mapping could be made of.
        // SAFETY: nobody else knows the template.
        unsafe { munmap(overlays.template(), LEN) }.unwrap();
        let failure = memory.show(part, shows).unwrap_err();
        assert_eq!(failure.aftermath, Aftermath::Unchanged);
        // SAFETY: as above.
        assert_eq!(unsafe { written.read_volatile() }, 7);
        memory.release(extent).unwrap();
    }
}
