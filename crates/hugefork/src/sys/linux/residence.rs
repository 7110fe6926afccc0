//! Finds the pages of a shmem file that have memory: by address (`mincore(2)`), which needs no descriptor, or by file
//! (`lseek(2)`).
//!
//! By address, the kernel says whether a page is in memory. A page that was swapped out is not, and yet is no page of
//! zeros. So on a machine with swap, every page counts as one with memory. Some lists of allowed system calls lack
//! `mincore` (`SystemCallFilter=@system-service`, which Debian's Redis has), and such a filter ends the process that
//! calls it. So a filtered thread does not call it. A program's own thread may run this code (`hugefork run --pool`),
//! so it does not change `errno`.

use core::mem::MaybeUninit;
use core::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use syscalls::{Sysno, syscall};

use super::advice::is_filtered;
use crate::units::BASE_PAGE;

/// The number of pages in one query: 2 MiB.
const AT_ONCE: usize = 512;

/// The first run of bytes with memory in `range`, whose offsets count from the address `base`, where the file is
/// mapped. The kernel answers only the owner of the file, and processes that may write to it; to others, all pages seem
/// to have memory.
pub(super) fn next(base: usize, range: Range<usize>) -> Option<Range<usize>> {
    if is_filtered() {
        return (!range.is_empty()).then_some(range);
    }
    let mut start = None;
    for at in (range.start / BASE_PAGE * BASE_PAGE..range.end).step_by(AT_ONCE * BASE_PAGE) {
        let len = (AT_ONCE * BASE_PAGE).min(range.end - at);
        let Some(pages) = look(base + at, len) else { return (!range.is_empty()).then_some(range) };
        for (nth, page) in pages[..len.div_ceil(BASE_PAGE)].iter().enumerate() {
            let here = range.start.max(at + nth * BASE_PAGE);
            match (start, page & 1 == 1) {
                (None, true) => start = Some(here),
                (Some(start), false) => return Some(start..here),
                (Some(_), true) | (None, false) => {}
            }
        }
    }
    start.map(|start| start..range.end)
}

/// The first run of bytes with memory in `range`, by file.
pub(super) fn next_of_file(file: BorrowedFd<'_>, range: Range<usize>) -> Option<Range<usize>> {
    let found = |place: SeekFrom| seek(file, place).map(|offset| offset as usize);
    match found(SeekFrom::Data(range.start as u64)) {
        Ok(start) if start >= range.end => None,
        Ok(start) => {
            let end = found(SeekFrom::Hole(start as u64)).unwrap_or(range.end);
            Some(start..end.min(range.end))
        }
        Err(Errno::NXIO) => None,
        Err(_) => (!range.is_empty()).then_some(range),
    }
}

/// How many bytes of `range`, whose offsets count from `base`, are in memory. `None` if the kernel does not say.
pub(super) fn bytes(base: usize, range: Range<usize>) -> Option<usize> {
    if is_filtered() {
        return None;
    }
    let mut bytes = 0;
    for at in range.clone().step_by(AT_ONCE * BASE_PAGE) {
        let len = (AT_ONCE * BASE_PAGE).min(range.end - at);
        let pages = in_memory(base + at, len)?;
        bytes += pages[..len.div_ceil(BASE_PAGE)].iter().filter(|page| **page & 1 == 1).count() * BASE_PAGE;
    }
    Some(bytes)
}

/// As [`in_memory`], but also `None` if pages may have been swapped out.
fn look(at: usize, len: usize) -> Option<[u8; AT_ONCE]> {
    let pages = in_memory(at, len);
    // This check comes after the query: if a page was swapped out before the query, the machine has swap by now.
    if has_swap() { None } else { pages }
}

/// For each page, whether it is in memory, in the lowest bit.
fn in_memory(at: usize, len: usize) -> Option<[u8; AT_ONCE]> {
    debug_assert!(len <= AT_ONCE * BASE_PAGE);
    let mut pages = [0; AT_ONCE];
    // SAFETY: the kernel writes a byte for each page.
    unsafe { syscall!(Sysno::mincore, at, len, pages.as_mut_ptr()) }.ok().map(|_| pages)
}

fn has_swap() -> bool {
    let mut machine = MaybeUninit::<libc::sysinfo>::uninit();
    // SAFETY: the kernel fills it.
    let told = unsafe { syscall!(Sysno::sysinfo, machine.as_mut_ptr()) }.is_ok();
    // SAFETY: the kernel says that it has filled it.
    !told || unsafe { machine.assume_init() }.totalswap > 0
}

#[cfg(test)]
mod tests {
    use crate::sys::Sys;
    use crate::sys::linux::memory::{CoreDump, Exports, Kind, Linux};
    use crate::sys::program::ProgramSys;
    use crate::units::{BASE_PAGE, HUGE_PAGE};

    #[test]
    fn runs_of_pages_that_have_memory_are_found_by_address() {
        const LEN: usize = 4 * HUGE_PAGE;
        let memory = Linux::new(Kind::ShmemBase, LEN, CoreDump::LeftOut, Exports::No).unwrap().with_children().unwrap();
        let touched = [0..3, 511..514, 600..601, 1024..1536];
        for pages in &touched {
            memory.obtain(pages.start * BASE_PAGE, pages.len() * BASE_PAGE, 0).unwrap();
        }
        let (mut found, mut rest) = (Vec::new(), 0..LEN);
        while let Some(run) = memory.next_memory(rest.clone()) {
            found.push(run.start / BASE_PAGE..run.end / BASE_PAGE);
            rest.start = run.end;
        }
        if super::has_swap() {
            assert_eq!((found.len(), &found[0]), (1, &(0..LEN / BASE_PAGE)));
            return println!("skipped: the machine has swap, so every page counts");
        }
        assert_eq!(found, touched);
        assert_eq!(memory.bytes(), Some(touched.iter().map(|pages| pages.len() * BASE_PAGE).sum()));
        assert!(memory.is_full(2 * HUGE_PAGE) && !memory.is_full(0) && !memory.is_full(3 * HUGE_PAGE));
        assert_eq!(memory.next_memory(BASE_PAGE + 7..2 * BASE_PAGE), Some(BASE_PAGE + 7..2 * BASE_PAGE));
        // SAFETY: no code uses it.
        unsafe { memory.punch(BASE_PAGE, BASE_PAGE) }.unwrap();
        assert_eq!(memory.next_memory(0..HUGE_PAGE), Some(0..BASE_PAGE));
    }
}
