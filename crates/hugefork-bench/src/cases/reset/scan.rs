//! `PAGEMAP_SCAN` (Linux 6.7) tells which pages were written and protects them again in one call, if writes to them are
//! followed by `userfaultfd(2)` without anybody who handles faults (`UFFD_FEATURE_WP_ASYNC`).
//!
//! The area is of 4 KiB pages: of a huge one the kernel tells no single pages.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use rustix::mm::{UserfaultfdFlags, userfaultfd};

use super::rounds::{BIAS, PAGE, ResetSetup, Resettable, word_of, write_words};
use crate::error::BenchError;
use crate::memory::kernel_memory::{KernelMemory, PageKind};

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
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

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

const fn request(direction: u32, kind: u8, number: u32, size: usize) -> libc::Ioctl {
    (direction << 30 | (size as u32) << 16 | (kind as u32) << 8 | number) as libc::Ioctl
}

const UFFDIO_API: libc::Ioctl = request(3, 0xAA, 0x3F, size_of::<Api>());
const UFFDIO_REGISTER: libc::Ioctl = request(3, 0xAA, 0x00, size_of::<Register>());
const PAGEMAP_SCAN: libc::Ioctl = request(3, b'f', 16, size_of::<ScanArg>());
const UFFD_API: u64 = 0xAA;
const UFFD_FEATURE_PAGEFAULT_FLAG_WP: u64 = 1;
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;
const UFFDIO_REGISTER_MODE_WP: u64 = 2;
const UFFD_USER_MODE_ONLY: u32 = 1;
const PM_SCAN_WP_MATCHING: u64 = 1;
const PAGE_IS_WRITTEN: u64 = 1 << 1;

/// So many runs of pages are asked for at once. With room for more, Linux 6.18 may not say where it has stopped, and
/// would look at the rest twice.
const RUNS: usize = 512;

/// An area whose writes are followed, and a copy of all of it.
pub(super) struct Scanned {
    // The descriptor before the memory: fields drop in order.
    _userfault: OwnedFd,
    pagemap: File,
    runs: Vec<PageRegion>,
    area: KernelMemory,
    copy: KernelMemory,
}

impl Scanned {
    pub(super) fn open(setup: ResetSetup) -> Result<Scanned, BenchError> {
        let area = KernelMemory::written(PageKind::Base, setup.size, BIAS)?;
        let copy = KernelMemory::written(PageKind::Thp, setup.size, BIAS)?;
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
        // SAFETY: makes a descriptor and touches no memory.
        let userfault = unsafe { userfaultfd(flags) }.map_err(|errno| lacks(errno.into()))?;
        let features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_ASYNC;
        call(&userfault, UFFDIO_API, &mut Api { api: UFFD_API, features, ioctls: 0 }).map_err(lacks)?;
        let (start, len) = (area.as_ptr() as u64, area.len() as u64);
        let mut register = Register { start, len, mode: UFFDIO_REGISTER_MODE_WP, ioctls: 0 };
        call(&userfault, UFFDIO_REGISTER, &mut register).map_err(lacks)?;
        let pagemap = File::open("/proc/self/pagemap").map_err(lacks)?;
        let runs = vec![PageRegion::default(); RUNS];
        let mut scanned = Scanned { _userfault: userfault, pagemap, runs, area, copy };
        // All of it counts as written at first.
        scanned.reset()?;
        Ok(scanned)
    }

    /// Copies the pages of these runs back.
    fn put_back(&self, runs: &[PageRegion]) {
        for run in runs {
            let (start, len) = (run.start as usize - self.area.as_ptr().addr(), (run.end - run.start) as usize);
            debug_assert!(start.is_multiple_of(PAGE) && start + len <= self.area.len());
            // SAFETY: pages of two mappings of our own.
            unsafe { ptr::copy_nonoverlapping(self.copy.as_ptr().add(start), self.area.as_ptr().add(start), len) };
        }
    }

    /// What is asked of pages that were written from `start` on.
    fn wanted(&self, start: u64) -> ScanArg {
        ScanArg {
            size: size_of::<ScanArg>() as u64,
            start,
            end: (self.area.as_ptr().addr() + self.area.len()) as u64,
            category_mask: PAGE_IS_WRITTEN,
            ..ScanArg::default()
        }
    }

    /// Tells of pages that were written from `start` on. Returns how many runs there are, and where it has stopped.
    fn find(&mut self, start: u64) -> io::Result<(usize, u64)> {
        let (vec, vec_len) = (self.runs.as_mut_ptr().expose_provenance() as u64, self.runs.len() as u64);
        let mut arg = ScanArg { vec, vec_len, return_mask: PAGE_IS_WRITTEN, ..self.wanted(start) };
        let found = call(&self.pagemap, PAGEMAP_SCAN, &mut arg)?;
        Ok((found, arg.walk_end))
    }

    /// Protects all pages that were written.
    fn protect(&self) -> io::Result<()> {
        let mut arg = ScanArg { flags: PM_SCAN_WP_MATCHING, ..self.wanted(self.area.as_ptr().addr() as u64) };
        call(&self.pagemap, PAGEMAP_SCAN, &mut arg).map(|_| ())
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
        let first = self.area.as_ptr().addr() as u64;
        let mut start = first;
        while start < first + self.area.len() as u64 {
            let (found, end) = self.find(start).map_err(lacks)?;
            self.put_back(&self.runs[..found]);
            start = end;
        }
        self.protect().map_err(lacks)
    }

    fn word(&self, page: usize) -> u64 {
        // SAFETY: our own mapping.
        unsafe { word_of(self.area.as_ptr(), page) }
    }
}

fn call<T>(fd: &impl AsRawFd, request: libc::Ioctl, argument: &mut T) -> io::Result<usize> {
    // SAFETY: the argument is the structure that the request takes, with a vector of the length that it gives. None of
    // the requests changes bytes of mappings.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), request, ptr::from_mut(argument)) };
    usize::try_from(answer).map_err(|_| io::Error::last_os_error())
}

fn lacks(error: io::Error) -> BenchError {
    BenchError::CannotRun(format!("this kernel does not follow writes ({error}): it takes Linux 6.7"))
}
