//! A huge page that is ready before a collapse wants one.
//!
//! `MADV_COLLAPSE` copies into a new huge page while it has the lock of the address space, so threads of the program
//! that have a page fault wait for it. In a virtual machine the first touch of memory takes milliseconds, since the
//! host has to find it (4.3 ms for 2 MiB on the machine that docs/run.md names, beside 0.2 ms for a page that was
//! touched). So the keeper touches a huge page of its own and gives it back right before: the kernel keeps pages that
//! were just freed at hand for the processor that freed them, and gives that page to the collapse.

use std::ffi::c_void;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::units::HUGE_PAGE;

/// Addresses for one huge page.
#[derive(Debug)]
pub(crate) struct WarmPage {
    mapped: *mut c_void,
}

impl WarmPage {
    pub(crate) fn new() -> Result<WarmPage, Errno> {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: new memory, at a place of the kernel's choice.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), 2 * HUGE_PAGE, rights, flags)? };
        let warm = WarmPage { mapped };
        // SAFETY: the memory is this value's, and has no contents that anybody needs.
        unsafe { madvise(warm.page(), HUGE_PAGE, Advice::LinuxHugepage)? };
        Ok(warm)
    }

    /// Takes a huge page from the kernel, which clears it, and gives it back.
    pub(crate) fn make_ready(&self) {
        let page = self.page();
        // SAFETY: the memory is this value's; nobody needs its contents.
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
        // SAFETY: the memory is this value's.
        let _ = unsafe { munmap(self.mapped, 2 * HUGE_PAGE) };
    }
}
