//! `PAGEMAP_SCAN` (Linux 6.7) tells which pages were written and protects them again in one call, if writes to them are
//! followed by `userfaultfd(2)` without anybody who handles faults (`UFFD_FEATURE_WP_ASYNC`).
//!
//! The area is of 4 KiB pages: of a huge one the kernel tells no single pages.

use std::io;
use std::ops::Range;
use std::ptr;

use hugefork_linux::pagemap_scan::{MOST_RUNS, PageRun, Pagemap, Scan};
use hugefork_linux::userfaultfd::{
    Faults, MODE_WP, UFFD_FEATURE_PAGEFAULT_FLAG_WP, UFFD_FEATURE_WP_ASYNC, Userfaultfd,
};
use rustix::io::Errno;

use super::rounds::{BIAS, PAGE, ResetSetup, Resettable, word_of, write_words};
use crate::error::BenchError;
use crate::memory::kernel_memory::{KernelMemory, PageKind};

/// An area whose writes are followed, and a copy of all of it.
pub(super) struct Scanned {
    // The descriptor before the memory: fields drop in order.
    _userfault: Userfaultfd,
    pagemap: Pagemap,
    runs: Vec<PageRun>,
    area: KernelMemory,
    copy: KernelMemory,
}

impl Scanned {
    pub(super) fn open(setup: ResetSetup) -> Result<Scanned, BenchError> {
        let area = KernelMemory::written(PageKind::Base, setup.size, BIAS)?;
        let copy = KernelMemory::written(PageKind::Thp, setup.size, BIAS)?;
        let userfault = Userfaultfd::open(Faults::OfThreads).map_err(lacks)?;
        userfault.enable(UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_ASYNC).map_err(lacks)?;
        userfault.register(&all(&area), MODE_WP).map_err(lacks)?;
        let pagemap = Pagemap::open().map_err(lacks)?;
        let runs = vec![PageRun::default(); MOST_RUNS];
        let mut scanned = Scanned { _userfault: userfault, pagemap, runs, area, copy };
        // All of it counts as written at first.
        scanned.reset()?;
        Ok(scanned)
    }

    /// Copies the pages of these runs back.
    fn put_back(&self, runs: &[PageRun]) {
        for run in runs {
            let (start, len) = (run.start as usize - self.area.as_ptr().addr(), (run.end - run.start) as usize);
            debug_assert!(start.is_multiple_of(PAGE) && start + len <= self.area.len());
            // SAFETY: pages of two mappings of our own.
            unsafe { ptr::copy_nonoverlapping(self.copy.as_ptr().add(start), self.area.as_ptr().add(start), len) };
        }
    }
}

impl Resettable for Scanned {
    fn write(&mut self, pages: &[usize]) -> Result<(), BenchError> {
        // SAFETY: our own mapping.
        unsafe { write_words(self.area.as_ptr(), pages) };
        Ok(())
    }

    /// Puts pages back while they can be written to, and protects them afterwards.
    fn reset(&mut self) -> Result<(), BenchError> {
        let mut rest = all(&self.area);
        while !rest.is_empty() {
            let found = self.pagemap.scan(&rest, Scan::WRITTEN, &mut self.runs).map_err(lacks)?;
            self.put_back(&self.runs[..found.runs]);
            rest.start = found.end;
        }
        self.pagemap.scan(&all(&self.area), Scan::WRITTEN.and_protect(), &mut []).map(drop).map_err(lacks)
    }

    fn word(&self, page: usize) -> u64 {
        // SAFETY: our own mapping.
        unsafe { word_of(self.area.as_ptr(), page) }
    }
}

/// The addresses of an area.
fn all(area: &KernelMemory) -> Range<usize> {
    let start = area.as_ptr().expose_provenance();
    start..start + area.len()
}

fn lacks(errno: Errno) -> BenchError {
    let error = io::Error::from(errno);
    BenchError::CannotRun(format!("this kernel does not follow writes ({error}): it takes Linux 6.7"))
}
