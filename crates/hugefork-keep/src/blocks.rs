//! Finds the 2 MiB blocks of another process that are worth a collapse.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use hugefork_linux::pagemap_scan::{self, MOST_RUNS, PageRun, Scan};
use rustix::io::Errno;

use crate::units::{BASE_PAGE, HUGE_PAGE};

/// Number of base pages that a block must have for a collapse. A collapse adds the missing pages, at most 2 % of the
/// block's 512, as memory that the program did not use before.
pub const MIN_PAGES: usize = 502;

/// Bytes per scan call. The kernel holds the lock of the scanned address space during a call, some 0.3 ms.
const MAX_SCAN_BYTES: usize = 64 << 20;

/// Bit of an entry of `/proc/PID/pagemap`: only one process maps the page.
const EXCLUSIVE: u64 = 1 << 56;

/// Bit of an entry of `/proc/PID/pagemap`: the page is in memory.
const PRESENT: u64 = 1 << 63;

/// The result of a scan of a process's anonymous memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Survey {
    pub(crate) huge_bytes: u64,
    /// Bytes in base pages. A fork copies a page-table entry for each base page.
    pub(crate) base_bytes: u64,
    /// The addresses of blocks with at least [`MIN_PAGES`] base pages.
    pub(crate) dense: Vec<usize>,
}

impl Survey {
    /// Notes that a dense block is huge now.
    pub(crate) fn note_huge(&mut self) {
        self.huge_bytes += HUGE_PAGE as u64;
        self.base_bytes = self.base_bytes.saturating_sub(HUGE_PAGE as u64);
    }
}

/// The page table of another process. After an `exec` of that process it is empty.
#[derive(Debug)]
pub(crate) struct Pages(File);

/// Whether a block should be collapsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worth {
    /// The block is dense, and only this process maps its pages.
    Dense,
    /// The block is huge already: the kernel collapses some by itself.
    Huge,
    /// The block is no longer dense.
    NotDense,
    /// Another process maps a page of the block.
    Shared,
}

impl Pages {
    pub(crate) fn open(pid: u32) -> io::Result<Pages> {
        File::open(format!("/proc/{pid}/pagemap")).map(Pages)
    }

    /// Scans all pages of these ranges of anonymous memory; each range is whole blocks.
    pub(crate) fn survey(&self, ranges: &[Range<usize>]) -> Result<Survey, Errno> {
        let mut survey = Survey::default();
        for range in ranges {
            let mut count = vec![0_u16; range.len() / HUGE_PAGE];
            self.each_run(range, |run, is_huge| {
                let bytes = run.len() as u64;
                if is_huge {
                    survey.huge_bytes += bytes;
                    return;
                }
                survey.base_bytes += bytes;
                let mut at = run.start;
                while at < run.end {
                    let block = (at - range.start) / HUGE_PAGE;
                    let end = run.end.min(range.start + (block + 1) * HUGE_PAGE);
                    count[block] += ((end - at) / BASE_PAGE) as u16;
                    at = end;
                }
            })?;
            let dense = (0..count.len()).filter(|block| usize::from(count[*block]) >= MIN_PAGES);
            survey.dense.extend(dense.map(|block| range.start + block * HUGE_PAGE));
        }
        Ok(survey)
    }

    /// Checks a block right before its collapse. The check takes 60 us.
    pub(crate) fn worth(&self, block: usize) -> Result<Worth, Errno> {
        let (mut base, mut is_huge) = (0, false);
        self.each_run(&(block..block + HUGE_PAGE), |run, huge| {
            base += run.len() / BASE_PAGE;
            is_huge |= huge;
        })?;
        if is_huge {
            return Ok(Worth::Huge);
        }
        if base < MIN_PAGES {
            return Ok(Worth::NotDense);
        }
        let mut words = [0; HUGE_PAGE / BASE_PAGE * 8];
        let read = self.0.read_at(&mut words, (block / BASE_PAGE * 8) as u64);
        let read = read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let words = words[..read].chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
        // Excludes the kernel's zero page, which is present but not exclusive.
        let own = words.filter(|word| word & (PRESENT | EXCLUSIVE) == PRESENT | EXCLUSIVE).count();
        Ok(if own >= base { Worth::Dense } else { Worth::Shared })
    }

