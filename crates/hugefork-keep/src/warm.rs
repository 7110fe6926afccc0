//! A huge page that the keeper prepares before a collapse needs one.
//!
//! `MADV_COLLAPSE` copies into a new huge page while it holds the lock of the address space, so
//! threads of the program that have a page fault wait for the end of the copy. In a virtual machine
//! the first touch of memory takes milliseconds, since the host has to allocate that memory (4.3 ms
//! for 2 MiB on the machine described in docs/run.md; 0.2 ms for a page touched before). So right
//! before a collapse the keeper touches a huge page of its own and frees it. The kernel caches
//! freed pages for the processor that freed them, and uses the page just freed for the collapse.

use std::ffi::c_void;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::units::HUGE_PAGE;

/// A range of addresses that contains one aligned huge page.
#[derive(Debug)]
pub(crate) struct WarmPage {
    mapped: *mut c_void,
}

impl WarmPage {
    pub(crate) fn new() -> Result<WarmPage, Errno> {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), 2 * HUGE_PAGE, rights, flags)? };
        let warm = WarmPage { mapped };
        // SAFETY: this value owns the memory, and its contents are not needed.
        unsafe { madvise(warm.page(), HUGE_PAGE, Advice::LinuxHugepage)? };
        Ok(warm)
    }

    /// Allocates a huge page, which the kernel clears, and frees it.
    pub(crate) fn make_ready(&self) {
        let page = self.page();
        // SAFETY: this value owns the memory, and its contents are not needed.
        unsafe {
            page.cast::<u8>().write_volatile(1);
            let _ = madvise(page, HUGE_PAGE, Advice::LinuxDontNeed);
        }
    }

    fn page(&self) -> *mut c_void {
        self.mapped.map_addr(|address| address.next_multiple_of(HUGE_PAGE))
    }
}

impl Drop for WarmPage {
    fn drop(&mut self) {
        // SAFETY: this value owns the memory.
        let _ = unsafe { munmap(self.mapped, 2 * HUGE_PAGE) };
    }
}
