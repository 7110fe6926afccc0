//! The memory of the kernel's subjects: anonymous private mappings with 4 KiB pages, transparent huge pages or hugetlb
//! pages.
//!
//! Every mapping starts on a 2 MiB boundary. Children of `fork(2)` do not get a mapping until a sample asks for it: the
//! subjects of a case live in one process, and a fork that had to copy the page tables of all of them would be slower
//! than in the program that a subject stands for.

use std::ffi::c_void;
use std::fs;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::BenchError;
use crate::measure::clock;
use crate::measure::work;

/// Bytes of a huge page on x86-64, and the alignment of every mapping.
pub const HUGE_PAGE: usize = 2 << 20;

/// A huge page that takes more CPU time than this to populate has waited for the host: the guest counts such waits as
/// CPU time. A warm huge page takes 90 us, 512 base pages take 250 us, and cold huge pages took up to 4800 us.
const COLD_NS: u64 = 2_000_000;

/// The least fraction of a mapping that must be in huge pages: with less, the subject's name would be wrong.
const HUGE_ENOUGH: f64 = 0.95;

/// The kind of pages that the kernel must use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Pages of 4 KiB, with transparent huge pages switched off for the mapping.
    Base,
    /// Transparent huge pages, asked for with `MADV_HUGEPAGE`.
    Thp,
    /// 2 MiB pages of the hugetlb pool.
    Hugetlb,
}

/// Whether a hugetlb mapping reserves its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// The mapping reserves its pages, so that faults of this process cannot fail. The reservation belongs to the
    /// process that maps: forked children have no reservation.
    Yes,
    /// The mapping reserves no pages, so that they stay free for forked children, which write to the mapping.
    No,
}

/// Whether children of `fork(2)` inherit the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherit {
    /// `MADV_DOFORK`.
    Yes,
    /// `MADV_DONTFORK`.
    No,
}

/// An anonymous mapping, unmapped when dropped.
#[derive(Debug)]
pub struct KernelMemory {
    start: NonNull<u8>,
    len: usize,
    kind: PageKind,
}

impl KernelMemory {
    /// Maps `len` bytes (a multiple of 2 MiB), without touching them; children do not inherit the mapping.
    ///
    /// # Errors
    /// [`BenchError::CannotRun`] if the hugetlb pool has too few pages or memory is too small.
    pub fn map(kind: PageKind, len: usize, reserve: Reserve) -> Result<KernelMemory, BenchError> {
        assert!(len > 0 && len.is_multiple_of(HUGE_PAGE), "mappings are whole huge pages");
        let start = match kind {
            PageKind::Hugetlb => map_hugetlb(len, reserve)?,
            PageKind::Base | PageKind::Thp => map_aligned(len)?,
        };
        let memory = KernelMemory { start, len, kind };
        match kind {
            PageKind::Base => memory.advise(Advice::LinuxNoHugepage, "madvise(MADV_NOHUGEPAGE)")?,
            PageKind::Thp => memory.advise(Advice::LinuxHugepage, "madvise(MADV_HUGEPAGE)")?,
            PageKind::Hugetlb => {}
        }
        memory.inherit(Inherit::No)?;
        Ok(memory)
    }

    /// Maps `len` bytes, makes all pages present and writable, and checks that the kernel gave huge pages if `kind`
    /// asks for them.
    ///
    /// # Errors
    /// As [`KernelMemory::map`]; [`BenchError::CannotRun`] also if the kernel gave small pages instead of huge ones.
    pub fn populated(kind: PageKind, len: usize) -> Result<KernelMemory, BenchError> {
        let memory = KernelMemory::map(kind, len, Reserve::Yes)?;
        memory.touch()?;
        memory.check_huge()?;
        Ok(memory)
    }

