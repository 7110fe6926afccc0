//! CoW mappings: private mappings of pool memory, of which the kernel copies each base page that is written.
//!
//! ```text
//! memfd       | block 0 | block 1 | block 2 | …
//! template    | private, read-only, never touched |        in the arena, not in fork(2) children; see pool_map.rs
//! region      | block 7, private  …                        made of the template by mremap(MREMAP_DONTUNMAP)
//! ```
//! A `fork(2)` child must not get such a mapping, not even for a moment, between `mmap` and the advice that keeps it
//! out of children. So one call makes each mapping of a template that has the advice already. The call moves the page
//! tables of the template, which has none, and leaves the template in place (Linux 5.13). The right to write is given
//! afterwards; a thread that writes in between faults and waits.
//!
//! The template is read-only so that `mlockall` does not copy the pool for it.

use std::ffi::CStr;
use std::ptr;
use std::sync::OnceLock;

use hugefork_linux::Descriptor;
use hugefork_linux::pagemap_scan::{Pagemap, Scan};
use hugefork_linux::parking::{Parking, move_page_tables};
use hugefork_linux::userfaultfd::{MODE_WP, Userfaultfd};
use rustix::fs::OFlags;
use rustix::io::{Errno, pwrite};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munlock, munmap,
};

use super::arena::Arena;
use super::hold::Holder;
use super::mappings::Mappings;
use super::memory::{CoreDump, NoPageGrain, pointer};
use super::parked::ParkedTables;
use super::pool_map::PoolMap;
use super::{kept, named, owner, track_writes};
use crate::sys::{Extent, MOST_RUNS, PageRun, Part, ScanFor, Scanned, SystemError};
use crate::units::BASE_PAGE;

/// The memory of the process.
const MEM: &CStr = c"/proc/thread-self/mem";

/// The files and addresses that one pool needs for CoW mappings.
pub(super) struct CowMappings {
    /// The template of all private mappings.
    pub(super) template: PoolMap,
    pagemap: Pagemap,
    /// Addresses for page tables that regions have shown before, if there are any.
    pub(super) parked: Option<ParkedTables>,
    /// `/proc/thread-self/mem`, if it exists.
    mem: Option<Descriptor>,
    /// Whether the kernel writes there for the engine: see [`CowMappings::write_through`].
    pub(super) writes_through: bool,
    pub(super) mappings: Mappings,
    arena: &'static Arena,
    /// Opened for the first region that wants it; `None` if the process may not.
    holder: OnceLock<Option<Holder>>,
    /// The tracker of writes, opened likewise; `None` if the kernel does not track writes.
    tracker: OnceLock<Option<Userfaultfd>>,
}

impl CowMappings {
    /// Makes the template, and tries everything that is needed, because the kernel may lack it, or `/proc` may not be
    /// mounted.
    pub(super) fn open(
        arena: &'static Arena,
        file: &Descriptor,
        capacity: usize,
        align: usize,
        dump: CoreDump,
    ) -> Result<CowMappings, NoPageGrain> {
        let pagemap = named("open of /proc/self/pagemap", Pagemap::open())?;
        let range = arena.take_in_whole_gib(capacity, align)?;
        let at = range.at;
        let mem = Descriptor::keep_of_proc(MEM, OFlags::WRONLY).ok();
        let cow_mappings = CowMappings {
            writes_through: mem.as_ref().is_some_and(writes_through),
            template: PoolMap::new(range, MprotectFlags::READ),
            pagemap,
            parked: ParkedTables::open(arena, capacity),
            mem,
            mappings: Mappings::open(at),
            arena,
            holder: OnceLock::new(),
            tracker: OnceLock::new(),
        };
        let file = kept(file)?;
        let map = || {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: the range was just taken, and no other code uses it.
            let mapped = unsafe { mmap(pointer(at), capacity, ProtFlags::empty(), flags, file, 0) };
            named("mmap of the pool, private", mapped)?;
            // After mlockall(MCL_FUTURE), the template and all mappings made of it would be locked.
            // SAFETY: our own range; this changes no contents.
            let _ = unsafe { munlock(pointer(at), capacity) };
            Ok::<_, SystemError>(())
        };
        // SAFETY: our own range; the advice changes no contents.
        let advise = |advice, call| named(call, unsafe { madvise(pointer(at), capacity, advice) });
        let leave_out_of_forks = || advise(Advice::LinuxDontFork, "madvise(MADV_DONTFORK)");
        map()?;
        leave_out_of_forks()?;
        // Checks whether the kernel allows a writable private mapping of this size. The next `map` replaces the
        // mapping, and ends the charge for it.
        // SAFETY: our own range, where no code writes.
        let may_write = unsafe { mprotect(pointer(at), capacity, MprotectFlags::READ | MprotectFlags::WRITE) };
        named("mprotect of the pool, private", may_write).map_err(NoPageGrain::TooMuchData)?;
        map()?;
        leave_out_of_forks()?;
        let dumped = if dump == CoreDump::Included { Advice::LinuxDoDump } else { Advice::LinuxDontDump };
        advise(dumped, "madvise(MADV_DONTDUMP)")?;
        cow_mappings.try_out(align)?;
        Ok(cow_mappings)
    }

