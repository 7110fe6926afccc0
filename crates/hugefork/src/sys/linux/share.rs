//! Shares memory with other processes: descriptors through which they can read memory and cannot change it, and their
//! own mappings of such descriptors.
//!
//! ```text
//!   pool's file (read and write, mode 0444; a memfd is sealed against other lengths)
//!        └─ opened anew through /proc/self/fd, for reading only ─▶ another process: private mappings
//!   copy's memfd (sealed against everything) ─────────────────────▶ the same
//! ```
//! A descriptor for reading gives no right to write, to map writable and shared, to punch holes or to change the
//! length. To open it anew for writing takes the right to write by the file's mode, which only root has. The owner of
//! the file can change the mode: a process of the user who built the pool.
//!
//! The process that maps such a descriptor trusts no other. A file that cannot become shorter has a page for each byte,
//! or the kernel makes one for the reader. But hugetlb may have no page left, and then a load raises `SIGBUS`. So
//! mappings of hugetlb get their pages at once. If the other process can take pages away again, or make the file
//! shorter, system calls copy the bytes, because they return an error where a page is missing.

use core::ffi::c_void;
use core::ops::Range;
use core::ptr;
use std::os::fd::{AsRawFd, BorrowedFd};

pub(crate) use hugefork_linux::Descriptor;
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create, open,
};
use rustix::io::{Errno, pwrite};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use super::descriptor::counted;
use super::{LOST, kept, named};
use crate::sys::SystemError;
use crate::sys::racing::copy_out;
use crate::units::HUGE_PAGE;

/// The mode of a pool's file: a process that has it already may open it anew for reading.
pub(super) const FOR_READING: Mode = Mode::from_raw_mode(0o444);

/// Makes sure that no other process can open a memfd anew for writing, or change its length.
///
/// A file of the pool's own tmpfs cannot be sealed. But no other process can open it anew for writing, and without that
/// cannot change its length.
pub(super) fn guard(fd: BorrowedFd<'_>) -> Result<(), SystemError> {
    // If the mode is right already, it is not set again: the process may run as another user by now, which is not
    // allowed to set it.
    if named("fstat of a memfd", fstat(fd))?.st_mode & 0o222 != 0 && !seeded!("export-can-be-written-to") {
        named("fchmod of a memfd", fchmod(fd, FOR_READING))?;
    }
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let has = named("fcntl(F_GET_SEALS)", fcntl_get_seals(fd))?;
    // A memfd that takes no more seals already has those against shrinking and growing.
    if has.contains(SealFlags::SEAL) {
        return Ok(());
    }
    named("fcntl(F_ADD_SEALS)", fcntl_add_seals(fd, seals))
}

/// Opens the file of a descriptor anew, for reading only.
pub(super) fn reopen_for_reading(descriptor: &Descriptor) -> Result<Descriptor, SystemError> {
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let opened = Descriptor::keep(|| open(&*path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()));
    let opened = named("open of /proc/self/fd", opened)?;
    // Another thread may have put another file there at that moment.
    if opened.file() == descriptor.file() { Ok(opened) } else { Err(SystemError::new(LOST, Errno::BADF)) }
}

const MAP_EXTENT: &str = "mmap of an extent";
const MAP_ZEROS: &str = "mmap of zeros";
const GET_PAGES: &str = "madvise(MADV_POPULATE_READ) of an extent";
const COPY_IN: &str = "pread of an extent";
const COPY_OUT: &str = "process_vm_readv of an import";

/// A memfd that is written once and then sealed.
pub(crate) struct Unsealed(Descriptor);

