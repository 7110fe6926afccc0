//! The ways to put an area back.

use std::os::fd::OwnedFd;
use std::ptr;

use hugefork::{Pool, Region, Snapshot};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::rounds::{BIAS, PAGE, ResetSetup, Resettable};
use crate::error::BenchError;
use crate::measure::work;
use crate::memory::kernel_memory::{KernelMemory, PageKind, Reserve};
use crate::memory::pools;
use crate::memory::tracked::Tracked;
use crate::subject::Subject;

/// The area of a subject of the case.
pub(super) fn open(subject: &Subject, setup: ResetSetup) -> Result<Box<dyn Resettable>, BenchError> {
    let size = setup.size;
    Ok(match subject {
        Subject::Hugefork => Box::new(OwnRegion::open(size)?),
        Subject::MemfdPrivate => Box::new(File::open(size)?),
        Subject::PagemapScan => Box::new(Scanned { area: Tracked::written(size, BIAS)?, copy: copy(size)? }),
        Subject::KnownPages => Box::new(Known { area: copy(size)?, copy: copy(size)? }),
        other => return Err(BenchError::CannotRun(format!("{other} does not put areas back"))),
    })
}

fn copy(size: usize) -> Result<KernelMemory, BenchError> {
    KernelMemory::written(PageKind::Thp, size, BIAS)
}

/// A region of a pool with all defaults, and its snapshot.
struct OwnRegion {
    // The order of the fields is the order of their drops: the snapshot, then the region, then its pool.
    snapshot: Snapshot,
    region: Region,
    _pool: Pool,
}

impl OwnRegion {
    fn open(size: usize) -> Result<OwnRegion, BenchError> {
        let pool = pools::new(2 * size)?;
        let region = pools::written(&pool, size, BIAS)?;
        Ok(OwnRegion { snapshot: region.snapshot()?, region, _pool: pool })
    }
}

impl Resettable for OwnRegion {
    fn start(&self) -> *mut u8 {
        self.region.as_mut_ptr()
    }

    fn reset(&mut self, _: &[usize]) -> Result<(), BenchError> {
        Ok(self.region.reset_to(&self.snapshot).map_err(|error| error.reason)?)
    }
}

/// A private mapping of a file. `MADV_DONTNEED` drops its private pages, and the file stays as it is.
struct File {
    area: KernelMemory,
    _file: OwnedFd,
}

impl File {
    fn open(size: usize) -> Result<File, BenchError> {
        let failed = |what| move |errno: rustix::io::Errno| BenchError::system(what, errno);
        let file = memfd_create("bench", MemfdFlags::CLOEXEC).map_err(failed("making a memfd"))?;
        ftruncate(&file, size as u64).map_err(failed("sizing a memfd"))?;
        let area = KernelMemory::map(PageKind::Base, size, Reserve::Yes)?;
        for how in [MapFlags::SHARED, MapFlags::PRIVATE] {
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, how | MapFlags::FIXED);
            // SAFETY: only a mapping of our own is replaced, to which nobody has a reference.
            unsafe { mmap(area.as_ptr().cast(), area.len(), access, flags, &file, 0) }
                .map_err(failed("mapping a memfd"))?;
            if how == MapFlags::SHARED {
                // SAFETY: our own mapping of a new file.
                unsafe { work::write_words(area.as_ptr().cast(), area.len() / 8, BIAS) };
            }
        }
        Ok(File { area, _file: file })
    }
}

impl Resettable for File {
    fn start(&self) -> *mut u8 {
        self.area.as_ptr()
    }

    fn reset(&mut self, _: &[usize]) -> Result<(), BenchError> {
        self.area.discard()
    }
}

/// An area whose written pages the kernel marks, and a copy of all of it.
struct Scanned {
    area: Tracked,
    copy: KernelMemory,
}

impl Resettable for Scanned {
    fn start(&self) -> *mut u8 {
        self.area.as_ptr()
    }

    /// Puts the written pages back while they are writable, and protects them afterwards.
    fn reset(&mut self, _: &[usize]) -> Result<(), BenchError> {
        let (from, to) = (self.copy.as_ptr(), self.area.as_ptr());
        self.area.scan(|range| {
            // SAFETY: pages of two mappings of our own.
            unsafe { ptr::copy_nonoverlapping(from.add(range.start), to.add(range.start), range.len()) };
        })?;
        self.area.protect()
    }
}

/// An area of huge pages, and a copy of all of it. The program knows which pages it wrote.
struct Known {
    area: KernelMemory,
    copy: KernelMemory,
}

impl Resettable for Known {
    fn start(&self) -> *mut u8 {
        self.area.as_ptr()
    }

    fn reset(&mut self, pages: &[usize]) -> Result<(), BenchError> {
        for at in pages.iter().map(|page| page * PAGE) {
            // SAFETY: a page of two mappings of our own.
            unsafe { ptr::copy_nonoverlapping(self.copy.as_ptr().add(at), self.area.as_ptr().add(at), PAGE) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::rounds::{Pages, measure};
    use super::*;
    use crate::cases::ways::unless_lacking;
    use crate::measure::random::Random;

    #[test]
    fn every_subject_puts_back_what_was_written() {
        for subject in super::super::SUBJECTS {
            for pages in [Pages::Same, Pages::Others] {
                let setup = ResetSetup { size: 4 << 20, cpu: 0, count: 20, pages };
                let Some(mut area) = unless_lacking(open(&subject, setup)) else { continue };
                let figures = measure(setup, &mut *area, &mut Random::new(3));
                assert!(figures.as_ref().is_ok_and(|figures| figures.reset > 0.0), "{subject}: {figures:?}");
            }
        }
        assert!(open(&Subject::Memset, ResetSetup { size: 4 << 20, cpu: 0, count: 1, pages: Pages::Same }).is_err());
    }
}
