//! How much of a mapping is huge, and which pages of a private mapping are private, by `PAGEMAP_SCAN` (Linux 6.7). It
//! looks at one mapping. `smaps` goes through all mappings of the process, of which regions may have tens of thousands.

use std::ffi::c_ulong;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::named;
use crate::sys::{PageRun, SystemError};
use crate::units::BASE_PAGE;

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

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: c_ulong = 3 << 30 | (size_of::<ScanArg>() as c_ulong) << 16 | (b'f' as c_ulong) << 8 | 16;
const PAGE_IS_HUGE: u64 = 1 << 6;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;

/// How many of these `len` bytes are mapped by huge entries; `None` if the kernel cannot tell. It takes 0.04 ms a GiB
/// of huge pages and 1.6 ms a GiB of base pages. The mappings of the process cannot be changed meanwhile. Not for the
/// fault handler.
pub(crate) fn huge_bytes(at: usize, len: usize) -> Option<usize> {
    let file = File::open("/proc/thread-self/pagemap").ok()?;
    let mut found = [PageRun::default(); 128];
    let mut huge = 0;
    let (mut start, end) = (at as u64, (at + len) as u64);
    while start < end {
        let wanted = ScanArg { category_mask: PAGE_IS_HUGE, return_mask: PAGE_IS_HUGE, ..ScanArg::default() };
        let (count, walked) = scan(file.as_fd(), start..end, &mut found, wanted).ok()?;
        huge += found.iter().take(count).map(|region| (region.end - region.start) as usize).sum::<usize>();
        if walked <= start {
            return None;
        }
        start = walked;
    }
    Some(huge)
}

/// The private pages of a private file mapping at these addresses, in order, until `runs` is full: those that are not
/// the file's, in memory or swapped out. Returns how many runs there are, and up to where it has looked. It takes 2 us
/// for 2 MiB with some private pages, and 50 us for 1 GiB of huge pages without any. The fault handler calls this.
pub(super) fn private_pages(
    pagemap: BorrowedFd<'_>,
    addresses: Range<u64>,
    runs: &mut [PageRun],
) -> Result<(usize, u64), SystemError> {
    let wanted = ScanArg {
        // Inverted: what is not of a file. Shared memory that is swapped out leaves no trace in a page table.
        category_inverted: PAGE_IS_FILE,
        category_mask: PAGE_IS_FILE,
        category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        return_mask: PAGE_IS_FILE,
        ..ScanArg::default()
    };
    scan(pagemap, addresses, runs, wanted)
}

/// Whether there are `MANY` base pages or more at these addresses, as far as the kernel can tell. It takes some 2 us
/// for 16 MiB of huge pages.
pub(super) fn are_base_pages<const MANY: usize>(pagemap: BorrowedFd<'_>, addresses: Range<u64>) -> bool {
    let wanted = ScanArg {
        category_inverted: PAGE_IS_HUGE,
        category_mask: PAGE_IS_HUGE | PAGE_IS_PRESENT,
        return_mask: PAGE_IS_PRESENT,
        max_pages: MANY as u64,
        ..ScanArg::default()
    };
    let mut runs = [PageRun::default(); MANY];
    let Ok((count, _)) = scan(pagemap, addresses, &mut runs, wanted) else { return false };
    let found = runs[..count].iter().map(|run| (run.end - run.start) as usize / BASE_PAGE).sum::<usize>();
    found >= MANY
}

/// One call. `wanted` says which pages.
fn scan(
    pagemap: BorrowedFd<'_>,
    addresses: Range<u64>,
    runs: &mut [PageRun],
    wanted: ScanArg,
) -> Result<(usize, u64), SystemError> {
    let mut arg = ScanArg {
        size: size_of::<ScanArg>() as u64,
        start: addresses.start,
        end: addresses.end,
        vec: runs.as_mut_ptr().expose_provenance() as u64,
        vec_len: runs.len() as u64,
        ..wanted
    };
    // SAFETY: the argument and the vector that it names have the lengths that it gives. The call writes only to them
    // and changes no mapping.
    let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut arg) };
    match usize::try_from(count) {
        Ok(count) => Ok((count, arg.walk_end)),
        Err(_) => named("ioctl(PAGEMAP_SCAN)", Err(super::last_error())),
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    use super::*;
    use crate::units::HUGE_PAGE;

    #[test]
    fn huge_pages_are_counted_and_others_are_not() {
        const PAGES: usize = 300;
        let len = (PAGES + 1) * HUGE_PAGE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping touches nothing that exists.
        let map = unsafe { mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let at = map.unwrap();
        let Some(none) = huge_bytes(at.addr(), len) else {
            println!("skipped: this kernel has no PAGEMAP_SCAN (Linux 6.7)");
            return;
        };
        assert_eq!(none, 0);
        // SAFETY: this is the mapping that was just made.
        unsafe { madvise(at, len, Advice::LinuxNoHugepage) }.unwrap();
        // SAFETY: within the mapping.
        unsafe { at.cast::<u8>().write_volatile(1) };
        assert_eq!(huge_bytes(at.addr(), len), Some(0), "a base page");
        // SAFETY: as above. Reads get the huge zero page, which takes no memory.
        unsafe { madvise(at, len, Advice::LinuxHugepage) }.unwrap();
        let first = at.addr().next_multiple_of(HUGE_PAGE) - at.addr();
        // Every other one, which makes more runs than one call reports.
        let read: Vec<usize> = (first..len - HUGE_PAGE).step_by(2 * HUGE_PAGE).skip(1).collect();
        for &offset in &read {
            // SAFETY: within the mapping.
            unsafe { at.cast::<u8>().add(offset).read_volatile() };
        }
        match huge_bytes(at.addr(), len) {
            Some(0) => println!("skipped: no huge zero page here"),
            huge => assert_eq!(huge, Some(read.len() * HUGE_PAGE)),
        }
        // SAFETY: the mapping is ours, and nobody uses it any more.
        unsafe { munmap(at, len) }.unwrap();
    }
    #[test]
    fn so_many_base_pages_are_found_and_huge_ones_are_not() {
        const MANY: usize = 32;
        let len = 2 * HUGE_PAGE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping touches nothing that exists.
        let map = unsafe { mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let at = map.unwrap();
        // SAFETY: this is the mapping that was just made.
        unsafe { madvise(at, len, Advice::LinuxNoHugepage) }.unwrap();
        let file = File::open("/proc/self/pagemap").unwrap();
        let are_many = || are_base_pages::<MANY>(file.as_fd(), at.addr() as u64..(at.addr() + len) as u64);
        for nth in 0..MANY {
            assert!(!are_many());
            // SAFETY: within the mapping.
            unsafe { at.cast::<u8>().add(3 * nth * BASE_PAGE).write_volatile(1) };
        }
        match huge_bytes(at.addr(), len) {
            None => println!("skipped: this kernel has no PAGEMAP_SCAN (Linux 6.7)"),
            Some(_) => assert!(are_many()),
        }
        // SAFETY: as above. What is there goes, and reads get the huge zero page.
        unsafe { madvise(at, len, Advice::LinuxDontNeed).and_then(|()| madvise(at, len, Advice::LinuxHugepage)) }
            .unwrap();
        let huge = at.addr().next_multiple_of(HUGE_PAGE) - at.addr();
        // SAFETY: within the mapping.
        unsafe { at.cast::<u8>().add(huge).read_volatile() };
        assert!(!are_many());
        // SAFETY: the mapping is ours, and nobody uses it any more.
        unsafe { munmap(at, len) }.unwrap();
    }
}