impl Unsealed {
    /// A memfd of `len` bytes of zeros, which take no memory.
    pub(crate) fn new(len: usize) -> Result<Unsealed, SystemError> {
        if getrlimit(Resource::Fsize).current.is_some_and(|most| most < len as u64) {
            // The kernel would not only refuse: it would send SIGXFSZ, which kills.
            return named("ftruncate of a memfd", Err(Errno::FBIG));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = named("memfd_create", Descriptor::keep(|| memfd_create("hugefork-copy", flags)))?;
        named("ftruncate of a memfd", ftruncate(kept(&file)?, len as u64))?;
        Ok(Unsealed(file))
    }

    /// Writes all of `bytes` at `offset`.
    pub(crate) fn write(&self, bytes: &[u8], offset: usize) -> Result<(), SystemError> {
        write_at(&self.0, bytes, offset)
    }

    /// Seals the memfd against all change.
    pub(crate) fn seal(self) -> Result<Descriptor, SystemError> {
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let file = kept(&self.0)?;
        named("fcntl(F_ADD_SEALS)", once_not_busy(|| fcntl_add_seals(file, seals)))?;
        Ok(self.0)
    }
}

/// Writes all of `bytes` to a memfd at `offset`.
pub(super) fn write_at(file: &Descriptor, mut bytes: &[u8], mut offset: usize) -> Result<(), SystemError> {
    while !bytes.is_empty() {
        match pwrite(kept(file)?, bytes, offset as u64) {
            Ok(0) => return Err(super::descriptor::WROTE_NOTHING),
            Ok(count) => (bytes, offset) = (&bytes[count..], offset + count),
            Err(Errno::INTR) => {}
            Err(errno) => return named("pwrite to a memfd", Err(errno)),
        }
    }
    Ok(())
}

/// Repeats a call that the kernel refuses while a page is in use. Here only the kernel itself can use one, when it
/// moves pages between its lists or inspects them, because no other process has the memory. The kernel waits for such
/// uses for 150 ms (`memfd_wait_for_pins`), which is too short on a busy machine.
fn once_not_busy(mut call: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    const MOST_TRIES: usize = 100;
    let mut tried = 1;
    loop {
        match call() {
            Err(Errno::BUSY) if tried < MOST_TRIES => tried += 1,
            result => return result,
        }
    }
}

/// The magic numbers by which `fstatfs` names hugetlb (`HUGETLBFS_MAGIC`) and shmem (`TMPFS_MAGIC`).
const HUGETLBFS: u64 = 0x9584_58f6;
const TMPFS: u64 = 0x0102_1994;

/// The guarantees of a descriptor that another process has sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarantees {
    /// Length in bytes.
    pub(crate) len: u64,
    /// The memory that it has, in bytes: less than its length where no process has written.
    pub(crate) memory: u64,
    /// Whether a process with the right to write may make it shorter: it lies in a tmpfs, whose files cannot be sealed.
    pub(crate) may_shrink: bool,
    /// Whether no process can ever write to it or make it shorter.
    pub(crate) is_sealed: bool,
    /// The size of its pages if they are hugetlb pages: a read where the file has no page may find none left.
    pub(crate) hugetlb: Option<usize>,
}

/// The guarantees of a descriptor; `None` if it is neither a memfd nor a pool's file.
pub(crate) fn guarantees_of(fd: BorrowedFd<'_>) -> Result<Option<Guarantees>, SystemError> {
    let seals = match fcntl_get_seals(fd) {
        // The file is no memfd.
        Err(Errno::INVAL) => return Ok(None),
        seals => named("fcntl(F_GET_SEALS)", seals)?,
    };
    let file = named("fstat", fstat(fd))?;
    // For hugetlb, `st_blksize` is the size of a page.
    let system = named("fstatfs", fstatfs(fd))?.f_type.cast_unsigned();
    let hugetlb = (system == HUGETLBFS).then_some(file.st_blksize as usize);
    let may_shrink = !seals.contains(SealFlags::SHRINK);
    let is_sealed = !may_shrink && seals.contains(SealFlags::WRITE);
    // A file that cannot be sealed has only one seal, that against further seals. A memfd that its owner has sealed,
    // but not against shrinking, is not the file of a pool.
    let is_pool = !may_shrink || system == TMPFS && seals == SealFlags::SEAL;
    // `st_blocks` counts units of 512 bytes, for any file.
    let (len, memory) = (file.st_size.cast_unsigned(), file.st_blocks.cast_unsigned() * 512);
    Ok(is_pool.then_some(Guarantees { len, memory, may_shrink, is_sealed, hugetlb }))
}

