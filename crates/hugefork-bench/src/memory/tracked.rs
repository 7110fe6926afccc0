//! Memory whose writes the kernel marks. `PAGEMAP_SCAN` (Linux 6.7) lists the written pages and protects them again, if
//! `userfaultfd(2)` marks the writes without a thread that handles faults (`UFFD_FEATURE_WP_ASYNC`).
//!
//! The memory has 4 KiB pages: in a huge page the kernel could mark only the whole huge page.

use std::io;
use std::ops::Range;

use hugefork_linux::pagemap_scan::{MOST_RUNS, PageRun, Pagemap, Scan};
use hugefork_linux::userfaultfd::{
    Faults, MODE_WP, UFFD_FEATURE_PAGEFAULT_FLAG_WP, UFFD_FEATURE_WP_ASYNC, Userfaultfd,
};
use rustix::io::Errno;

use crate::error::BenchError;
use crate::memory::kernel_memory::{KernelMemory, PageKind};

/// An area whose written pages the kernel marks.
pub(crate) struct Tracked {
    // The descriptor is dropped before the memory, because fields drop in order.
    _userfault: Userfaultfd,
    pagemap: Pagemap,
    runs: Vec<PageRun>,
    area: KernelMemory,
}

impl Tracked {
    /// An area that holds `p[i] = i + bias`, and counts as unwritten.
    pub(crate) fn written(size: usize, bias: u64) -> Result<Tracked, BenchError> {
        let area = KernelMemory::written(PageKind::Base, size, bias)?;
        let userfault = Userfaultfd::open(Faults::OfThreads).map_err(lacks)?;
        userfault.enable(UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_ASYNC).map_err(lacks)?;
        userfault.register(&addresses(&area), MODE_WP).map_err(lacks)?;
        let pagemap = Pagemap::open().map_err(lacks)?;
        let tracked = Tracked { _userfault: userfault, pagemap, runs: vec![PageRun::default(); MOST_RUNS], area };
        // At first, all pages of the area count as written.
        tracked.protect()?;
        Ok(tracked)
    }

    /// First byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.area.as_ptr()
    }

    /// Calls `found` with each range of bytes that the program has written since the range was last protected.
    pub(crate) fn scan(&mut self, mut found: impl FnMut(Range<usize>)) -> Result<(), BenchError> {
        let start = self.area.as_ptr().addr();
        let mut rest = addresses(&self.area);
        while !rest.is_empty() {
            let scanned = self.pagemap.scan(&rest, Scan::WRITTEN, &mut self.runs).map_err(lacks)?;
            for run in &self.runs[..scanned.runs] {
                found(run.start as usize - start..run.end as usize - start);
            }
            rest.start = scanned.end;
        }
        Ok(())
    }

    /// Protects the written pages again, so that they count as unwritten.
    pub(crate) fn protect(&self) -> Result<(), BenchError> {
        let wanted = Scan::WRITTEN.and_protect();
        self.pagemap.scan(&addresses(&self.area), wanted, &mut []).map(drop).map_err(lacks)
    }
}

fn addresses(area: &KernelMemory) -> Range<usize> {
    let start = area.as_ptr().expose_provenance();
    start..start + area.len()
}

fn lacks(errno: Errno) -> BenchError {
    let error = io::Error::from(errno);
    BenchError::CannotRun(format!("this kernel does not follow writes ({error}): it takes Linux 6.7"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::kernel_memory::HUGE_PAGE;

    #[test]
    fn written_pages_are_found_until_they_are_protected_again() {
        let mut area = match Tracked::written(2 * HUGE_PAGE, 1) {
            Err(error) if error.is_lack() => {
                let _ = io::Write::write_all(&mut io::stderr(), format!("skipped: {error}\n").as_bytes());
                return;
            }
            area => area.unwrap(),
        };
        let found = |area: &mut Tracked| {
            let mut ranges = Vec::new();
            area.scan(|range| ranges.push(range)).unwrap();
            ranges
        };
        assert_eq!(found(&mut area), []);
        for page in [3, 4, 700] {
            // SAFETY: a byte of our own mapping.
            unsafe { area.as_ptr().add(page * 4096).write_volatile(9) };
        }
        for _ in 0..2 {
            assert_eq!(found(&mut area), [3 * 4096..5 * 4096, 700 * 4096..701 * 4096]);
        }
        area.protect().unwrap();
        assert_eq!(found(&mut area), []);
    }
}
