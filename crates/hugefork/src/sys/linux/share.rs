//! Descriptors through which other processes see memory and cannot change it, and the other side: mappings of them.
//!
//! ```text
//!   pool's file (read and write, mode 0444; a memfd is sealed against other lengths)
//!        └─ opened anew through /proc/self/fd, for reading only ─▶ another process: private mappings
//!   copy's memfd (sealed against everything) ─────────────────────▶ the same
//! ```
//! A descriptor for reading gives no right to write, to map writable and shared, to punch holes or to change the
//! length. To open it anew for writing takes the right to write by the file's mode, which nobody has but root. Who owns
//! the file can change the mode: processes of the user who built the pool.
//!
//! The other process trusts nobody. A file that cannot become shorter has a page for each byte, or the kernel makes one
//! for who reads there; but of hugetlb there may be none left, and then a load is a `SIGBUS`. So what is mapped of
//! hugetlb gets its pages at once. Where the other side may take them away again, or make the file shorter, the kernel
//! copies, which has an error for it.

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

use super::{LOST, kept, named};
use crate::sys::SystemError;
use crate::sys::racing::copy_out;
use crate::units::HUGE_PAGE;

/// Who may open the file of a pool anew: anybody who has it already, for reading.
pub(super) const FOR_READING: Mode = Mode::from_raw_mode(0o444);

/// Makes a memfd that nobody can open anew for writing, or make shorter or longer.
///
/// A file of a tmpfs of one's own cannot be sealed. Nobody can open it anew for writing either, and without that nobody
/// can change its length.
pub(super) fn guard(fd: BorrowedFd<'_>) -> Result<(), SystemError> {
    // Not again, since the process may be another user by now, who may not.
    if named("fstat of a memfd", fstat(fd))?.st_mode & 0o222 != 0 {
        named("fchmod of a memfd", fchmod(fd, FOR_READING))?;
    }
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let has = named("fcntl(F_GET_SEALS)", fcntl_get_seals(fd))?;
    // Who takes no more seals has the one against those.
    if has.contains(SealFlags::SEAL) {
        return Ok(());
    }
    named("fcntl(F_ADD_SEALS)", fcntl_add_seals(fd, seals))
}

/// Opens a descriptor anew, for reading only.
pub(super) fn reopen_for_reading(descriptor: &Descriptor) -> Result<Descriptor, SystemError> {
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let opened = Descriptor::keep(|| open(&*path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()));
    let opened = named("open of /proc/self/fd", opened)?;
    // Another thread may have put another file there just then.
    if opened.file() == descriptor.file() { Ok(opened) } else { Err(SystemError::new(LOST, Errno::BADF)) }
}

const MAP_EXTENT: &str = "mmap of an extent";
const MAP_ZEROS: &str = "mmap of zeros";
const GET_PAGES: &str = "madvise(MADV_POPULATE_READ) of an extent";
const COPY_IN: &str = "pread of an extent";
const COPY_OUT: &str = "process_vm_readv of an import";

/// Memory that is written once and then sealed.
pub(crate) struct Unsealed(Descriptor);