/// A piece of private memory, which lies behind the piece before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) len: usize,
    /// The offset of the piece in the file, or `None` for zeros.
    pub(crate) file_offset: Option<usize>,
}

/// Private memory of this process that shows parts of a file, and zeros. The drop unmaps it, unless its length is 0.
pub(crate) struct PrivateMemory {
    pub(super) at: *mut c_void,
    pub(super) len: usize,
}

// SAFETY: this is memory of the process, which any thread may use.
unsafe impl Send for PrivateMemory {}
// SAFETY: as above; a shared reference gives out only addresses and copies.
unsafe impl Sync for PrivateMemory {}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const UNCHARGED: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

impl PrivateMemory {
    /// Memory that shows these pieces, at a multiple of `align` and of 2 MiB. Writes to it stay in this process.
    pub(crate) fn of(
        fd: BorrowedFd<'_>,
        align: usize,
        stretches: impl Iterator<Item = Stretch> + Clone,
    ) -> Result<PrivateMemory, SystemError> {
        let len = stretches.clone().map(|stretch| stretch.len).sum();
        let free = PrivateMemory::zeros(len, align)?;
        // A mapping takes 2 us at free addresses, and 3.2 us in place of another mapping (docs/design.md).
        let mut memory = PrivateMemory { at: free.at, len: 0 };
        drop(free);
        match memory.map(fd, stretches.clone()) {
            // Another thread has mapped something at these addresses meanwhile. It cannot where zeros are.
            Err(error) if error.raw_os_error() == Errno::EXIST.raw_os_error() => {
                memory = PrivateMemory::zeros(len, align)?;
                memory.map(fd, stretches)?;
            }
            mapped => mapped?,
        }
        Ok(memory)
    }

