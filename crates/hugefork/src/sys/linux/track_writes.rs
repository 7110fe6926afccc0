//! Tracks writes: finds the private pages that were written since the last scan, without reading their bytes.
//!
//! The range is registered with a userfaultfd that no thread reads. With `UFFD_FEATURE_WP_ASYNC` (Linux 6.7) the kernel
//! lets a writer go on at once, and removes the mark that a scan has put on the page
//! ([`Scan::PRESENT_AND_MARK`](hugefork_linux::pagemap_scan::Scan::PRESENT_AND_MARK)). Any process may do that. A page
//! that loses its mark otherwise, because the address shows other memory or the page was moved, counts as written.
//!
//! Before Linux 6.14 a page kept its mark when it was moved to a place where writes do not remove it. So hugefork does
//! not track writes on those kernels.

use hugefork_linux::userfaultfd::{
    Faults, UFFD_FEATURE_PAGEFAULT_FLAG_WP, UFFD_FEATURE_WP_ASYNC, UFFD_FEATURE_WP_HUGETLBFS_SHMEM, Userfaultfd,
};

use super::settings;

/// The first kernel that removes marks from moved pages.
const FIRST: (u32, u32) = (6, 14);

/// Opens the userfaultfd that tracks writes; `None` if the kernel cannot track them.
pub(crate) fn open() -> Option<Userfaultfd> {
    if version_of(&settings::kernel_release())? < FIRST {
        return None;
    }
    let tracker = Userfaultfd::open(Faults::OfThreads).ok()?;
    let features = UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
    tracker.enable(features).ok()?;
    Some(tracker)
}

