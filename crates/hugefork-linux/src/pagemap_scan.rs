//! Finds the pages of a range that are huge, private or written: `PAGEMAP_SCAN` (Linux 6.7), an
//! ioctl of `/proc/PID/pagemap`.
//!
//! [Documentation/admin-guide/mm/pagemap.rst](https://docs.kernel.org/admin-guide/mm/pagemap.html);
//! [`<linux/fs.h>`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/fs.h)

use core::ffi::CStr;
use core::ops::Range;

use rustix::fd::BorrowedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use crate::{Descriptor, ioctl};

/// The file (`/proc/self` would be the first thread, which has no memory once it has exited).
const PATH: &CStr = c"/proc/thread-self/pagemap";

/// The number of the call.
pub const PAGEMAP_SCAN: Opcode = opcode::read_write::<Scan>(b'f', 16);

/// The page was written since the last write protection (`PAGE_IS_WRITTEN`).
const WRITTEN: u64 = 1 << 1;
/// The page belongs to a file (`PAGE_IS_FILE`).
const FILE: u64 = 1 << 2;
/// The page is in memory (`PAGE_IS_PRESENT`).
const PRESENT: u64 = 1 << 3;
/// The page was swapped out (`PAGE_IS_SWAPPED`).
const SWAPPED: u64 = 1 << 4;
/// The page is the kernel's zero page (`PAGE_IS_PFNZERO`).
const ZERO: u64 = 1 << 5;
/// The page is mapped by a huge entry (`PAGE_IS_HUGE`).
const HUGE: u64 = 1 << 6;

/// Write-protects the found pages (`PM_SCAN_WP_MATCHING`).
const PROTECT: u64 = 1 << 0;
/// Refuses ranges whose pages cannot be write-protected, instead of skipping them (`PM_SCAN_CHECK_WPASYNC`).
const CHECK: u64 = 1 << 1;

/// The maximum number of runs for one call. Linux (6.7 to 6.18) scans in steps of this many runs. With room for more,
/// it may report the end of the step before the last instead of its real end, and the next call would report the runs
/// after it again (`do_pagemap_scan` in fs/proc/task_mmu.c sets `walk_end` only once).
pub const MOST_RUNS: usize = 512;

/// A run of pages with the same categories: `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PageRun {
    /// The first address.
    pub start: u64,
    /// The first address after the run.
    pub end: u64,
    /// Categories that all pages of the run have (`PAGE_IS_…`), limited to those that the scan distinguishes.
    pub categories: u64,
}

impl PageRun {
    /// Whether the pages belong to the file, if the scan distinguishes that.
    pub fn is_file(&self) -> bool {
        self.categories & FILE != 0
    }

    /// Whether huge entries map the pages, if the scan distinguishes that.
    pub fn is_huge(&self) -> bool {
        self.categories & HUGE != 0
    }

    /// Whether the pages may have been written since they were marked ([`Scan::PRESENT_AND_MARK`]). This includes pages
    /// that seem to be swapped out: a marked page that was dropped (`MADV_DONTNEED`) leaves the same entry in the page
    /// table.
    pub fn is_written(&self) -> bool {
        self.categories & (WRITTEN | SWAPPED) != 0
    }

    /// Sets the answer of [`PageRun::is_written`].
    pub fn set_written(&mut self, is_written: bool) {
        self.categories = if is_written { WRITTEN } else { 0 };
    }
}

/// The condition that selects pages: `struct pm_scan_arg`. The kernel first inverts the categories in
/// `category_inverted`. A page then needs all of `category_mask`, and one of `category_anyof_mask` unless that is
/// empty.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

impl Scan {
    /// Pages that huge entries map.
    pub const HUGE: Scan = Scan::of(0, HUGE, 0, HUGE);

    /// Pages in memory that are not huge.
    pub const BASE: Scan = Scan::of(HUGE, HUGE | PRESENT, 0, PRESENT);

    /// Pages of a private file mapping that have been copied from the file, in memory or swapped out. (Swapped-out
    /// pages of shared memory leave no trace in a page table.) Runs report whether they were written since the last
    /// [`Scan::PRESENT_AND_MARK`].
    pub const PRIVATE: Scan = Scan::of(FILE, FILE, PRESENT | SWAPPED, WRITTEN | SWAPPED);

    /// Pages that are not huge, in memory or swapped out, and have no mark of [`Scan::PRESENT_AND_MARK`], whether
    /// private or not. This is faster than [`Scan::PRIVATE`], for which the kernel inspects each page.
    pub const UNMARKED: Scan = Scan::of(HUGE, HUGE | WRITTEN, PRESENT | SWAPPED, WRITTEN);

    /// Like [`Scan::UNMARKED`], and marks the pages [where writes are tracked](Scan::where_tracked).
    pub const UNMARKED_AND_MARK: Scan = Scan::UNMARKED.and_protect();

    /// Pages that are not huge, in memory or swapped out; the scan marks them as not written. Runs report whether the
    /// pages belong to the file, and whether they were written since the last mark. Pages get marks
    /// [where writes are tracked](Scan::where_tracked).
    pub const PRESENT_AND_MARK: Scan = Scan::of(HUGE, HUGE, PRESENT | SWAPPED, FILE | WRITTEN | SWAPPED).and_protect();

