//! The mappings of regions and snapshots: how addresses come to show a pool's memory (memory.rs), zeros, or nothing.
//!
//! ```text
//! memfd        | block 0 | block 1 | block 2 | …
//! region       | block 7 rw | block 8 r | zeros …          made of the direct map, of the template and of the arena's
//!                                                           zeros by mremap (shmem), or by mmap (hugetlb)
//! ```
//! A block must be mapped so that `fork(2)` children never get the mapping. Between an `mmap` and `MADV_DONTFORK` there
//! is a gap, in which another thread's `fork` would give a child a writable mapping of our memory. So we use `mremap`
//! of the direct map with an old size of zero: it duplicates a shared mapping with all its flags, in one call, and
//! takes as long as the `mmap` alone.
//!
//! A read-only mapping is a duplicate of a read-only template. It must not be writable for a moment, because a thread
//! that writes at that moment would change the contents of snapshots.
//!
//! hugetlb refuses duplicates (`EINVAL`). There the block is mapped read-only, excluded from children, and then made
//! writable, which takes about 2 us longer.
//!
//! Zeros are private memory. They are made by an `mremap` of the arena's own zeros that leaves those in place
//! (`MREMAP_DONTUNMAP`), also with all flags.

use hugefork_linux::parking::{clear, is_mapped, move_page_tables};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mremap_fixed};
use std::ffi::c_void;

use super::memory::{Children, CoreDump, Linux, pointer};
use super::{arena, may_map, named};
use crate::sys::{Access, Aftermath, MapFailure, Part, Sys, SystemError};

impl Linux {
    /// Shows pool memory by one call, which duplicates a mapping of the pool that has this access. The part never has
    /// another.
    pub(super) fn map(&self, part: Part<'_>, offset: usize, access: Access) -> Result<(), MapFailure> {
        assert!(offset + part.len() <= self.direct.len, "only pool memory is shown");
        let of = match (access, &self.template) {
            (Access::Read, Some(template)) => template,
            (Access::Read, None) | (Access::ReadWrite, _) => &self.direct,
        };
        let opened = of.open(offset, part.len());
        let duplicated = if opened.is_ok() { self.duplicate(part, of.at, offset) } else { opened };
        if duplicated.is_ok() && self.dump == CoreDump::Included {
            // A failure here is ignored: at worst the block is missing from a core dump.
            // SAFETY: the range is the caller's, and shows this memory; the advice changes no contents.
            let _ = unsafe { madvise(pointer(part.at()), part.len(), Advice::LinuxDoDump) };
        }
        refused(part, duplicated)
    }

    /// Shows pool memory through a private mapping.
    pub(super) fn cow_map(&self, part: Part<'_>, offset: usize, access: Access) -> Result<(), MapFailure> {
        refused(part, self.show_cow_mapping(part, offset))?;
        // A mapping that children inherit is writable already.
        let is_due = access == Access::ReadWrite && self.children == Children::HaveNothing;
        if is_due { not_writable(self.protect(part, access)) } else { Ok(()) }
    }

    fn show_cow_mapping(&self, part: Part<'_>, offset: usize) -> Result<(), SystemError> {
        let cow_mappings = self.cow_mappings()?;
        cow_mappings.make_ready(part.len(), offset)?;
        match self.children {
            Children::HaveNothing => cow_mappings.show(part, offset),
            Children::HaveCowMappings => cow_mappings.show_to_children(part, offset),
        }
    }

    /// Duplicates a part of `of`, a mapping of the pool.
    fn duplicate(&self, part: Part<'_>, of: *mut c_void, offset: usize) -> Result<(), SystemError> {
        let flags = MremapFlags::MAYMOVE;
        // This checks the process's limit of addresses first. Linux before 6.17 checks it only after it has unmapped
        // the old mapping.
        may_map()?;
        // SAFETY: `offset` lies in the pool, and `of` stays as it is with an old size of zero; the new range is the
        // caller's.
        let mapped = unsafe { mremap_fixed(of.byte_add(offset), 0, part.len(), flags, pointer(part.at())) };
        named("mremap of a block", mapped).map(drop)
    }

