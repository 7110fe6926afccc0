//! Memory of a program that knows nothing of hugefork (../program.rs): children inherit what is shown of it, and the
//! program may close its descriptors, or put something else in its place.

use core::ptr;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::Ordering;

use hugefork_linux::Descriptor;
use rustix::fs::fstat;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap_fixed, munmap};

use super::cow_mapping::CowMappings;
use super::memory::{Children, Linux, pointer};
use super::{advice, named, residence};
use crate::sys::program::{ProgramSys, Zeros};
use crate::sys::{Part, Sys, SystemError};
use crate::units::{BASE_PAGE, HUGE_PAGE};

impl Linux {
    /// The same memory; what is shown through private mappings is inherited by `fork(2)` children, and writable at
    /// once.
    ///
    /// # Errors
    /// The kernel refuses to keep it out of core dumps.
    pub(crate) fn with_children(mut self) -> Result<Linux, SystemError> {
        if let Ok(cow_mappings) = &mut self.cow_mappings {
            cow_mappings.open_ahead();
            cow_mappings.dump_what_is_shown()?;
        }
        self.children = Children::HaveCowMappings;
        Ok(self)
    }

    /// Its descriptors.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = &Descriptor> + '_ {
        self.cow_mappings.iter().flat_map(CowMappings::descriptors)
    }

    /// Opens descriptors again that the program has closed, which did not know of them.
    pub(crate) fn reopen(&self) {
        self.cow_mappings.iter().for_each(CowMappings::reopen);
    }

    /// All addresses of the process that are the engine's, which has no other memory than this.
    pub(crate) fn reserved(&self) -> Range<usize> {
        self.arena.reserved()
    }

    /// Notes that the addresses are about to be given back: from now on, nothing is done about this memory.
    pub(crate) fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
    }
}

impl ProgramSys for Linux {
    type Plain = Plain;

    fn collapses(&self) -> bool {
        self.makes_no_huge_pages()
    }

    fn bytes(&self) -> Option<usize> {
        match self.file() {
            Ok(file) => fstat(file).ok().map(|status| status.st_blocks as usize * 512),
            Err(_) => self.direct.open_parts().map(|part| residence::bytes(self.direct_address(), part)).sum(),
        }
    }

    fn is_full(&self, offset: usize) -> bool {
        let all = offset..offset + HUGE_PAGE;
        self.next_memory(all.clone()) == Some(all)
    }

    fn collapse_full(&self, offset: usize) -> bool {
        if !self.collapses() || !self.is_full(offset) {
            return false;
        }
        advice::empty_the_batches();
        let is_huge = self.collapse(offset);
        // The collapse has mapped the huge page in the direct map, too, and the process's RSS would count it twice.
        // SAFETY: the direct map is a shared mapping of the file, which keeps the page.
        let _ = unsafe { madvise(self.direct.at().byte_add(offset), HUGE_PAGE, Advice::LinuxDontNeed) };
        is_huge
    }

    fn shown(&self, range: &Range<usize>, offset: Option<usize>) -> Option<Range<usize>> {
        self.first_shown(range, offset)
    }

    unsafe fn punch_shown(&self, offset: usize, len: usize) -> Result<(), SystemError> {
        // SAFETY: by contract; the kernel takes the memory away wherever it is shown.
        unsafe { self.punch(offset, len) }
    }

    unsafe fn fill_with_zeros(&self, part: Part<'_>) {
        // SAFETY: by contract.
        unsafe { pointer(part.at()).cast::<u8>().write_bytes(0, part.len()) };
    }

    fn plain(&self, len: usize) -> Result<Plain, SystemError> {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping where the kernel likes.
        let at = named("mmap", unsafe { mmap_anonymous(ptr::null_mut(), len, rights, flags) })?;
        Ok(Plain { at, len })
    }

    fn fill(&self, plain: &mut Plain, offset: usize, from: Part<'_>, zeros: Zeros) {
        assert!(offset + from.len() <= plain.len, "what is copied lies inside");
        for at in (0..from.len()).step_by(BASE_PAGE) {
            let page = pointer(from.at() + at).cast::<u64>().cast_const();
            // SAFETY: `from` shows pool memory, which can be read; writers are kept off.
            if zeros == Zeros::Copied || !unsafe { is_zero(page) } {
                // SAFETY: as above; plain memory is its owner's alone.
                unsafe {
                    ptr::copy_nonoverlapping(page.cast(), plain.at.byte_add(offset + at).cast::<u8>(), BASE_PAGE)
                };
            }
        }
    }

    fn show_plain(&self, mut plain: Plain, part: Part<'_>) -> Result<(), SystemError> {
        assert_eq!(plain.len, part.len(), "it is shown as a whole");
        let (at, len) = (plain.at, plain.len);
        // SAFETY: both ranges are ours; what the part shows is to go.
        let moved = unsafe { mremap_fixed(at, len, len, MremapFlags::MAYMOVE, pointer(part.at())) };
        if moved.is_ok() {
            plain.len = 0;
        }
        named("mremap of plain memory", moved).map(drop)
    }

    fn unmap_plain(&self, range: Range<usize>) -> Result<(), SystemError> {
        // SAFETY: the caller has seen that nobody uses what is mapped there, and that it is the program's.
        named("munmap of a part", unsafe { munmap(pointer(range.start), range.len()) })
    }
}

/// Whether there are only zeros on a page.
///
/// # Safety
/// It can be read, and nobody writes to it.
unsafe fn is_zero(page: *const u64) -> bool {
    // SAFETY: by contract.
    (0..BASE_PAGE / 8).all(|nth| unsafe { page.add(nth).read_volatile() } == 0)
}

/// Plain memory, until it is shown.
pub(crate) struct Plain {
    at: *mut c_void,
    /// 0 once it is shown.
    len: usize,
}

impl Drop for Plain {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: it is ours alone. If the kernel refuses, it stays.
            let _ = unsafe { munmap(self.at, self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MsyncFlags, msync};

    use super::super::memory::{Dump, Exports, Kind};
    use super::*;
    use crate::units::BASE_PAGE;

    #[test]
    fn plain_memory_that_is_not_shown_goes() {
        const LEN: usize = 8 * BASE_PAGE;
        let memory = Linux::new(Kind::ShmemBase, HUGE_PAGE, Dump::LeftOut, Exports::No).unwrap();
        let goes = || {
            let plain = memory.plain(LEN).unwrap();
            let at = plain.at;
            // SAFETY: with this flag the call only looks whether all of a range is mapped.
            let is_there = || unsafe { msync(at, LEN, MsyncFlags::ASYNC) }.is_ok();
            assert!(is_there());
            drop(plain);
            !is_there()
        };
        // Another test may have been given these addresses meanwhile, but not each time.
        assert!((0..1000).any(|_| goes()), "it stays");
    }
}
