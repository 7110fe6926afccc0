//! A `memfd` that the program has mapped, shared at first. A snapshot maps it privately in the same place: from then on
//! the kernel copies each page at the first write to it, and the file stays as it was. The snapshot is the file, seen
//! through another mapping.
//!
//! Before a second snapshot the file must have what the program wrote, so its private pages are copied back. That is in
//! the call that takes the snapshot, but not in its pause: `all` has it. A program with other writers must stop them
//! meanwhile, so that `taken` flatters this subject from the second snapshot on.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::ptr;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use crate::cases::rival::fork::copied_by_faults;
use crate::cases::rival::{Read, Rival};
use crate::error::BenchError;
use crate::measure::clock;
use crate::measure::warm::warm_for_copies;
use crate::measure::work::{self, reader};
use crate::memory::kernel_memory::{KernelMemory, PageKind, Reserve};

#[derive(Default)]
pub(super) struct MemfdPrivate {
    held: Option<MappedFile>,
    /// Milliseconds of the last private mapping.
    pause: f64,
}

struct MappedFile {
    file: OwnedFd,
    /// The file, shared.
    look: KernelMemory,
    /// What the program writes to.
    live: KernelMemory,
    /// Whether that is private.
    is_private: bool,
}

const PAGE: usize = 4096;

impl MemfdPrivate {
    fn held(&self) -> &MappedFile {
        self.held.as_ref().expect("populated before used")
    }
}

impl MappedFile {
    fn new(size: usize, bias: u64) -> Result<MappedFile, BenchError> {
        let file = memfd_create("bench", MemfdFlags::CLOEXEC)
            .map_err(|errno| BenchError::CannotRun(format!("memfd_create: {errno}")))?;
        ftruncate(&file, size as u64).map_err(|errno| BenchError::system("sizing a memfd", errno))?;
        let place = || KernelMemory::map(PageKind::Base, size, Reserve::Yes);
        let held = MappedFile { look: place()?, live: place()?, file, is_private: false };
        held.put(&held.look, MapFlags::SHARED)?;
        held.ask_for_huge_pages();
        // SAFETY: our own mapping of a new file.
        unsafe { work::write_words(held.look.as_ptr().cast(), size / 8, bias) };
        held.collapse();
        held.put(&held.live, MapFlags::SHARED)?;
        // SAFETY: our own mapping.
        unsafe { work::touch_pages(held.live.as_ptr(), size) };
        Ok(held)
    }

    /// Maps the file over `place`.
    fn put(&self, place: &KernelMemory, how: MapFlags) -> Result<(), BenchError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let (start, flags) = (place.as_ptr().cast(), how | MapFlags::FIXED);
        // SAFETY: only a mapping of our own is replaced, to which nobody has a reference.
        unsafe { mmap(start, place.len(), access, flags, &self.file, 0) }
            .map(drop)
            .map_err(|errno| BenchError::system("mapping a memfd", errno))
    }

    fn ask_for_huge_pages(&self) {
        // A kernel that refuses gives small pages, and `caveat` tells.
        // SAFETY: our own mapping, whose contents stay.
        let _ = unsafe { madvise(self.look.as_ptr().cast(), self.look.len(), Advice::LinuxHugepage) };
    }

    fn collapse(&self) {
        // As above. Linux 6.1 does it whatever the setting for shmem is.
        let _ = hugefork_linux::advice::collapse(self.look.as_ptr().cast(), self.look.len());
    }

    /// Copies private pages back to the file.
    fn put_back(&self) -> Result<(), BenchError> {
        let pages = private_pages(&self.live)?;
        for page in pages {
            // SAFETY: a page of two mappings of our own, of which one is private there, so that they do not overlap.
            unsafe {
                let (from, to) = (self.live.as_ptr().add(page * PAGE), self.look.as_ptr().add(page * PAGE));
                ptr::copy_nonoverlapping(from, to, PAGE);
            }
        }
        Ok(())
    }
}