/// Major and minor version of a kernel release: `6.18.3-arch1` is (6, 18).
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use rustix::mm::{Advice, madvise};

    use super::*;
    use crate::sys::linux::memory::{CoreDump, Exports, Kind, Linux, pointer};
    use crate::sys::{Access, PageRun, Part, ScanFor, Scanned, Shows, Sys};
    use crate::units::BASE_PAGE;

    const PAGES: usize = 16;
    const LEN: usize = PAGES * BASE_PAGE;

    #[test]
    fn versions_are_read() {
        assert_eq!(version_of("6.18.3-arch1-1"), Some((6, 18)));
        assert_eq!(version_of("6.7"), Some((6, 7)));
        assert_eq!(version_of("5.15.0-91-generic"), Some((5, 15)));
        assert_eq!((version_of("linux"), version_of("")), (None, None));
        assert!(version_of("6.7.12") < Some(FIRST) && version_of("7.0-rc1") > Some(FIRST));
    }

    /// Scans for the private pages of the part, and marks them. Returns each page, and whether it counts as written.
    fn look(memory: &Linux, part: Part<'_>) -> Vec<(usize, bool)> {
        let (mut runs, mut found, mut at) = ([PageRun::default(); 2], Vec::new(), 0);
        while at < LEN {
            let rest = part.part(at, LEN - at);
            let Scanned { runs: count, looked_at, .. } = memory.scan(rest, ScanFor::PrivateAndMark, &mut runs).unwrap();
            for run in &runs[..count] {
                let pages = (run.start as usize..run.end as usize).step_by(BASE_PAGE);
                found.extend(pages.map(|page| ((page - part.at()) / BASE_PAGE, run.is_written())));
            }
            at += looked_at;
        }
        found
    }

    #[test]
    fn a_write_is_reported_once_and_a_page_without_its_mark_counts_as_written() {
        let memory = Linux::new(Kind::ShmemBase, LEN, CoreDump::LeftOut, Exports::No).unwrap();
        memory.obtain(0, LEN, 0).unwrap();
        let extent = memory.claim(LEN, BASE_PAGE).unwrap();
        let part = extent.part(0, LEN);
        let show = || memory.show(part, Shows::CowMapping { start: 0, access: Access::ReadWrite }).unwrap();
        // SAFETY: the range is ours, and shows a private mapping.
        let write = |page: usize| unsafe { pointer(part.at() + page * BASE_PAGE).cast::<u8>().write_volatile(1) };
        show();
        write(1);
        assert_eq!(look(&memory, part), [(1, true)], "nothing is tracked");
        if open().is_none() {
            return println!("skipped: this kernel does not track writes (Linux 6.14)");
        }
        assert!(memory.track_writes(part));
        write(3);
        let mut runs = [PageRun::default(); 2];
        assert_eq!(memory.scan(part, ScanFor::Private, &mut runs).map(|scanned| scanned.runs), Ok(2));
        assert_eq!(look(&memory, part), [(1, true), (3, true)], "nothing has marked them");
        assert_eq!(look(&memory, part), [(1, false), (3, false)]);
        [3, 4, 9].into_iter().for_each(write);
        assert!(memory.track_writes(part));
        assert_eq!(look(&memory, part), [(1, false), (3, true), (4, true), (9, true)]);
        // The right to write is taken away and given back.
        memory.protect(part, Access::Read).unwrap();
        memory.protect(part, Access::ReadWrite).unwrap();
        write(9);
        assert_eq!(look(&memory, part), [(1, false), (3, false), (4, false), (9, true)]);
        // A system call writes to the page.
        let zero = std::fs::File::open("/dev/zero").unwrap();
        let to = pointer(part.at() + 4 * BASE_PAGE).cast();
        // SAFETY: the range is ours.
        let read = unsafe { crate::sys::linux::descriptor::read(std::os::fd::AsFd::as_fd(&zero), to, 8, None) };
        assert_eq!(read.unwrap(), 8);
        assert_eq!(look(&memory, part), [(1, false), (3, false), (4, true), (9, false)]);
        memory.drop_private(part.part(4 * BASE_PAGE, LEN - 4 * BASE_PAGE)).unwrap();
        write(6);
        assert_eq!(
            look(&memory, part),
            [(1, false), (3, false), (6, true)],
            "a page that is dropped is private no more"
        );
        // The program drops a page itself, and the kernel leaves an entry that looks like that of a page that was
        // swapped out.
        // SAFETY: the range is ours.
        unsafe { madvise(pointer(part.at() + BASE_PAGE), BASE_PAGE, Advice::LinuxDontNeed) }.unwrap();
        assert!(!look(&memory, part).contains(&(1, false)));
        let mark = || {
            let mut runs = [PageRun::default(); 8];
            let scanned = memory.scan(part, ScanFor::UnmarkedAndMark, &mut runs).unwrap();
            runs[..scanned.runs].iter().map(|run| (run.start as usize - part.at()) / BASE_PAGE).collect::<Vec<_>>()
        };
        let of_others = mark();
        [7, 8].into_iter().for_each(write);
        assert_eq!((of_others.contains(&7), mark(), mark()), (false, vec![7], vec![]), "one run, and only once");
        show();
        write(5);
        for wanted in [ScanFor::Unmarked, ScanFor::Private] {
            let mut runs = [PageRun::default(); 8];
            let found = memory.scan(part, wanted, &mut runs).unwrap().runs;
            let is_it = |run: &PageRun| run.start as usize == part.at() + 5 * BASE_PAGE && run.is_written();
            assert!(runs[..found].iter().any(is_it), "{wanted:?} of a mapping that is not tracked: {runs:?}");
        }
        assert_eq!(look(&memory, part), [(5, true)], "it is a new mapping");
        assert_eq!(look(&memory, part), [(5, true)]);
        memory.release(extent).unwrap();
    }

    /// Resets move private pages away and back.
    #[test]
    fn a_moved_page_counts_as_written() {
        if open().is_none() {
            return println!("skipped: this kernel does not track writes (Linux 6.14)");
        }
        let memory = Linux::new(Kind::ShmemBase, LEN, CoreDump::LeftOut, Exports::No).unwrap();
        memory.obtain(0, LEN, 0).unwrap();
        let (extent, staging) = (memory.claim(LEN, BASE_PAGE).unwrap(), memory.claim_staging(LEN, BASE_PAGE).unwrap());
        let (part, away) = (extent.part(0, LEN), staging.part(0, LEN));
        for of in [part, away] {
            memory.show(of, Shows::CowMapping { start: 0, access: Access::ReadWrite }).unwrap();
        }
        assert!(memory.track_writes(part));
        // SAFETY: the range is ours, and shows a private mapping.
        unsafe { pointer(part.at()).cast::<u8>().write_volatile(1) };
        let _ = look(&memory, part);
        memory.take_pages(part, away).unwrap();
        // SAFETY: as above.
        unsafe { pointer(away.at()).cast::<u8>().write_volatile(2) };
        memory.bring_pages(part, away).unwrap();
        assert!(memory.track_writes(part));
        assert_eq!(look(&memory, part), [(0, true)]);
        memory.release(extent).unwrap();
        memory.release(staging).unwrap();
    }
}
