//! The memory of a program that knows nothing of hugefork (../program.rs). Its children inherit the memory that private
//! mappings show, and the program may close hugefork's descriptors, or map other memory in its place.

use std::ops::Range;
use std::sync::atomic::Ordering;

use hugefork_linux::Descriptor;
use rustix::fs::fstat;
use rustix::mm::{Advice, MremapFlags, madvise, mremap_fixed, munmap};

use super::cow_mapping::CowMappings;
use super::memory::{Children, Huge, Kind, Linux, pointer};
use super::share::PrivateMemory;
use super::{advice, named, residence};
use crate::sys::program::{ProgramSys, Zeros};
use crate::sys::racing::ZERO_PAGE;
use crate::sys::restore::differs;
use crate::sys::{Part, Sys, SystemError};
use crate::units::{BASE_PAGE, HUGE_PAGE};

impl Linux {
    /// The same memory, but `fork(2)` children inherit the private mappings, which are writable at once.
    ///
    /// # Errors
    /// If the kernel refuses to keep the template out of core dumps.
    pub(crate) fn with_children(mut self) -> Result<Linux, SystemError> {
        if let Ok(cow_mappings) = &mut self.cow_mappings {
            cow_mappings.prepare_for_children()?;
        }
        self.children = Children::HaveCowMappings;
        Ok(self)
    }

    /// The descriptors of this memory.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = &Descriptor> + '_ {
        self.cow_mappings.iter().flat_map(CowMappings::descriptors)
    }

    /// Opens those descriptors again that the program, which does not know of them, has closed.
    pub(crate) fn reopen(&self) {
        self.cow_mappings.iter().for_each(CowMappings::reopen);
    }

    /// All addresses of the process that belong to the engine, if it has no other memory than this.
    pub(crate) fn reserved(&self) -> Range<usize> {
        self.arena.reserved()
    }

    /// Notes that the addresses are about to be given back: from now on, the engine leaves this memory alone.
    pub(crate) fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
    }
}

impl ProgramSys for Linux {
    type Plain = PrivateMemory;

    fn collapses(&self) -> bool {
        matches!(self.kind, Kind::ShmemHuge(Huge::Collapse))
    }

    fn bytes(&self) -> Option<usize> {
        match self.file() {
            Ok(file) => fstat(file).ok().map(|status| status.st_blocks as usize * 512),
            Err(_) => self.direct.open_parts().map(|part| residence::bytes(self.direct.at.addr(), part)).sum(),
        }
    }

    fn collapse_full(&self, offset: usize) -> bool {
        if !self.collapses() || !self.is_full(offset) {
            return false;
        }
        advice::empty_the_batches();
        let is_huge = self.collapse(offset);
        // The collapse has mapped the huge page in the direct map, too, and the process's RSS would count it twice.
        // SAFETY: the direct map is a shared mapping of the file, which keeps the page.
        let _ = unsafe { madvise(self.direct.at.byte_add(offset), HUGE_PAGE, Advice::LinuxDontNeed) };
        is_huge
    }

    fn shown(&self, range: &Range<usize>, offset: Option<usize>) -> Option<Range<usize>> {
        match (&self.cow_mappings, self.children) {
            (Ok(cow_mappings), Children::HaveCowMappings) => cow_mappings.mappings.shown(range, self.id, offset),
            _ => Some(range.clone()),
        }
    }

    unsafe fn punch_shown(&self, offset: usize, len: usize) -> Result<(), SystemError> {
        // SAFETY: by this function's contract; the kernel takes the memory away wherever it is shown.
        unsafe { self.punch(offset, len) }
    }

    unsafe fn fill_with_zeros(&self, part: Part<'_>) {
        // SAFETY: by this function's contract.
        unsafe { pointer(part.at()).cast::<u8>().write_bytes(0, part.len()) };
    }

    fn plain(&self, len: usize) -> Result<PrivateMemory, SystemError> {
        named("mmap", PrivateMemory::anywhere(len))
    }

    fn fill(&self, plain: &mut PrivateMemory, offset: usize, from: Part<'_>, zeros: Zeros) {
        assert!(offset + from.len() <= plain.len, "what is copied lies inside");
        for at in (0..from.len()).step_by(BASE_PAGE) {
            let page = pointer(from.at() + at).cast::<u8>().cast_const();
            // SAFETY: `from` shows pool memory, which can be read; the caller keeps writers off.
            if zeros == Zeros::Copied || unsafe { differs(page, ZERO_PAGE.as_ptr(), BASE_PAGE) } {
                // SAFETY: as above; only its owner uses the plain memory.
                unsafe { plain.at.byte_add(offset + at).cast::<u8>().copy_from_nonoverlapping(page, BASE_PAGE) };
            }
        }
    }

    fn show_plain(&self, mut plain: PrivateMemory, part: Part<'_>) -> Result<(), SystemError> {
        assert_eq!(plain.len, part.len(), "it is shown as a whole");
        let (at, len) = (plain.at, plain.len);
        // SAFETY: both ranges are ours; the memory that the part shows is to be replaced.
        let moved = unsafe { mremap_fixed(at, len, len, MremapFlags::MAYMOVE, pointer(part.at())) };
        if moved.is_ok() {
            plain.len = 0;
        }
        named("mremap of plain memory", moved).map(drop)
    }

    fn unmap_plain(&self, range: Range<usize>) -> Result<(), SystemError> {
        // SAFETY: the caller has made sure that no code uses the mappings there, and that they are the program's.
        named("munmap of a part", unsafe { munmap(pointer(range.start), range.len()) })
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MsyncFlags, msync};

    use super::super::memory::{CoreDump, Exports, Kind};
    use super::*;
    use crate::units::BASE_PAGE;

    #[test]
    fn plain_memory_that_is_not_shown_is_unmapped() {
        const LEN: usize = 8 * BASE_PAGE;
        let memory = Linux::new(Kind::ShmemBase, HUGE_PAGE, CoreDump::LeftOut, Exports::No).unwrap();
        let goes = || {
            let plain = memory.plain(LEN).unwrap();
            let at = plain.at;
            // SAFETY: with this flag the call only checks whether all of a range is mapped.
            let is_there = || unsafe { msync(at, LEN, MsyncFlags::ASYNC) }.is_ok();
            assert!(is_there());
            drop(plain);
            !is_there()
        };
        // Another test may have got these addresses meanwhile, but not each time.
        assert!((0..1000).any(|_| goes()), "it stays");
    }
}