/// The numbers of the pages of `memory` that are anonymous.
fn private_pages(memory: &KernelMemory) -> Result<Vec<usize>, BenchError> {
    const CHUNK: usize = 8192;
    let failed = |error| BenchError::CannotRun(format!("/proc/self/pagemap, which tells private pages: {error}"));
    let pagemap = File::open("/proc/self/pagemap").map_err(failed)?;
    let (first, count) = (memory.as_ptr() as usize / PAGE, memory.len() / PAGE);
    let (mut found, mut entries) = (Vec::new(), vec![0u8; CHUNK * 8]);
    for start in (0..count).step_by(CHUNK) {
        let entries = &mut entries[..CHUNK.min(count - start) * 8];
        pagemap.read_exact_at(entries, ((first + start) * 8) as u64).map_err(failed)?;
        let (words, _) = entries.as_chunks::<8>();
        let private = words.iter().enumerate().filter(|(_, word)| is_private(u64::from_ne_bytes(**word)));
        found.extend(private.map(|(index, _)| start + index));
    }
    Ok(found)
}

/// Whether an entry of the pagemap is a page that is there, in memory or in the swap, and is not of a file.
fn is_private(entry: u64) -> bool {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const OF_FILE: u64 = 1 << 61;
    entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0
}

impl Rival for MemfdPrivate {
    type Snapshot = ();

    fn populate(&mut self, size: usize, bias: u64) -> Result<(), BenchError> {
        self.held = None;
        self.held = Some(MappedFile::new(size, bias)?);
        Ok(())
    }

    fn warm(&self, size: usize, cpus: &[usize]) -> Result<(), BenchError> {
        warm_for_copies(PageKind::Base, size, cpus)
    }

    fn start(&self) -> *mut u8 {
        self.held().live.as_ptr()
    }

    fn take(&mut self, _: impl Fn(Read<'_>) -> bool) -> Result<(), BenchError> {
        let held = self.held.as_mut().expect("populated before used");
        if held.is_private {
            held.put_back()?;
        }
        let start = clock::now_fenced();
        held.put(&held.live, MapFlags::PRIVATE)?;
        self.pause = clock::ms(start, clock::now_fenced());
        held.is_private = true;
        Ok(())
    }

    fn pause(&self, _: f64) -> f64 {
        self.pause
    }

    fn copied(&self, distinct: &dyn Fn(usize) -> usize, minor_faults: usize) -> Option<usize> {
        copied_by_faults(minor_faults, PAGE, distinct)
    }

    fn let_go(&mut self, (): (), check: impl FnOnce(Read<'_>) -> Result<(), BenchError>) -> Result<(), BenchError> {
        // SAFETY: our own mapping of the file.
        check(&unsafe { reader(self.held().look.as_ptr()) })
    }

    fn release(&mut self) {
        self.held = None;
    }

    fn caveat(&self) -> Option<String> {
        let look = &self.held().look;
        let part = look.huge_of_file() as f64 / look.len() as f64;
        (part < 0.95)
            .then(|| format!("memfd-private: the kernel gave huge pages for only {:.0} % of the memfd", part * 100.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::kernel_memory::HUGE_PAGE;

    #[test]
    fn written_pages_are_private_until_they_are_put_back() {
        let mut rival = MemfdPrivate::default();
        rival.populate(2 * HUGE_PAGE, 1).unwrap();
        assert_eq!(private_pages(&rival.held().live).unwrap(), Vec::<usize>::new());
        rival.take(|_| true).unwrap();
        let word = |memory: &KernelMemory, page: usize| {
            // SAFETY: our own mapping.
            unsafe { memory.as_ptr().add(page * PAGE).cast::<u64>() }
        };
        for page in [3, 700] {
            // SAFETY: our own mapping.
            unsafe { word(&rival.held().live, page).write(7) };
            // SAFETY: as above.
            assert_ne!(unsafe { word(&rival.held().look, page).read() }, 7, "the snapshot stays");
        }
        assert_eq!(private_pages(&rival.held().live).unwrap(), [3, 700]);
        rival.take(|_| true).unwrap();
        assert_eq!(private_pages(&rival.held().live).unwrap(), Vec::<usize>::new());
        // SAFETY: as above.
        assert_eq!(unsafe { word(&rival.held().look, 700).read() }, 7, "the next snapshot has it");
    }
}