impl Unsealed {
    /// `len` bytes of zeros, which take no memory.
    pub(crate) fn new(len: usize) -> Result<Unsealed, SystemError> {
        if getrlimit(Resource::Fsize).current.is_some_and(|most| most < len as u64) {
            // The kernel would not only refuse: it sends SIGXFSZ, which kills.
            return named("ftruncate of a memfd", Err(Errno::FBIG));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = named("memfd_create", Descriptor::keep(|| memfd_create("hugefork-copy", flags)))?;
        named("ftruncate of a memfd", ftruncate(kept(&file)?, len as u64))?;
        Ok(Unsealed(file))
    }

    /// Writes all of `bytes` at `offset`.
    pub(crate) fn write(&self, mut bytes: &[u8], mut offset: usize) -> Result<(), SystemError> {
        while !bytes.is_empty() {
            match pwrite(kept(&self.0)?, bytes, offset as u64) {
                Ok(0) => return Err(super::descriptor::WROTE_NOTHING),
                Ok(count) => (bytes, offset) = (&bytes[count..], offset + count),
                Err(Errno::INTR) => {}
                Err(errno) => return named("pwrite to a memfd", Err(errno)),
            }
        }
        Ok(())
    }

    /// Ends all change.
    pub(crate) fn seal(self) -> Result<Descriptor, SystemError> {
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let file = kept(&self.0)?;
        named("fcntl(F_ADD_SEALS)", once_not_busy(|| fcntl_add_seals(file, seals)))?;
        Ok(self.0)
    }
}

/// Tries again what the kernel refuses as long as somebody has a page in hand. Here that is the kernel itself, which
/// moves pages between its lists or looks at them, since nobody else has the memory. It waits for itself for 150 ms
/// (`memfd_wait_for_pins`), which are too few on a busy machine.
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

/// How `fstatfs` calls hugetlb (`HUGETLBFS_MAGIC`), and shmem (`TMPFS_MAGIC`).
const HUGETLBFS: u64 = 0x9584_58f6;
const TMPFS: u64 = 0x0102_1994;

/// What somebody's descriptor promises.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarantees {
    /// Length in bytes.
    pub(crate) len: u64,
    /// How much memory it has, in bytes: less than its length where nobody has written.
    pub(crate) memory: u64,
    /// Whether who has the right to write to it may make it shorter: it is of a tmpfs, whose files cannot be sealed.
    pub(crate) may_shrink: bool,
    /// Whether nobody can ever write to it, or make it shorter.
    pub(crate) is_sealed: bool,
    /// The size of its pages if they are of hugetlb: there may be none left for who reads where it has none.
    pub(crate) hugetlb: Option<usize>,
}

/// What a descriptor promises; `None` if it is no memory.
pub(crate) fn guarantees_of(fd: BorrowedFd<'_>) -> Result<Option<Guarantees>, SystemError> {
    let seals = match fcntl_get_seals(fd) {
        // It is no memfd.
        Err(Errno::INVAL) => return Ok(None),
        seals => named("fcntl(F_GET_SEALS)", seals)?,
    };
    let file = named("fstat", fstat(fd))?;
    // For hugetlb, what the kernel calls a block of the file is a page.
    let system = named("fstatfs", fstatfs(fd))?.f_type.cast_unsigned();
    let hugetlb = (system == HUGETLBFS).then_some(file.st_blksize as usize);
    let may_shrink = !seals.contains(SealFlags::SHRINK);
    let is_sealed = !may_shrink && seals.contains(SealFlags::WRITE);
    // What cannot be sealed has the seal against seals, and no other. Who sealed it, but not against this, has a
    // reason.
    let is_pool = !may_shrink || system == TMPFS && seals == SealFlags::SEAL;
    // Of any file, in units of 512 bytes.
    let (len, memory) = (file.st_size.cast_unsigned(), file.st_blocks.cast_unsigned() * 512);
    Ok(is_pool.then_some(Guarantees { len, memory, may_shrink, is_sealed, hugetlb }))
}

/// Some bytes of private memory, which lie behind those before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) len: usize,
    /// Where they are in the file, or `None` for zeros.
    pub(crate) file_offset: Option<usize>,
}

/// Private memory of this process that shows parts of a file, and zeros.
pub(crate) struct PrivateMemory {
    at: *mut c_void,
    len: usize,
}

// SAFETY: memory of the process, which any thread may use.
unsafe impl Send for PrivateMemory {}
// SAFETY: as above; it hands out nothing but addresses and copies.
unsafe impl Sync for PrivateMemory {}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const UNCHARGED: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