    /// Shows some of the pool, and scans it for private pages.
    fn try_out(&self, align: usize) -> Result<(), SystemError> {
        let len = self.template.len.min(align);
        let range = self.arena.take(len, align)?;
        let tried = self.move_to(range.at, len, 0);
        let looked = self.pagemap.scan(&(range.at..range.at + len), Scan::PRIVATE, &mut [PageRun::default(); 1]);
        tried.and(named("ioctl(PAGEMAP_SCAN)", looked)).map(drop)
    }

    /// Shows the pool's memory from `offset` on, readable. [`CowMappings::make_ready`] was called for this part of the
    /// template.
    pub(super) fn show(&self, part: Part<'_>, offset: usize) -> Result<(), SystemError> {
        assert!(offset + part.len() <= self.template.len, "only pool memory is shown");
        let parked = self.parked.as_ref();
        let moved = parked.and_then(|parked| parked.take(&self.mappings, part).map(|room| (parked, room)));
        let shown = self.move_to(part.at(), part.len(), offset);
        match (moved, &shown) {
            (Some((parked, room)), Ok(())) => parked.keep(room),
            (Some((parked, room)), Err(_)) => parked.give_back(room, part),
            (None, _) => {}
        }
        shown?;
        // After mlockall(MCL_CURRENT) the template is locked, and the kernel would copy every page of a mapping made of
        // it as soon as that becomes writable.
        // SAFETY: the range is the caller's; this changes no contents.
        let _ = unsafe { munlock(pointer(part.at()), part.len()) };
        Ok(())
    }

    /// As [`CowMappings::show`], but the mapping is writable at once and `fork(2)` children inherit it. So this part of
    /// the template has these properties meanwhile. Once the mapping is shown, no further step may fail, because the
    /// kernel may have copied pages for a writer.
    pub(super) fn show_to_children(&self, part: Part<'_>, offset: usize) -> Result<(), SystemError> {
        assert!(offset + part.len() <= self.template.len, "only pool memory is shown");
        let of = self.template.at.wrapping_byte_add(offset);
        // SAFETY: a part of the template, where no code reads or writes.
        let protect = |rights| named("mprotect of the template", unsafe { mprotect(of, part.len(), rights) });
        // SAFETY: a part of the template; the advice changes no contents.
        let advise = |advice, call| named(call, unsafe { madvise(of, part.len(), advice) });
        let ready = protect(MprotectFlags::READ | MprotectFlags::WRITE)
            .and_then(|()| advise(Advice::LinuxDoFork, "madvise(MADV_DOFORK)"));
        let shown = ready.and_then(|()| self.move_to(part.at(), part.len(), offset));
        // If the kernel refuses these, `mlockall` may copy the template, and children have addresses that they do not
        // use.
        let _ = (protect(MprotectFlags::READ), advise(Advice::LinuxDontFork, "madvise(MADV_DONTFORK)"));
        if shown.is_ok() {
            // A core dump must contain the mapping, unlike the template.
            // SAFETY: the range is the caller's; no contents change.
            let _ = unsafe { madvise(pointer(part.at()), part.len(), Advice::LinuxDoDump) };
        }
        shown
    }

    /// Opens those descriptors again that the program has closed.
    pub(super) fn reopen(&self) {
        self.pagemap.0.reopen(|| Pagemap::open().ok().map(|pagemap| pagemap.0));
        self.mappings.reopen();
        self.holder().map(Holder::reopen);
        self.tracker().map(|tracker| tracker.0.reopen(|| track_writes::open().map(|new| new.0)));
    }

    /// As [`Sys::claim_parking`](crate::sys::Sys::claim_parking).
    pub(super) fn claim_parking(&self, len: usize, align: usize) -> Result<Extent, SystemError> {
        if self.holder.get_or_init(|| Holder::open().ok()).is_none() {
            return named("userfaultfd", Err(Errno::PERM));
        }
        Ok(self.arena.take(len, align)?.into_extent())
    }

