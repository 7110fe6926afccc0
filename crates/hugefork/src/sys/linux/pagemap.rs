//! How much of a mapping is in huge pages, by `PAGEMAP_SCAN` (Linux 6.7). This reads one mapping,
//! while `smaps` lists all mappings of the process, and regions may have tens of thousands.

use hugefork_linux::pagemap_scan::{Pagemap, Scan};

use crate::sys::PageRun;

/// How many of these `len` bytes huge page-table entries map; `None` if the kernel does not say. It takes 0.04 ms a GiB
/// of huge pages and 1.6 ms a GiB of base pages. Meanwhile no mapping of the process can change. Not for the fault
/// handler.
pub(crate) fn huge_bytes(at: usize, len: usize) -> Option<usize> {
    let pagemap = Pagemap::open().ok()?;
    let mut found = [PageRun::default(); 128];
    let mut huge = 0;
    let (mut start, end) = (at, at + len);
    while start < end {
        let scanned = pagemap.scan(&(start..end), Scan::HUGE, &mut found).ok()?;
        huge += found.iter().take(scanned.runs).map(|run| (run.end - run.start) as usize).sum::<usize>();
        if scanned.end <= start {
            return None;
        }
        start = scanned.end;
    }
    Some(huge)
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
        // SAFETY: the byte lies within the mapping.
        unsafe { at.cast::<u8>().write_volatile(1) };
        assert_eq!(huge_bytes(at.addr(), len), Some(0), "a base page");
        // SAFETY: as above. Reads get the huge zero page, which takes no memory.
        unsafe { madvise(at, len, Advice::LinuxHugepage) }.unwrap();
        let first = at.addr().next_multiple_of(HUGE_PAGE) - at.addr();
        // The test touches every other huge page, which makes more runs than one call reports.
        let read: Vec<usize> = (first..len - HUGE_PAGE).step_by(2 * HUGE_PAGE).skip(1).collect();
        for &offset in &read {
            // SAFETY: the byte lies within the mapping.
            unsafe { at.cast::<u8>().add(offset).read_volatile() };
        }
        match huge_bytes(at.addr(), len) {
            Some(0) => println!("skipped: no huge zero page here"),
            huge => assert_eq!(huge, Some(read.len() * HUGE_PAGE)),
        }
        // SAFETY: the mapping is ours, and nothing uses it any more.
        unsafe { munmap(at, len) }.unwrap();
    }
}