impl PrivateMemory {
    /// Memory that shows these stretches, at a multiple of `align` and of 2 MiB. What is written there stays in this
    /// process.
    pub(crate) fn of(
        fd: BorrowedFd<'_>,
        align: usize,
        stretches: impl Iterator<Item = Stretch> + Clone,
    ) -> Result<PrivateMemory, SystemError> {
        let len = stretches.clone().map(|stretch| stretch.len).sum();
        let free = PrivateMemory::zeros(len, align)?;
        // To map where nothing is takes 2 us, and 3.2 us in place of something else (docs/design.md).
        let mut memory = PrivateMemory { at: free.at, len: 0 };
        drop(free);
        for stretch in stretches.clone() {
            match memory.append(fd, stretch) {
                // Another thread has got these addresses meanwhile.
                Err(error) if error.raw_os_error() == Errno::EXIST.raw_os_error() => {
                    return PrivateMemory::over_zeros(fd, len, align, stretches);
                }
                appended => appended?,
            }
        }
        Ok(memory)
    }

    /// As [`PrivateMemory::of`], at addresses that nobody else can get meanwhile.
    fn over_zeros(
        fd: BorrowedFd<'_>,
        len: usize,
        align: usize,
        stretches: impl Iterator<Item = Stretch>,
    ) -> Result<PrivateMemory, SystemError> {
        let memory = PrivateMemory::zeros(len, align)?;
        let mut offset = 0;
        for Stretch { len, file_offset } in stretches {
            let at = memory.at.wrapping_byte_add(offset);
            if let Some(file_offset) = file_offset {
                // SAFETY: a part of this memory, which nobody uses yet.
                let mapped = unsafe { mmap(at, len, READ_WRITE, UNCHARGED | MapFlags::FIXED, fd, file_offset as u64) };
                named(MAP_EXTENT, mapped)?;
            }
            offset += len;
        }
        Ok(memory)
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
                // SAFETY: a part of what was just mapped that nobody uses. If the kernel refuses, it stays.
                let _ = unsafe { munmap(at, len) };
            }
        }
        Ok(memory)
    }

    /// Makes it longer by a stretch. `EEXIST` if something else is mapped there.
    fn append(&mut self, fd: BorrowedFd<'_>, Stretch { len, file_offset }: Stretch) -> Result<(), SystemError> {
        let (at, flags) = (self.at.wrapping_byte_add(self.len), UNCHARGED | MapFlags::FIXED_NOREPLACE);
        match file_offset {
            // SAFETY: it replaces nothing.
            Some(from) => named(MAP_EXTENT, unsafe { mmap(at, len, READ_WRITE, flags, fd, from as u64) })?,
            // SAFETY: as above.
            None => named(MAP_ZEROS, unsafe { mmap_anonymous(at, len, READ_WRITE, flags) })?,
        };
        self.len += len;
        Ok(())
    }

    /// Gets the pages of all that shows a file, so that no read has to. `EFAULT` where there is none left.
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

    /// Copies bytes of the file over what is mapped, for this process alone. `EFAULT` where the file has become too
    /// short, or the kernel has no page for them.
    ///
    /// # Panics
    /// If they do not lie inside.
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

    /// Copies bytes out, which others may write to meanwhile.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(offset <= self.len && to.len() <= self.len - offset, "they lie inside");
        // SAFETY: within the memory, all of which can be read.
        unsafe { copy_out(self.at().add(offset), to) };
    }

    /// As [`PrivateMemory::read`], where pages may be missing. `EFAULT` if the kernel has none for them.
    ///
    /// # Panics
    /// If they do not lie inside.
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

/// How many bytes a call has copied, of which there are always some to copy: none if a signal came first.
fn count_of(call: &'static str, copied: isize) -> Result<usize, SystemError> {
    match copied {
        1.. => Ok(copied.cast_unsigned()),
        0 => Err(SystemError::new(call, Errno::FAULT)),
        ..0 => match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(Errno::INTR) => Ok(0),
            errno => Err(SystemError::new(call, errno.unwrap_or(Errno::FAULT))),
        },
    }
}

impl Drop for PrivateMemory {
    fn drop(&mut self) {
        // SAFETY: whoever borrowed from it is gone. If the kernel refuses, it stays.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_busy_is_tried_again_but_not_for_ever() {
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
