//! What is mapped at an address, by `PROCMAP_QUERY` (Linux 6.11): `/proc/thread-self/maps` as text begins with the
//! first of all mappings each time. The engine asks in the same way where mappings end (sys/linux/mappings.rs).

use std::ops::Range;
use std::os::fd::{IntoRawFd, RawFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use syscalls::{Sysno, syscall};

use crate::sandbox::seal;

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_len: u32,
    build_id_len: u32,
    name: u64,
    build_id: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: usize = 3 << 30 | size_of::<Query>() << 16 | (b'f' as usize) << 8 | 17;

const COVERING_OR_NEXT: u64 = 1 << 4;

const READABLE: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const EXECUTABLE: u64 = 1 << 2;
const SHARED: u64 = 1 << 3;

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vma {
    pub(crate) range: Range<usize>,
    pub(crate) rights: ProtFlags,
    /// Whether it is a private mapping of the engine's file.
    pub(crate) is_inherited: bool,
}

/// `/proc/thread-self/maps`, to ask.
pub(crate) struct Maps {
    number: RawFd,
}

impl Maps {
    /// Opens it.
    ///
    /// # Errors
    /// The process has no descriptor left, or no `/proc`.
    pub(crate) fn open() -> Result<Maps, Errno> {
        seal::allows_calls()?;
        let file = open(c"/proc/thread-self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Maps { number: file.into_raw_fd() })
    }

    /// The mapping at an address, or the first behind it; none if there is none.
    ///
    /// # Errors
    /// The kernel cannot say.
    pub(crate) fn at_or_behind(&self, address: usize) -> Result<Option<Vma>, Errno> {
        let mut query = Query { flags: COVERING_OR_NEXT, address: address as u64, ..Query::default() };
        match self.ask(&mut query) {
            Err(Errno::NOENT) => return Ok(None),
            answer => answer?,
        }
        let named =
            [(READABLE, ProtFlags::READ), (WRITABLE, ProtFlags::WRITE), (EXECUTABLE, ProtFlags::EXEC)].into_iter();
        let rights = named.filter(|(flag, _)| query.vma_flags & flag != 0).map(|(_, right)| right).collect();
        let is_private_file = query.vma_flags & SHARED == 0 && query.inode != 0;
        let is_inherited = is_private_file && self.is_of_the_engine(query.start)?;
        Ok(Some(Vma { range: query.start as usize..query.end as usize, rights, is_inherited }))
    }

    fn is_of_the_engine(&self, start: u64) -> Result<bool, Errno> {
        let mut name = [0_u8; 64];
        let (name_len, at) = (name.len() as u32, name.as_mut_ptr() as u64);
        let mut query = Query { address: start, name_len, name: at, ..Query::default() };
        match self.ask(&mut query) {
            // A name that is longer, or the mapping is gone. Without memory, for one, nobody knows.
            Err(Errno::NAMETOOLONG | Errno::NOENT) => Ok(false),
            answer => answer.map(|()| name.starts_with(b"/memfd:hugefork (deleted)\0")),
        }
    }

    fn ask(&self, query: &mut Query) -> Result<(), Errno> {
        query.size = size_of::<Query>() as u64;
        // SAFETY: the argument is the structure that the call reads and writes, and so is the buffer that it names.
        let answer = unsafe { syscall!(Sysno::ioctl, self.number, PROCMAP_QUERY, &raw mut *query) };
        answer.map(drop).map_err(|errno| Errno::from_raw_os_error(errno.into_raw()))
    }
}

impl Drop for Maps {
    fn drop(&mut self) {
        // SAFETY: opened by this, and not used again.
        unsafe { rustix::io::close(self.number) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BASE_PAGE;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, mmap, mmap_anonymous, munmap};

    #[test]
    fn the_kernel_tells_what_is_where() {
        let maps = Maps::open().unwrap();
        // SAFETY: a new mapping where the kernel likes.
        let at = unsafe {
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(std::ptr::null_mut(), 4 * BASE_PAGE, rights, MapFlags::PRIVATE)
        };
        let at = at.unwrap() as usize;
        match maps.at_or_behind(at) {
            Ok(found) => assert!(found.is_some_and(|found| found.range.contains(&at) && !found.is_inherited)),
            Err(errno) => return println!("skipped: the kernel cannot say: {errno}"),
        }
        for (name, is_inherited) in [(c"hugefork", true), (c"hugefork-token", false)] {
            let file = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&file, BASE_PAGE as u64).unwrap();
            for kind in [MapFlags::PRIVATE, MapFlags::SHARED] {
                let place = at + BASE_PAGE;
                // SAFETY: within the mapping, which nobody uses.
                unsafe {
                    mmap(place as *mut _, BASE_PAGE, ProtFlags::READ, kind | MapFlags::FIXED, &file, 0).unwrap();
                }
                let is_inherited = is_inherited && kind == MapFlags::PRIVATE;
                let expected = Vma { range: place..place + BASE_PAGE, rights: ProtFlags::READ, is_inherited };
                assert_eq!(maps.at_or_behind(place), Ok(Some(expected)), "{name:?} {kind:?}");
            }
        }
        // SAFETY: our own mappings, which nobody uses any more.
        unsafe { munmap(at as *mut _, 4 * BASE_PAGE) }.unwrap();
        assert_eq!(maps.at_or_behind(usize::MAX - BASE_PAGE), Ok(None));
    }
}