    /// Pages in memory except the kernel's zero page. Runs report whether they are huge.
    pub const PRESENT: Scan = Scan::of(ZERO, ZERO | PRESENT, 0, PRESENT | HUGE);

    /// Pages that were written since they were write-protected
    /// ([`UFFD_FEATURE_WP_ASYNC`](crate::userfaultfd::UFFD_FEATURE_WP_ASYNC)).
    pub const WRITTEN: Scan = Scan::of(0, WRITTEN, 0, WRITTEN);

    const fn of(category_inverted: u64, category_mask: u64, category_anyof_mask: u64, return_mask: u64) -> Scan {
        Scan {
            size: size_of::<Scan>() as u64,
            flags: 0,
            start: 0,
            end: 0,
            walk_end: 0,
            vec: 0,
            vec_len: 0,
            max_pages: 0,
            category_inverted,
            category_mask,
            category_anyof_mask,
            return_mask,
        }
    }

    /// Write-protects the found pages.
    pub const fn and_protect(self) -> Scan {
        Scan { flags: PROTECT, ..self }
    }

    /// Refuses ranges that are not registered with
    /// [`UFFD_FEATURE_WP_ASYNC`](crate::userfaultfd::UFFD_FEATURE_WP_ASYNC), with `EPERM`. The pages of such a range
    /// count as written up to Linux 6.18, and as not written in Linux 7.3.
    pub const fn where_tracked(self) -> Scan {
        Scan { flags: self.flags | CHECK, ..self }
    }
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Number of runs found.
    pub runs: usize,
    /// The address up to which the scan went.
    pub end: usize,
}

/// `/proc/thread-self/pagemap`. If the program has closed the descriptor or replaced its file, each call opens the file
/// again.
#[derive(Debug)]
pub struct Pagemap(pub Descriptor);

impl Pagemap {
    /// Opens the file.
    ///
    /// # Errors
    /// The process has no free descriptor, or no `/proc`.
    pub fn open() -> Result<Pagemap, Errno> {
        Ok(Pagemap(Descriptor::keep_of_proc(PATH, OFlags::RDONLY)?))
    }

    /// Finds pages in address order until the scan's page limit is reached or `found` is full. With an empty `found` it
    /// only write-protects. Takes 2 us for 2 MiB with some base pages, and 50 us for 1 GiB of huge pages; meanwhile the
    /// mappings of the process cannot change.
    ///
    /// # Errors
    /// `ENOTTY` before Linux 6.7.
    pub fn scan(&self, range: &Range<usize>, wanted: Scan, found: &mut [PageRun]) -> Result<Scanned, Errno> {
        let mut again = None;
        scan(self.0.get_or_open(&mut again, PATH, OFlags::RDONLY)?, range, wanted, found)
    }
}

/// Finds the pages of `range` in the process of `file`, an open `/proc/PID/pagemap`, and stops when `found` is full.
///
/// # Errors
/// `ENOTTY` before Linux 6.7.
pub fn scan(file: BorrowedFd<'_>, range: &Range<usize>, wanted: Scan, found: &mut [PageRun]) -> Result<Scanned, Errno> {
    let mut scan = wanted;
    (scan.start, scan.end) = (range.start as u64, range.end as u64);
    scan.vec = if found.is_empty() { 0 } else { found.as_mut_ptr().expose_provenance() as u64 };
    scan.vec_len = found.len() as u64;
    // SAFETY: the argument and the vector in it have the lengths that the argument states. The call writes only to
    // them, and changes no bytes of mappings.
    let runs = unsafe { ioctl(file, PAGEMAP_SCAN, &mut scan) }?;
    Ok(Scanned { runs, end: scan.walk_end as usize })
}

#[cfg(test)]
mod tests {
    use std::{println, vec};

    use super::*;
    use crate::PAGE;

    #[test]
    fn the_ioctl_number_equals_the_kernels() {
        assert_eq!((PAGEMAP_SCAN, size_of::<PageRun>()), (0xc060_6610, 24));
    }

    #[test]
    fn present_pages_are_found_in_address_order() {
        const PAGES: usize = 64;
        let mut memory = vec![0_u8; 2 * PAGES * PAGE];
        let start = memory.as_ptr().addr().next_multiple_of(PAGE);
        let range = start..start + PAGES * PAGE;
        memory.fill(1);
        let pagemap = Pagemap::open().unwrap();
        let mut found = [PageRun::default(); PAGES];
        let Ok(scanned) = pagemap.scan(&range, Scan::BASE, &mut found) else {
            return println!("skipped: this kernel has no PAGEMAP_SCAN (Linux 6.7)");
        };
        let pages = found[..scanned.runs].iter().map(|run| (run.end - run.start) as usize / PAGE).sum::<usize>();
        // An allocator that uses huge pages leaves no base pages here.
        let huge = pagemap.scan(&range, Scan::HUGE, &mut found).unwrap();
        assert_eq!((pages == PAGES, scanned.end), (huge.runs == 0, range.end));
        assert_eq!(pagemap.scan(&range, Scan::BASE, &mut []).map(|scanned| scanned.runs), Ok(0));
        assert!(memory.iter().all(|&byte| byte == 1));
    }
}
