//! Finds the mapping at an address: `PROCMAP_QUERY` (Linux 6.11), an ioctl of `/proc/PID/maps`. The
//! text form of that file would list all mappings from the first on each time.
//!
//! [Documentation/filesystems/proc.rst](https://docs.kernel.org/filesystems/proc.html);
//! [`<linux/fs.h>`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/fs.h)

use core::ffi::CStr;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use crate::{Descriptor, PAGE, ioctl};

/// The file (`/proc/self` would be the first thread, which has no memory once it has exited).
const PATH: &CStr = c"/proc/thread-self/maps";

/// The number of the call.
pub const PROCMAP_QUERY: Opcode = opcode::read_write::<Mapping>(b'f', 17);

/// `PROCMAP_QUERY_COVERING_OR_NEXT_VMA`: the mapping at an address, or the next one above it.
const COVERING_OR_NEXT: u64 = 1 << 4;

/// The mapping can be read (`PROCMAP_QUERY_VMA_READABLE`).
pub const READABLE: u64 = 1 << 0;
/// The mapping can be written (`PROCMAP_QUERY_VMA_WRITABLE`).
pub const WRITABLE: u64 = 1 << 1;
/// The mapping can be executed (`PROCMAP_QUERY_VMA_EXECUTABLE`).
pub const EXECUTABLE: u64 = 1 << 2;
/// The mapping is shared (`PROCMAP_QUERY_VMA_SHARED`).
pub const SHARED: u64 = 1 << 3;

/// A mapping: `struct procmap_query`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Mapping {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    /// The first address.
    pub start: u64,
    /// The first address after the mapping.
    pub end: u64,
    /// [`READABLE`] and so on.
    pub flags: u64,
    page_size: u64,
    /// Offset in the file where the mapping begins.
    pub offset: u64,
    /// The file's inode number; 0 without a file.
    pub inode: u64,
    /// The numbers of the file's device, major and minor.
    pub device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name_addr: u64,
    build_id_addr: u64,
}

/// `/proc/thread-self/maps`. If the program has closed the descriptor or replaced its file, each call opens the file
/// again.
#[derive(Debug)]
pub struct Maps(pub Descriptor);

impl Maps {
    /// Opens the file.
    ///
    /// # Errors
    /// The process has no free descriptor, or no `/proc`.
    pub fn open() -> Result<Maps, Errno> {
        Ok(Maps(Descriptor::keep_of_proc(PATH, OFlags::RDONLY)?))
    }

    /// The mapping at an address, or the next one above it.
    ///
    /// # Errors
    /// `ENOENT` if there is none, `ENOTTY` before Linux 6.11.
    pub fn at_or_behind(&self, address: usize) -> Result<Mapping, Errno> {
        let mut query = Mapping { query_flags: COVERING_OR_NEXT, query_addr: address as u64, ..Mapping::default() };
        self.ask(&mut query).map(|()| query)
    }

    /// Writes the name of the mapping at an address into `name`, with a terminating zero. Returns the number of bytes
    /// written; 0 for a mapping without a name.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if `name` is too short; otherwise as in [`Maps::at_or_behind`].
    pub fn name_at(&self, address: usize, name: &mut [u8]) -> Result<usize, Errno> {
        let (name_size, name_addr) = (name.len() as u32, name.as_mut_ptr().expose_provenance() as u64);
        let mut query = Mapping { query_addr: address as u64, name_size, name_addr, ..Mapping::default() };
        self.ask(&mut query).map(|()| query.name_size as usize)
    }

    /// The end of the mapping that contains an address.
    ///
    /// # Errors
    /// As in [`Maps::at_or_behind`].
    #[inline(never)] // Frees its stack before the mapping is moved.
    pub fn end_of(&self, address: usize) -> Result<usize, Errno> {
        let mut query = Mapping { query_addr: address as u64, ..Mapping::default() };
        self.ask(&mut query)?;
        Ok(query.end as usize)
    }

    /// Length of the part of `at..at + len` that belongs to the first mapping there. If the kernel cannot report it,
    /// the result is one page, which is never more than one mapping.
    pub fn first(&self, at: usize, len: usize) -> usize {
        match self.end_of(at) {
            Ok(end) => len.min(end - at),
            Err(_) => len.min(PAGE),
        }
    }

    /// Makes one call.
    fn ask(&self, query: &mut Mapping) -> Result<(), Errno> {
        query.size = size_of::<Mapping>() as u64;
        let mut again = None;
        let file = self.0.get_or_open(&mut again, PATH, OFlags::RDONLY)?;
        // SAFETY: the argument is the structure that the call reads and writes. If it names a buffer, that buffer is
        // writable.
        unsafe { ioctl(file, PROCMAP_QUERY, query) }?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::ptr;
    use std::println;

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::*;

    #[test]
    fn the_ioctl_number_equals_the_kernels() {
        assert_eq!(PROCMAP_QUERY, 0xc068_6611);
    }

    #[test]
    fn the_kernel_reports_the_mapping_at_an_address() {
        let len = 4 * PAGE;
        // SAFETY: a new mapping touches nothing that exists.
        let map = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE) }.unwrap();
        let (maps, at) = (Maps::open().unwrap(), map.addr());
        // SAFETY: the test's own mapping, which no other code uses.
        unsafe { mprotect(map.byte_add(2 * PAGE), 2 * PAGE, MprotectFlags::empty()) }.unwrap();
        match maps.at_or_behind(at) {
            Ok(found) => {
                assert!((found.start..found.end).contains(&(at as u64)));
                assert_eq!((found.flags, found.inode, found.end as usize), (READABLE, 0, at + 2 * PAGE));
            }
            Err(errno) => {
                println!("skipped: this kernel does not report single mappings (Linux 6.11): {errno}");
                assert_eq!(maps.first(at, len), PAGE);
                return;
            }
        }
        assert_eq!(maps.end_of(at), Ok(at + 2 * PAGE));
        assert_eq!([PAGE, len].map(|len| maps.first(at, len)), [PAGE, 2 * PAGE]);
        let mut name = [1; 16];
        assert_eq!(maps.name_at(at, &mut name), Ok(0), "it has none");
        let own =
            maps.name_at((the_kernel_reports_the_mapping_at_an_address as fn() as usize) & !(PAGE - 1), &mut name);
        assert_eq!(own, Err(Errno::NAMETOOLONG));
        // SAFETY: as above.
        unsafe { munmap(map, len) }.unwrap();
        assert_eq!((maps.end_of(at), maps.first(at, len)), (Err(Errno::NOENT), PAGE));
        assert_eq!(maps.at_or_behind(usize::MAX - PAGE).map(|found| found.start), Err(Errno::NOENT));
    }
}
