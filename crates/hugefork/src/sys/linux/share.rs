//! Descriptors through which other processes see memory and cannot change it, and the other side: mappings of them.
//!
//! ```text
//!   pool's memfd (read and write, mode 0444, sealed against other lengths)
//!        └─ opened anew through /proc/self/fd, for reading only ─▶ another process: private mappings
//!   copy's memfd (sealed against everything) ─────────────────────▶ the same
//! ```
//! A descriptor for reading gives no right to write, to map writable and shared, to punch holes or to change the
//! length. To open it anew for writing takes the right to write by the file's mode, which nobody has but root. Who owns
//! the file can change the mode: processes of the user who built the pool.

use core::ffi::c_void;
use core::ptr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create, open,
};
use rustix::io::{Errno, pwrite};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use super::named;
use crate::sys::SystemError;
use crate::sys::racing::copy_out;
use crate::units::HUGE_PAGE;

/// Who may open the file of a pool anew: anybody who has it already, for reading.
const FOR_READING: Mode = Mode::from_raw_mode(0o444);

/// Makes a memfd that nobody can open anew for writing, or make shorter or longer.
pub(super) fn guard(fd: &OwnedFd) -> Result<(), SystemError> {
    // Not again, since the process may be another user by now, who may not.
    if named("fstat of a memfd", fstat(fd))?.st_mode & 0o222 != 0 {
        named("fchmod of a memfd", fchmod(fd, FOR_READING))?;
    }
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if named("fcntl(F_GET_SEALS)", fcntl_get_seals(fd))?.contains(seals) {
        return Ok(());
    }
    named("fcntl(F_ADD_SEALS)", fcntl_add_seals(fd, seals))
}

/// Opens a descriptor anew, for reading only.
pub(super) fn reopen_for_reading(fd: &OwnedFd) -> Result<OwnedFd, SystemError> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    named("open of /proc/self/fd", open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))
}

/// Memory that is written once and then sealed.
pub(crate) struct Unsealed(OwnedFd);

impl Unsealed {
    /// `len` bytes of zeros, which take no memory.
    pub(crate) fn new(len: usize) -> Result<Unsealed, SystemError> {
        if getrlimit(Resource::Fsize).current.is_some_and(|most| most < len as u64) {
            // The kernel would not only refuse: it sends SIGXFSZ, which kills.
            return named("ftruncate of a memfd", Err(Errno::FBIG));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = named("memfd_create", memfd_create("hugefork-copy", flags))?;
        named("ftruncate of a memfd", ftruncate(&fd, len as u64))?;
        Ok(Unsealed(fd))
    }

    /// Writes all of `bytes` at `offset`.
    pub(crate) fn write(&self, mut bytes: &[u8], mut offset: usize) -> Result<(), SystemError> {
        while !bytes.is_empty() {
            match pwrite(&self.0, bytes, offset as u64) {
                Ok(0) => return Err(super::descriptor::WROTE_NOTHING),
                Ok(count) => (bytes, offset) = (&bytes[count..], offset + count),
                Err(Errno::INTR) => {}
                Err(errno) => return named("pwrite to a memfd", Err(errno)),
            }
        }
        Ok(())
    }

    /// Ends all change.
    pub(crate) fn seal(self) -> Result<OwnedFd, SystemError> {
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        named("fcntl(F_ADD_SEALS)", fcntl_add_seals(&self.0, seals))?;
        Ok(self.0)
    }
}

/// What somebody's descriptor promises.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promises {
    /// Length in bytes, which never becomes less.
    pub(crate) len: u64,
    /// Whether nobody can ever write to it.
    pub(crate) is_sealed: bool,
}

/// What a descriptor promises; `None` if it may become shorter, so that a read of it may kill.
pub(crate) fn promises_of(fd: BorrowedFd<'_>) -> Result<Option<Promises>, SystemError> {
    let seals = match fcntl_get_seals(fd) {
        // It is no memfd.
        Err(Errno::INVAL) => return Ok(None),
        seals => named("fcntl(F_GET_SEALS)", seals)?,
    };
    let len = named("fstat", fstat(fd))?.st_size.cast_unsigned();
    let promises = Promises { len, is_sealed: seals.contains(SealFlags::WRITE) };
    Ok(seals.contains(SealFlags::SHRINK).then_some(promises))
}

/// Private memory of this process that shows zeros, and parts of files.
pub(crate) struct PrivateMemory {
    at: *mut c_void,
    len: usize,
}

// SAFETY: memory of the process, which any thread may use.
unsafe impl Send for PrivateMemory {}
// SAFETY: as above; it hands out nothing but addresses and copies.
unsafe impl Sync for PrivateMemory {}

impl PrivateMemory {
    /// `len` bytes of zeros, at a multiple of `align` and of 2 MiB.
    pub(crate) fn zeros(len: usize, align: usize) -> Result<PrivateMemory, SystemError> {
        const CALL: &str = "mmap of zeros";
        let align = align.max(HUGE_PAGE);
        let whole = len.checked_add(align).ok_or(SystemError::new(CALL, Errno::NOMEM))?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let start = named(CALL, unsafe { mmap_anonymous(ptr::null_mut(), whole, protection, flags) })?;
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

    /// Shows a part of a file in place of `len` zeros at `offset`. What is written there stays in this process.
    ///
    /// # Panics
    /// If it does not lie inside.
    pub(crate) fn show(
        &mut self,
        offset: usize,
        fd: BorrowedFd<'_>,
        file_offset: usize,
        len: usize,
    ) -> Result<(), SystemError> {
        assert!(offset <= self.len && len <= self.len - offset, "it lies inside");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: a part of this memory, which nobody uses while it is borrowed exclusively.
        let mapped = unsafe { mmap(self.at.byte_add(offset), len, protection, flags, fd.as_fd(), file_offset as u64) };
        named("mmap of an extent", mapped).map(drop)
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
}

impl Drop for PrivateMemory {
    fn drop(&mut self) {
        // SAFETY: whoever borrowed from it is gone. If the kernel refuses, it stays.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}