    /// As [`Linux::map`], for memory that `mremap` cannot duplicate. This takes three calls.
    pub(super) fn map_hugetlb(&self, part: Part<'_>, offset: usize, access: Access) -> Result<(), MapFailure> {
        assert!(offset + part.len() <= self.direct.len, "only pool memory is shown");
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        let mapped = self.file().and_then(|file| {
            let (at, len, offset) = (pointer(part.at()), part.len(), offset as u64);
            // SAFETY: the range is the caller's.
            named("mmap of a block", unsafe { mmap(at, len, ProtFlags::READ, flags, file, offset) })
        });
        refused(part, mapped)?;
        leave_out_of_forks(part)?;
        if access == Access::ReadWrite { not_writable(self.protect(part, access)) } else { Ok(()) }
    }

    /// Shows zeros, by calls that duplicate the arena's own.
    pub(super) fn map_zeros(&self, part: Part<'_>) -> Result<(), MapFailure> {
        let end = part.at() + part.len();
        for at in (part.at()..end).step_by(arena::ZEROS_BYTES) {
            let len = arena::ZEROS_BYTES.min(end - at);
            // SAFETY: the zeros stay as they are, since they have no pages; the new range is the caller's.
            let moved = named("mremap of zeros", unsafe { move_page_tables(self.arena.zeros(), at, len) });
            if let Err(mut failure) = refused(part, moved) {
                if at > part.at() {
                    failure.aftermath = Aftermath::Unknown;
                }
                return Err(failure);
            }
        }
        Ok(())
    }

    pub(super) fn hide(&self, part: Part<'_>) -> Result<(), MapFailure> {
        // SAFETY: the range is the caller's.
        let mapped = unsafe { clear(part.at(), part.len()) };
        // A child has nothing there. If the kernel refuses this, a child has addresses that it cannot use.
        let _ = mapped.is_ok() && leave_out_of_forks(part).is_ok();
        refused(part, named("mmap to hide a block", mapped))
    }
}

/// Keeps the mapping out of children. A core dump contains shared hugetlb memory only if bit 6 of coredump_filter is
/// set: core(5).
fn leave_out_of_forks(part: Part<'_>) -> Result<(), MapFailure> {
    // SAFETY: the range is the caller's; this advice changes no contents.
    let left_out = unsafe { madvise(pointer(part.at()), part.len(), Advice::LinuxDontFork) };
    named("madvise(MADV_DONTFORK)", left_out).map_err(|error| MapFailure { error, aftermath: Aftermath::Unknown })
}

/// The failure of a call that replaces a mapping. In most cases the kernel has refused before it changed anything, for
/// example because the process has too many mappings. If it had begun, there would be a hole.
fn refused<T>(part: Part<'_>, result: Result<T, SystemError>) -> Result<(), MapFailure> {
    let Err(error) = result else { return Ok(()) };
    let is_whole = is_mapped(part.at(), part.len());
    Err(MapFailure { error, aftermath: if is_whole { Aftermath::Unchanged } else { Aftermath::Unknown } })
}