    /// `len` bytes of zeros, anywhere.
    pub(super) fn anywhere(len: usize) -> rustix::io::Result<PrivateMemory> {
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), len, READ_WRITE, UNCHARGED) }?;
        Ok(PrivateMemory { at, len })
    }

    /// `len` bytes of zeros, at a multiple of `align` and of 2 MiB.
    fn zeros(len: usize, align: usize) -> Result<PrivateMemory, SystemError> {
        let align = align.max(HUGE_PAGE);
        let whole = len.checked_add(align).ok_or(SystemError::new(MAP_ZEROS, Errno::NOMEM))?;
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let start = named(MAP_ZEROS, unsafe { mmap_anonymous(ptr::null_mut(), whole, READ_WRITE, UNCHARGED) })?;
        let before = start.addr().next_multiple_of(align) - start.addr();
        let memory = PrivateMemory { at: start.wrapping_byte_add(before), len };
        for (at, len) in [(start, before), (memory.at.wrapping_byte_add(len), align - before)] {
            if len > 0 {
                // SAFETY: an unused part of the mapping just made. If the kernel refuses, the part stays mapped.
                let _ = unsafe { munmap(at, len) };
            }
        }
        Ok(memory)
    }

    /// Maps the pieces in this memory, which no code uses yet, or behind it. Returns `EEXIST` if something else is
    /// mapped behind it.
    fn map(&mut self, fd: BorrowedFd<'_>, stretches: impl Iterator<Item = Stretch>) -> Result<(), SystemError> {
        let mut end = 0;
        for Stretch { len, file_offset } in stretches {
            let at = self.at.wrapping_byte_add(end);
            end += len;
            let flags = UNCHARGED | if end <= self.len { MapFlags::FIXED } else { MapFlags::FIXED_NOREPLACE };
            match file_offset {
                // SAFETY: it replaces nothing, or a part of this memory.
                Some(from) => named(MAP_EXTENT, unsafe { mmap(at, len, READ_WRITE, flags, fd, from as u64) })?,
                // SAFETY: as above.
                None => named(MAP_ZEROS, unsafe { mmap_anonymous(at, len, READ_WRITE, flags) })?,
            };
            self.len = self.len.max(end);
        }
        Ok(())
    }

    /// Allocates the pages of all pieces that show a file, so that no read has to. Returns `EFAULT` if no page is left.
    pub(crate) fn get_pages(&self, stretches: impl Iterator<Item = Stretch>) -> Result<(), SystemError> {
        let mut offset = 0;
        for Stretch { len, file_offset } in stretches {
            let at = self.at.wrapping_byte_add(offset);
            if file_offset.is_some() {
                // SAFETY: a part of this memory; nothing is changed.
                named(GET_PAGES, unsafe { madvise(at, len, Advice::LinuxPopulateRead) })?;
            }
            offset += len;
        }
        Ok(())
    }

    /// Copies bytes of the file over mapped ones, for this process alone. Returns `EFAULT` if the file has become too
    /// short, or the kernel has no page for them.
    ///
    /// # Panics
    /// If the bytes do not lie inside this memory.
    pub(crate) fn copy_in(&mut self, fd: BorrowedFd<'_>, to: Range<usize>, from: usize) -> Result<(), SystemError> {
        assert!(to.start <= to.end && to.end <= self.len, "they lie inside");
        let mut done = 0;
        while done < to.len() {
            let (at, from) = (self.at.wrapping_byte_add(to.start + done), (from + done) as libc::off_t);
            // SAFETY: it writes to a part of this memory, which is borrowed exclusively.
            let copied = unsafe { libc::pread(fd.as_raw_fd(), at, to.len() - done, from) };
            done += count_of(COPY_IN, copied)?;
        }
        Ok(())
    }

    /// The first byte.
    pub(crate) fn at(&self) -> *mut u8 {
        self.at.cast()
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies bytes out, which other processes may change meanwhile.
    ///
    /// # Panics
    /// If the bytes do not lie inside this memory.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(offset <= self.len && to.len() <= self.len - offset, "they lie inside");
        // SAFETY: the bytes lie within this memory, all of which can be read.
        unsafe { copy_out(self.at().add(offset), to) };
    }

    /// As [`PrivateMemory::read`], but pages may be missing. Returns `EFAULT` if the kernel has no page for some bytes.
    ///
    /// # Panics
    /// If the bytes do not lie inside this memory.
    pub(crate) fn try_read(&self, offset: usize, to: &mut [u8]) -> Result<(), SystemError> {
        assert!(offset <= self.len && to.len() <= self.len - offset, "they lie inside");
        let mut done = 0;
        while done < to.len() {
            let rest = to.len() - done;
            let into = libc::iovec { iov_base: to[done..].as_mut_ptr().cast(), iov_len: rest };
            let from = libc::iovec { iov_base: self.at.wrapping_byte_add(offset + done), iov_len: rest };
            // SAFETY: it writes to `rest` bytes of `to`, which is borrowed exclusively, and reads this process's own
            // memory, which the kernel checks.
            let copied = unsafe { libc::process_vm_readv(libc::getpid(), &raw const into, 1, &raw const from, 1, 0) };
            done += count_of(COPY_OUT, copied)?;
        }
        Ok(())
    }
}

/// How many bytes a call has copied, 0 if a signal came first. There was at least one byte to copy.
fn count_of(call: &'static str, copied: isize) -> Result<usize, SystemError> {
    match counted(call, copied) {
        Ok(0) => Err(SystemError::new(call, Errno::FAULT)),
        Err(error) if error.raw_os_error() == Errno::INTR.raw_os_error() => Ok(0),
        counted => counted,
    }
}

impl Drop for PrivateMemory {
    fn drop(&mut self) {
        // SAFETY: no borrow of this memory is left. If the kernel refuses, the memory stays mapped.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_call_is_repeated_but_not_for_ever() {
        let mut tried = 0;
        let is_free_later = || {
            tried += 1;
            if tried < 5 { Err(Errno::BUSY) } else { Ok(()) }
        };
        assert_eq!(once_not_busy(is_free_later), Ok(()));
        assert_eq!(tried, 5);
        assert_eq!(once_not_busy(|| Err(Errno::BUSY)), Err(Errno::BUSY));
        let mut tried = 0;
        let is_refused = || {
            tried += 1;
            Err(Errno::PERM)
        };
        assert_eq!(once_not_busy(is_refused), Err(Errno::PERM));
        assert_eq!(tried, 1);
    }
}