    /// Maps `len` bytes and writes every word, `p[i] = i + bias`, and does not check which kind of pages the kernel
    /// gives.
    ///
    /// # Errors
    /// As [`KernelMemory::map`].
    pub(crate) fn written(kind: PageKind, len: usize, bias: u64) -> Result<KernelMemory, BenchError> {
        let memory = KernelMemory::map(kind, len, Reserve::Yes)?;
        memory.touch()?;
        // SAFETY: new memory of our own.
        unsafe { work::write_words(memory.as_ptr().cast(), len / 8, bias) };
        Ok(memory)
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Length in bytes, a multiple of 2 MiB, never 0.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Makes every page present and writable. `MADV_POPULATE_WRITE` comes first because it answers an empty hugetlb
    /// pool with an error, while a store would raise `SIGBUS`.
    ///
    /// # Errors
    /// [`BenchError::CannotRun`] if there is not enough memory.
    pub fn touch(&self) -> Result<(), BenchError> {
        self.populate(0, self.len)?;
        // SAFETY: the mapping is ours alone, live and writable.
        unsafe { work::touch_pages(self.as_ptr(), self.len) };
        Ok(())
    }

    /// As [`KernelMemory::touch`], one huge page after the other. Returns the number of huge pages that waited for the
    /// host.
    pub(crate) fn populate_piecewise(&self) -> Result<usize, BenchError> {
        let mut cold = 0;
        for offset in (0..self.len).step_by(HUGE_PAGE) {
            let start = clock::of_this_thread();
            self.populate(offset, HUGE_PAGE)?;
            // SAFETY: the huge page at `offset` of our own mapping.
            unsafe { work::touch_pages(self.as_ptr().add(offset), HUGE_PAGE) };
            cold += usize::from(clock::of_this_thread() - start > COLD_NS);
        }
        Ok(cold)
    }

    fn populate(&self, offset: usize, len: usize) -> Result<(), BenchError> {
        assert!(offset + len <= self.len);
        // SAFETY: within our own mapping; contents stay.
        match unsafe { madvise(self.as_ptr().add(offset).cast(), len, Advice::LinuxPopulateWrite) } {
            // Before Linux 5.14, which has no `MADV_POPULATE_WRITE`, the stores that follow make the pages present.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(BenchError::CannotRun(format!(
                "the kernel had no memory for {} of {}: {errno}; take a smaller --size",
                hugefork::ByteSize(self.len),
                self.kind.pages(),
            ))),
        }
    }

    /// Decides whether children of later `fork(2)` calls inherit this mapping.
    ///
    /// # Errors
    /// [`BenchError::System`] if the kernel refuses.
    pub fn inherit(&self, inherit: Inherit) -> Result<(), BenchError> {
        match inherit {
            Inherit::Yes => self.advise(Advice::LinuxDoFork, "madvise(MADV_DOFORK)"),
            Inherit::No => self.advise(Advice::LinuxDontFork, "madvise(MADV_DONTFORK)"),
        }
    }

    /// Lets the kernel drop the contents of pages when it needs memory, unless the program writes to these pages again.
    ///
    /// # Errors
    /// [`BenchError::System`] if the kernel refuses, as it does for hugetlb pages.
    pub(crate) fn free_lazily(&self) -> Result<(), BenchError> {
        self.advise(Advice::LinuxFree, "madvise(MADV_FREE)")
    }

    /// Drops the contents and gives the pages back: the mapping reads as zeros.
    ///
    /// # Errors
    /// [`BenchError::System`] if the kernel refuses.
    pub(crate) fn discard(&self) -> Result<(), BenchError> {
        self.advise(Advice::LinuxDontNeed, "madvise(MADV_DONTNEED)")
    }

    /// Bytes of this mapping that the kernel may drop.
    pub(crate) fn lazily_freed(&self) -> usize {
        self.counted("LazyFree:")
    }

    /// Checks that a touched mapping has the huge pages that it asked for. If memory is fragmented, the kernel silently
    /// gives 4 KiB pages, and the figures would have the name of the wrong subject.
    ///
    /// # Errors
    /// [`BenchError::CannotRun`] if less than 95 % is huge.
    pub fn check_huge(&self) -> Result<(), BenchError> {
        self.check_huge_bytes(self.len)
    }

    /// As [`KernelMemory::check_huge`], for a mapping of which only `touched` bytes, in whole huge pages, were touched.
    ///
    /// # Errors
    /// [`BenchError::CannotRun`] if less than 95 % of `touched` is huge.
    pub fn check_huge_bytes(&self, touched: usize) -> Result<(), BenchError> {
        if self.kind != PageKind::Thp {
            return Ok(());
        }
        let huge = self.counted("AnonHugePages:");
        if (huge as f64) < touched as f64 * HUGE_ENOUGH {
            return Err(BenchError::CannotRun(format!(
                "the kernel gave transparent huge pages for only {:.0} % of {}: free memory, or compact it \
                 (echo 1 > /proc/sys/vm/compact_memory)",
                huge as f64 / touched as f64 * 100.0,
                hugefork::ByteSize(touched),
            )));
        }
        Ok(())
    }

    /// The bytes of this mapping that `/proc/self/smaps` reports under `field`.
    fn counted(&self, field: &str) -> usize {
        let from = self.start.as_ptr() as usize;
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        // Neighbouring mappings with equal flags may be one entry, so the count may include memory outside of this
        // mapping.
        counted_in(&smaps, field, from..from + self.len).min(self.len)
    }

    fn advise(&self, advice: Advice, what: &'static str) -> Result<(), BenchError> {
        self.raw_advise(advice).map_err(|errno| BenchError::system(what, errno))
    }

    fn raw_advise(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is our own mapping, and so are the contents that some advices take away.
        unsafe { madvise(self.start.as_ptr().cast::<c_void>(), self.len, advice) }
    }
}