    /// Calls `found` with each run of pages in a range, and with true if the pages of the run are huge pages.
    fn each_run(&self, range: &Range<usize>, mut found: impl FnMut(Range<usize>, bool)) -> Result<(), Errno> {
        let mut runs = [PageRun::default(); MOST_RUNS];
        let mut at = range.start;
        while at < range.end {
            let part = at..range.end.min(at + MAX_SCAN_BYTES);
            let scanned = pagemap_scan::scan(self.0.as_fd(), &part, Scan::PRESENT, &mut runs)?;
            for run in &runs[..scanned.runs] {
                found(run.start as usize..run.end as usize, run.is_huge());
            }
            // A scan without progress means that the address space is gone, so the scan ends.
            at = if scanned.end > at { scanned.end } else { range.end };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maps anonymous memory of `blocks` whole blocks, in base pages.
    fn memory(blocks: usize) -> (Range<usize>, &'static mut [u8]) {
        let len = (blocks + 1) * HUGE_PAGE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            let start = libc::mmap(std::ptr::null_mut(), len, 3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            libc::madvise(start, len, libc::MADV_NOHUGEPAGE);
            start.expose_provenance().next_multiple_of(HUGE_PAGE)
        };
        // SAFETY: the range lies in the new mapping, which remains mapped.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(start), blocks * HUGE_PAGE) };
        (start..start + blocks * HUGE_PAGE, bytes)
    }

    /// This test checks `survey` and `worth` together: in two tests that run at once, the child of one test would share
    /// the memory of the other.
    #[test]
    fn worth_of_blocks() {
        dense_blocks_are_found();
        pages_that_a_child_shares_are_left_alone();
    }

    fn dense_blocks_are_found() {
        let (range, bytes) = memory(4);
        // Block 0 is full, block 1 lacks too many pages, block 2 has just enough, block 3 was only read.
        bytes[..HUGE_PAGE].fill(1);
        let some = |pages: usize| HUGE_PAGE / BASE_PAGE - pages;
        bytes[HUGE_PAGE + some(MIN_PAGES - 1) * BASE_PAGE..2 * HUGE_PAGE].fill(1);
        bytes[2 * HUGE_PAGE + some(MIN_PAGES) * BASE_PAGE..3 * HUGE_PAGE].fill(1);
        assert_eq!(bytes[3 * HUGE_PAGE..].iter().filter(|byte| **byte != 0).count(), 0);
        let pages = Pages::open(std::process::id()).unwrap();
        let survey = match pages.survey(std::slice::from_ref(&range)) {
            Err(Errno::NOTTY) => return println!("skipped: this kernel has no PAGEMAP_SCAN (Linux 6.7 has)"),
            survey => survey.unwrap(),
        };
        assert_eq!(survey.dense, [range.start, range.start + 2 * HUGE_PAGE]);
        let counted = HUGE_PAGE / BASE_PAGE + 2 * MIN_PAGES - 1;
        assert_eq!((survey.huge_bytes, survey.base_bytes), (0, (counted * BASE_PAGE) as u64));
        let worth = [0, 1, 2, 3].map(|block| pages.worth(range.start + block * HUGE_PAGE).unwrap());
        assert_eq!(worth, [Worth::Dense, Worth::NotDense, Worth::Dense, Worth::NotDense]);
    }

    fn pages_that_a_child_shares_are_left_alone() {
        let (range, bytes) = memory(2);
        bytes.fill(1);
        let pages = Pages::open(std::process::id()).unwrap();
        if pages.survey(std::slice::from_ref(&range)) == Err(Errno::NOTTY) {
            return println!("skipped: this kernel has no PAGEMAP_SCAN (Linux 6.7 has)");
        }
        let worth = || [0, 1].map(|block| pages.worth(range.start + block * HUGE_PAGE).unwrap());
        assert_eq!(worth(), [Worth::Dense; 2]);
        // SAFETY: the child calls only async-signal-safe functions.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: the call only waits, until the parent kills the child.
                unsafe { libc::pause() };
            }
        }
        assert_eq!(worth(), [Worth::Shared; 2]);
        // Pages written since the fork belong to the parent alone.
        bytes[..HUGE_PAGE].fill(2);
        assert_eq!(worth(), [Worth::Dense, Worth::Shared]);
        // SAFETY: the child from above; no other code waits for it.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!(worth(), [Worth::Dense; 2]);
    }
}
