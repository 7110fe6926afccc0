//! Which blocks of 2 MiB are in base pages, and which pages are private.
//!
//! `PAGEMAP_SCAN` (Linux 6.7) names the base pages of a range and steps over huge ones, in the time that base pages
//! take. Before, `/proc/thread-self/pagemap` has a word for each page, and does not tell what is huge; to collapse what
//! is huge already does nothing.

use std::ops::Range;

use hugefork_linux::pagemap_scan::{self, PageRun, Scan};
use rustix::io::Errno;

use crate::descriptors::passing::Passing;
use crate::{BASE_PAGE, HUGE_PAGE};

/// So many base pages of 512 must be there for a block to be collapsed, which gives it the others too: it may cost a
/// seventh more memory. A block that `fork(2)` has made the kernel split has all of them.
pub(crate) const ENOUGH: usize = 448;

/// `/proc/thread-self/pagemap`, open.
pub(crate) struct Pagemap(Passing<pagemap_scan::Pagemap>);

impl Pagemap {
    /// Opens the file of this process.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open() -> Result<Pagemap, Errno> {
        Passing::open(pagemap_scan::Pagemap::open).map(Pagemap)
    }

    /// Calls `each` with the start of every block in `range` that has enough base pages, until that says false.
    ///
    /// # Errors
    /// The kernel cannot say.
    pub(crate) fn blocks(&self, range: &Range<usize>, mut each: impl FnMut(usize) -> bool) -> Result<(), Errno> {
        let whole = range.start.next_multiple_of(HUGE_PAGE)..range.end / HUGE_PAGE * HUGE_PAGE;
        if whole.is_empty() {
            return Ok(());
        }
        match self.scanned(&whole, &mut each) {
            Err(Errno::NOTTY | Errno::INVAL) => self.read(&whole, &mut each),
            other => other,
        }
    }

    /// Calls `each` with every run of pages in `range` that are the process's own, and not those of the file below.
    ///
    /// # Errors
    /// The kernel cannot say: it is older than Linux 6.7.
    pub(crate) fn own(&self, range: &Range<usize>, mut each: impl FnMut(Range<usize>)) -> Result<(), Errno> {
        let mut found = [PageRun::default(); 256];
        let mut from = range.start;
        while from < range.end {
            let scanned = self.0.scan(&(from..range.end), Scan::PRIVATE, &mut found)?;
            found[..scanned.runs].iter().for_each(|run| each(run.start as usize..run.end as usize));
            from = scanned.end.max(from + BASE_PAGE);
        }
        Ok(())
    }

    fn scanned(&self, whole: &Range<usize>, each: &mut impl FnMut(usize) -> bool) -> Result<(), Errno> {
        let mut found = [PageRun::default(); 128];
        let mut tally = Tally::default();
        let mut from = whole.start;
        while from < whole.end {
            let scanned = self.0.scan(&(from..whole.end), Scan::BASE, &mut found)?;
            for part in &found[..scanned.runs] {
                if !tally.add(part.start as usize..part.end as usize, each) {
                    return Ok(());
                }
            }
            from = scanned.end.max(from + BASE_PAGE);
        }
        tally.end(each);
        Ok(())
    }

    fn read(&self, whole: &Range<usize>, each: &mut impl FnMut(usize) -> bool) -> Result<(), Errno> {
        const PAGES: usize = HUGE_PAGE / BASE_PAGE;
        let mut words = [0; PAGES * 8];
        for block in whole.clone().step_by(HUGE_PAGE) {
            let got = self.0.read(block, &mut words)?;
            // The highest bit of a word says that its page is there.
            let present = words[..got].chunks_exact(8).filter(|word| word[7] & 0x80 != 0).count();
            if present >= ENOUGH && !each(block) {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Base pages of the block that is being looked at. They come in order.
#[derive(Default)]
struct Tally {
    block: usize,
    pages: usize,
}

impl Tally {
    /// Counts a range of base pages. False if `each` has had enough.
    fn add(&mut self, range: Range<usize>, each: &mut impl FnMut(usize) -> bool) -> bool {
        let mut from = range.start;
        while from < range.end {
            let block = from / HUGE_PAGE * HUGE_PAGE;
            let to = range.end.min(block + HUGE_PAGE);
            if block != self.block {
                if !self.end(each) {
                    return false;
                }
                *self = Tally { block, pages: 0 };
            }
            self.pages += (to - from) / BASE_PAGE;
            from = to;
        }
        true
    }

    /// The block is over. False if `each` has had enough.
    fn end(&self, each: &mut impl FnMut(usize) -> bool) -> bool {
        self.pages < ENOUGH || each(self.block)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    const BLOCKS: usize = 4;

    /// Four blocks: in base pages, with every second base page, with nothing, and huge if the kernel has huge pages.
    struct Area {
        start: usize,
        whole: *mut c_void,
    }

    impl Area {
        fn new() -> Area {
            let len = (BLOCKS + 1) * HUGE_PAGE;
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping where the kernel likes.
            let whole = unsafe { mmap_anonymous(std::ptr::null_mut(), len, rights, MapFlags::PRIVATE) }.unwrap();
            let area = Area { start: (whole as usize).next_multiple_of(HUGE_PAGE), whole };
            // SAFETY: our own mapping.
            unsafe { madvise(whole, len, Advice::LinuxNoHugepage) }.unwrap();
            for (block, step) in [(0, 1), (1, 2)] {
                for page in (0..HUGE_PAGE / BASE_PAGE).step_by(step) {
                    area.write(block * HUGE_PAGE + page * BASE_PAGE);
                }
            }
            // Not the others yet: the kernel itself collapses what may be huge, whenever it likes.
            area.allow_huge(3);
            area.write(3 * HUGE_PAGE);
            area
        }

        /// Lets a block be a huge page.
        fn allow_huge(&self, block: usize) {
            // SAFETY: our own mapping.
            unsafe { madvise((self.start + block * HUGE_PAGE) as *mut c_void, HUGE_PAGE, Advice::LinuxHugepage) }
                .unwrap();
        }

        fn write(&self, offset: usize) {
            // SAFETY: within our own mapping.
            unsafe { ((self.start + offset) as *mut u8).write_volatile(1) };
        }

        fn range(&self) -> Range<usize> {
            // With parts of blocks at both ends.
            self.start - BASE_PAGE..self.start + BLOCKS * HUGE_PAGE + BASE_PAGE
        }
    }

    impl Drop for Area {
        fn drop(&mut self) {
            // SAFETY: our own mapping.
            unsafe { munmap(self.whole, (BLOCKS + 1) * HUGE_PAGE) }.unwrap();
        }
    }

    #[test]
    fn blocks_in_base_pages_are_found_until_they_are_huge() {
        let (area, pagemap) = (Area::new(), Pagemap::open().unwrap());
        let found = || {
            let mut found = Vec::new();
            pagemap.blocks(&area.range(), |block| {
                found.push((block - area.start) / HUGE_PAGE);
                true
            })?;
            Ok::<_, Errno>(found)
        };
        // Where transparent huge pages are off, the last has one page only.
        assert_eq!(found().unwrap(), [0]);
        area.allow_huge(0);
        if let Err(refused) = hugefork::collapse(area.start as *mut c_void) {
            println!("skipped: this kernel does not collapse: {refused}");
            return;
        }
        assert_eq!(found().unwrap(), [0; 0]);
    }

    #[test]
    fn the_older_way_finds_them_too() {
        let (area, pagemap) = (Area::new(), Pagemap::open().unwrap());
        let mut found = Vec::new();
        let whole = area.start..area.start + 3 * HUGE_PAGE;
        pagemap
            .read(&whole, &mut |block| {
                found.push((block - area.start) / HUGE_PAGE);
                true
            })
            .unwrap();
        assert_eq!(found, [0]);
    }

    #[test]
    fn a_range_without_a_whole_block_has_none() {
        let pagemap = Pagemap::open().unwrap();
        pagemap.blocks(&(BASE_PAGE..HUGE_PAGE), |_| panic!("there is none")).unwrap();
    }
}