impl Drop for KernelMemory {
    fn drop(&mut self) {
        // SAFETY: the range is our own mapping, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

impl PageKind {
    fn pages(self) -> &'static str {
        match self {
            PageKind::Base => "4KiB pages",
            PageKind::Thp => "transparent huge pages",
            PageKind::Hugetlb => "hugetlb pages",
        }
    }
}

fn map_hugetlb(len: usize, reserve: Reserve) -> Result<NonNull<u8>, BenchError> {
    let mut flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
    if reserve == Reserve::No {
        flags |= MapFlags::NORESERVE;
    }
    // SAFETY: a new mapping where the kernel likes; nothing else is touched.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let start = start.map_err(|errno| {
        BenchError::CannotRun(format!(
            "the hugetlb pool has no {} pages of 2MiB to spare: {errno}; run with --tune as root, or \
             sysctl -w vm.nr_hugepages=…",
            len / HUGE_PAGE
        ))
    })?;
    Ok(NonNull::new(start.cast()).expect("the kernel maps nothing at address 0"))
}

/// Maps one huge page more than `len` bytes, and unmaps the parts before and after the aligned `len` bytes.
fn map_aligned(len: usize) -> Result<NonNull<u8>, BenchError> {
    let whole = len + HUGE_PAGE;
    // SAFETY: a new mapping where the kernel likes; nothing else is touched.
    let start =
        unsafe { mmap_anonymous(ptr::null_mut(), whole, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
            .map_err(|errno| BenchError::system("mmap", errno))?
            .cast::<u8>();
    let before = start.align_offset(HUGE_PAGE);
    // SAFETY: `before < HUGE_PAGE`, so both cut ranges and the kept one lie within the new mapping, which nobody uses
    // yet.
    unsafe {
        if before > 0 {
            munmap(start.cast(), before).map_err(|errno| BenchError::system("munmap", errno))?;
        }
        let after = whole - before - len;
        if after > 0 {
            munmap(start.add(before + len).cast(), after).map_err(|errno| BenchError::system("munmap", errno))?;
        }
        Ok(NonNull::new(start.add(before)).expect("the kernel maps nothing at address 0"))
    }
}

fn counted_in(smaps: &str, field: &str, range: std::ops::Range<usize>) -> usize {
    let mut inside = false;
    let mut total = 0;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((from, to)) = first.split_once('-')
            && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
        {
            inside = from < range.end && to > range.start;
        } else if inside && first == field {
            total += words.next().and_then(|kib| kib.parse::<usize>().ok()).unwrap_or(0) << 10;
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_aligned_zero_and_writable() {
        for kind in [PageKind::Base, PageKind::Thp] {
            let memory = KernelMemory::map(kind, 2 * HUGE_PAGE, Reserve::Yes).unwrap();
            assert_eq!(memory.as_ptr() as usize % HUGE_PAGE, 0);
            memory.touch().unwrap();
            // SAFETY: the last word of our own mapping.
            unsafe {
                let last = memory.as_ptr().add(memory.len() - 8).cast::<u64>();
                assert_eq!(last.read(), 0);
                last.write(1);
            }
        }
    }

    #[test]
    fn base_memory_has_no_huge_pages() {
        let memory = KernelMemory::populated(PageKind::Base, 2 * HUGE_PAGE).unwrap();
        assert_eq!(memory.counted("AnonHugePages:"), 0);
    }

    #[test]
    fn lazily_freed_memory_is_counted_and_discarded_memory_is_zero() {
        let memory = KernelMemory::written(PageKind::Base, 2 * HUGE_PAGE, 1).unwrap();
        assert_eq!(memory.lazily_freed(), 0);
        memory.free_lazily().unwrap();
        // The kernel marks pages in batches, so the last batch may not be marked yet.
        assert!(memory.lazily_freed() > memory.len() / 10 * 9, "{}", memory.lazily_freed());
        memory.discard().unwrap();
        // SAFETY: our own mapping.
        unsafe { work::check_zeros(memory.as_ptr(), memory.len()) }.unwrap();
    }

    #[test]
    fn more_hugetlb_pages_than_there_are_is_a_lack_that_names_its_remedy() {
        let error = KernelMemory::map(PageKind::Hugetlb, 1 << 46, Reserve::Yes).unwrap_err();
        assert!(error.is_lack());
        assert!(error.to_string().contains("--tune"), "{error}");
    }

    #[test]
    fn smaps_is_read_by_overlap() {
        let smaps = "00200000-00600000 rw-p 00000000 00:00 0\nRss: 4096 kB\nAnonHugePages:      2048 kB\n\
                     00800000-00a00000 rw-p 00000000 00:00 0\nAnonHugePages:      2048 kB\n";
        assert_eq!(counted_in(smaps, "AnonHugePages:", 0x20_0000..0x60_0000), 2 << 20);
        assert_eq!(counted_in(smaps, "AnonHugePages:", 0x20_0000..0xa0_0000), 4 << 20);
        assert_eq!(counted_in(smaps, "AnonHugePages:", 0x60_0000..0x80_0000), 0);
        assert_eq!(counted_in(smaps, "Rss:", 0x20_0000..0x60_0000), 4 << 20);
    }
}