    /// Opens in advance the descriptors that it will need, and closes one that it will not: CoW mappings that are
    /// writable at all times are never written to through `/proc/thread-self/mem`. Keeps the template out of core
    /// dumps: it has the whole capacity, however little is used. Mappings for children are made without this advice.
    pub(super) fn prepare_for_children(&mut self) -> Result<(), SystemError> {
        self.mem = None;
        self.holder.get_or_init(|| Holder::open().ok());
        // SAFETY: our own range; the advice changes no contents.
        named("madvise(MADV_DONTDUMP)", unsafe { madvise(self.template.at, self.template.len, Advice::LinuxDontDump) })
    }

    /// All of its descriptors.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = &Descriptor> + '_ {
        let (maps, holder) = (self.mappings.0.as_ref(), self.holder());
        let others = [maps.map(|maps| &maps.0), holder.map(|holder| &holder.0.0), self.tracker().map(|of| &of.0)];
        [&self.pagemap.0].into_iter().chain(others.into_iter().flatten())
    }

    /// As [`Sys::hold`](crate::sys::Sys::hold).
    pub(super) fn hold(&self, part: Part<'_>, parked: Part<'_>) -> Result<(), SystemError> {
        let Some(holder) = self.holder() else { return Err(SystemError::new("userfaultfd", Errno::NOTSUP)) };
        holder.hold(part, &self.parking(part, parked))
    }

    /// The pair of a part and the addresses where its memory is parked.
    pub(super) fn parking(&self, part: Part<'_>, parked: Part<'_>) -> Parking<'_> {
        // SAFETY: the arena set both aside for the caller. The caller has made sure that the memory at `parked` may be
        // replaced, and that the part is held, or shows the memory below its private pages.
        unsafe { Parking::new(part.at(), parked.at(), part.len(), self.mappings.0.as_ref()) }
    }

    /// The userfaultfd that holds faults, if the process may have one.
    pub(super) fn holder(&self) -> Option<&Holder> {
        self.holder.get()?.as_ref()
    }

    /// The userfaultfd that tracks writes, if one was opened and the kernel can track writes.
    fn tracker(&self) -> Option<&Userfaultfd> {
        self.tracker.get()?.as_ref()
    }

    /// As [`Sys::track_writes`](crate::sys::Sys::track_writes).
    pub(super) fn track_writes(&self, part: Part<'_>) -> bool {
        let tracker =
            if owner::is_forked_child() { None } else { self.tracker.get_or_init(track_writes::open).as_ref() };
        // The part shows one private mapping or several.
        tracker.is_some_and(|tracker| tracker.register(&(part.at()..part.at() + part.len()), MODE_WP).is_ok())
    }

    /// Removes the marks of tracked pages. If a marked page were dropped, its page-table entry would look like that of
    /// a page that was swapped out.
    pub(super) fn unmark(&self, part: Part<'_>) {
        if let Some(tracker) = self.tracker() {
            // The kernel refuses this where nothing is tracked, so no page has a mark.
            let _ = tracker.unprotect(&(part.at()..part.at() + part.len()));
        }
    }

    /// Makes a part of the template readable, as one mapping.
    pub(super) fn make_ready(&self, len: usize, offset: usize) -> Result<(), SystemError> {
        let opened = self.template.open(offset, len);
        // After mlockall, some of it may be locked and the rest not.
        if opened.is_ok() && !self.mappings.is_one(self.template.at.addr() + offset, len) {
            self.unlock_template();
        }
        opened
    }

    /// Moves a part of the template to `at`. The template stays as it is.
    fn move_to(&self, at: usize, len: usize, offset: usize) -> Result<(), SystemError> {
        let moved = self.move_once(at, len, offset);
        if moved.is_ok() {
            return moved;
        }
        // As in `make_ready`, if the kernel does not say where mappings end.
        self.unlock_template();
        self.move_once(at, len, offset)
    }

    fn move_once(&self, at: usize, len: usize, offset: usize) -> Result<(), SystemError> {
        // SAFETY: `offset` lies in the template, which stays as it is, since nothing writes there; the new range is the
        // caller's.
        let moved = unsafe { move_page_tables(self.template.at.addr() + offset, at, len) };
        let what = match moved {
            Err(Errno::NOMEM) => "mremap of a private mapping (raise RLIMIT_DATA)",
            _ => "mremap of a private mapping",
        };
        named(what, moved)
    }

    #[cold]
    fn unlock_template(&self) {
        // SAFETY: our own range; this changes no contents.
        let _ = unsafe { munlock(self.template.at, self.template.len) };
    }

    /// Writes to private pages that the program may only read, through `/proc/self/mem`. The kernel allows this for
    /// debuggers, and copies a page that is not private yet. It can be configured to refuse
    /// (`proc_mem.force_override`, Linux 6.12), as that of Debian's Linux 7.3 is.
    ///
    /// # Safety
    /// The addresses show a CoW mapping, and no other code uses them meanwhile. `from` is valid for reads of as many
    /// bytes.
    pub(super) unsafe fn write_through(&self, part: Part<'_>, from: *const u8) -> Result<(), SystemError> {
        const CALL: &str = "pwrite to /proc/self/mem";
        let Some(mem) = &self.mem else { return Err(SystemError::new(CALL, Errno::NOENT)) };
        // SAFETY: by this function's contract.
        let bytes = unsafe { core::slice::from_raw_parts(from, part.len()) };
        let mut again = None;
        let mem = named(CALL, mem.get_or_open(&mut again, MEM, OFlags::WRONLY))?;
        let count = named(CALL, pwrite(mem, bytes, part.at() as u64))?;
        if count == part.len() { Ok(()) } else { Err(SystemError::new(CALL, Errno::IO)) }
    }

    /// As [`Sys::scan`](crate::sys::Sys::scan). A scan for private pages takes 35 ns for each base page, and one for
    /// pages without a mark 7 ns. If other CPUs run the program, a scan that marks pages interrupts them once for each
    /// 2 MiB, which takes up to 20 us in a virtual machine.
    pub(super) fn scan(&self, part: Part<'_>, wanted: ScanFor, runs: &mut [PageRun]) -> Result<Scanned, SystemError> {
        let of = match wanted {
            ScanFor::Private => Scan::PRIVATE,
            ScanFor::Unmarked => Scan::UNMARKED,
            ScanFor::PrivateAndMark => Scan::PRESENT_AND_MARK,
            ScanFor::UnmarkedAndMark => Scan::UNMARKED_AND_MARK,
        };
        let tracked = self.tracker().and_then(|_| self.call(of.where_tracked(), part, runs).ok());
        let Some(mut scanned) = tracked else {
            // Some pages are not tracked, and the others may have got marks from the failed scan, so all count as
            // written.
            let scanned = self.call(Scan::PRIVATE, part, runs)?;
            runs[..scanned.runs].iter_mut().for_each(|run| run.set_written(true));
            return Ok(scanned);
        };
        if wanted == ScanFor::PrivateAndMark {
            let mut private = 0;
            for nth in 0..scanned.runs {
                if !runs[nth].is_file() {
                    (runs[private], private) = (runs[nth], private + 1);
                }
            }
            scanned.runs = private;
        }
        Ok(Scanned { are_marked: wanted.marks(), ..scanned })
    }

    fn call(&self, wanted: Scan, part: Part<'_>, runs: &mut [PageRun]) -> Result<Scanned, SystemError> {
        debug_assert!(runs.len() <= MOST_RUNS);
        let start = part.at();
        match self.pagemap.scan(&(start..start + part.len()), wanted, runs) {
            // An answer without progress would be asked for again and again. (The last run may end beyond the scanned
            // range, which is progress.)
            Ok(found) if found.end < start + BASE_PAGE => Err(SystemError::new("ioctl(PAGEMAP_SCAN)", Errno::IO)),
            Ok(found) => Ok(Scanned { runs: found.runs, looked_at: found.end - start, are_marked: false }),
            Err(errno) => Err(SystemError::new("ioctl(PAGEMAP_SCAN)", errno)),
        }
    }
}

/// Whether the kernel writes through `mem` to a page that the program may only read.
fn writes_through(mem: &Descriptor) -> bool {
    let mut again = None;
    let Ok(mem) = mem.get_or_open(&mut again, MEM, OFlags::WRONLY) else { return false };
    // SAFETY: a new mapping.
    let Ok(page) = (unsafe { mmap_anonymous(ptr::null_mut(), BASE_PAGE, ProtFlags::READ, MapFlags::PRIVATE) }) else {
        return false;
    };
    let written = pwrite(mem, &[1], page.addr() as u64);
    // SAFETY: the mapping made above.
    let _ = unsafe { munmap(page, BASE_PAGE) };
    written == Ok(1)
}