/// The failure to make the new mapping writable.
fn not_writable(result: Result<(), SystemError>) -> Result<(), MapFailure> {
    result.map_err(|error| MapFailure { error, aftermath: Aftermath::NotWritable })
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicBool, Ordering};
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::io::pwrite;
    use rustix::mm::munmap;

    use super::*;
    use crate::sys::Shows;
    use crate::sys::linux::descriptor;
    use crate::sys::linux::memory::{Exports, Huge, Kind};
    use crate::sys::linux::parked::ParkedTables;
    use crate::units::{BASE_PAGE, HUGE_PAGE};

    /// A system call that writes shows whether the memory is writable, without a fault.
    #[test]
    fn a_read_only_block_is_never_writable_for_a_moment() {
        const TIMES: usize = 20_000;
        for kind in [Kind::ShmemBase, Kind::ShmemHuge(Huge::BySetting)] {
            let memory = Linux::new(kind, HUGE_PAGE, CoreDump::LeftOut, Exports::No).unwrap();
            memory.obtain(0, HUGE_PAGE, 0).unwrap();
            let extent = memory.claim(HUGE_PAGE, HUGE_PAGE).unwrap();
            let (part, over) = (extent.part(0, HUGE_PAGE), AtomicBool::new(false));
            let source = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
            assert_eq!(pwrite(&source, &[7], 0), Ok(1));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let to = pointer(part.at()).cast();
                        // SAFETY: the range is ours, and no code reads it.
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
            // SAFETY: the byte lies within the direct map, and no code writes there.
            assert_eq!(unsafe { memory.direct().read_volatile() }, 0);
            memory.release(extent).unwrap();
        }
    }

    #[test]
    fn the_page_tables_of_a_gib_are_parked_until_a_thread_drops_their_pages() {
        const LEN: usize = 1 << 30;
        let memory = Linux::new(Kind::ShmemBase, LEN, CoreDump::LeftOut, Exports::No).unwrap();
        let Some(parked) = memory.cow_mappings.as_ref().ok().and_then(|of| of.parked.as_ref()) else {
            return println!("skipped: no page tables are parked here");
        };
        let extent = memory.claim(LEN, LEN).unwrap();
        let show = |part, shows| memory.show(part, shows).unwrap();
        let blocks = Shows::Memory { start: 0, access: Access::ReadWrite };
        let pages = Shows::CowMapping { start: 0, access: Access::ReadWrite };
        for rooms in 1..4 {
            show(extent.part(0, LEN), blocks);
            assert_eq!(parked.in_use(), rooms - 1, "a CoW mapping has few pages");
            show(extent.part(0, LEN), pages);
            assert_eq!(parked.in_use(), rooms);
        }
        memory.tidy();
        assert_eq!(parked.in_use(), 0);
        // The page tables of less than a GiB would move one by one, so they are not parked.
        show(extent.part(0, LEN / 2), blocks);
        show(extent.part(0, LEN / 2), pages);
        assert_eq!(parked.in_use(), 0);
        memory.release(extent).unwrap();
    }

    /// The pages exist nowhere else.
    #[test]
    fn private_pages_survive_a_refused_mapping() {
        const GIB: usize = 1 << 30;
        [(16 << 20, GIB - HUGE_PAGE), ((2 << 30) + 2 * HUGE_PAGE, GIB - HUGE_PAGE), (GIB, 0)]
            .into_iter()
            .for_each(|(len, behind)| show_nothing_else(len, behind));
    }

    /// Writes to some private pages, and then shows something else there, which the kernel refuses.
    fn show_nothing_else(len: usize, behind: usize) {
        let memory = Linux::new(Kind::ShmemBase, len, CoreDump::LeftOut, Exports::No).unwrap();
        let Ok(cow_mappings) = &memory.cow_mappings else {
            return println!("skipped: this kernel copies no single pages of a pool (Linux 6.7)");
        };
        let extent = memory.claim((1 << 30) + len, 1 << 30).unwrap();
        let (part, shows) = (extent.part(behind, len), Shows::CowMapping { start: 0, access: Access::ReadWrite });
        memory.show(part, shows).unwrap();
        memory.tidy();
        let written = [3 * BASE_PAGE, len / 2, len - BASE_PAGE].map(|at| pointer(part.at() + at).cast::<u8>());
        // SAFETY: the range is ours, and shows a private mapping.
        written.iter().for_each(|page| unsafe { page.write_volatile(7) });
        // From now on no other mapping can be made, because the template is gone.
        // SAFETY: no other code knows the template.
        unsafe { munmap(cow_mappings.template.at, len) }.unwrap();
        let failure = memory.show(part, shows).unwrap_err();
        assert_eq!(failure.aftermath, Aftermath::Unchanged);
        // SAFETY: as above.
        assert!(written.iter().all(|page| unsafe { page.read_volatile() } == 7));
        assert_eq!(cow_mappings.parked.as_ref().map_or(0, ParkedTables::in_use), 0);
        memory.release(extent).unwrap();
    }
}
