//! What is mapped at an address: `PROCMAP_QUERY` (Linux 6.11), a call of `/proc/PID/maps`. As text, that begins with
//! the first of all mappings each time.
//!
//! [Documentation/filesystems/proc.rst](https://docs.kernel.org/filesystems/proc.html);
//! [`<linux/fs.h>`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/fs.h)

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use crate::{Descriptor, PAGE, ioctl};

/// The number of the call.
pub const PROCMAP_QUERY: Opcode = opcode::read_write::<Mapping>(b'f', 17);

/// `PROCMAP_QUERY_COVERING_OR_NEXT_VMA`: the mapping at an address, or the first behind it.
const COVERING_OR_NEXT: u64 = 1 << 4;

/// It can be read (`PROCMAP_QUERY_VMA_READABLE`).
pub const READABLE: u64 = 1 << 0;
/// It can be written (`PROCMAP_QUERY_VMA_WRITABLE`).
pub const WRITABLE: u64 = 1 << 1;
/// It can be run (`PROCMAP_QUERY_VMA_EXECUTABLE`).
pub const EXECUTABLE: u64 = 1 << 2;
/// It is shared (`PROCMAP_QUERY_VMA_SHARED`).
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
    /// The address behind the last.
    pub end: u64,
    /// [`READABLE`] and so on.
    pub flags: u64,
    page_size: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// The file's number; 0: none.
    pub inode: u64,
    /// The numbers of the file's device, major and minor.
    pub device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name_addr: u64,
    build_id_addr: u64,
}

/// `/proc/thread-self/maps`. `/proc/self` is the first thread's, which has no memory once it has ended. If the
/// program has closed it, or put another file in its place, it is opened again for each call.
#[derive(Debug)]
pub struct Maps(pub Descriptor);

impl Maps {
    /// Opens it.
    ///
    /// # Errors
    /// The process has no descriptor left, or no `/proc`.
    pub fn open() -> Result<Maps, Errno> {
        match open() {
            Ok(file) => Ok(Maps(file)),
            Err(errno) => Err(errno),
        }
    }

    /// The mapping at an address, or the first behind it.
    ///
    /// # Errors
    /// `ENOENT` where there is none, `ENOTTY` before Linux 6.11.
    pub fn at_or_behind(&self, address: usize) -> Result<Mapping, Errno> {
        let mut query = Mapping { query_flags: COVERING_OR_NEXT, query_addr: address as u64, ..Mapping::default() };
        self.ask(&mut query).map(|()| query)
    }

    /// Writes the name of the mapping at an address into `name`, with a zero behind it. Gives how many bytes that are,
    /// none for one without a name.
    ///
    /// # Errors
    /// `ENAMETOOLONG` where there is no room for it; else as [`Maps::at_or_behind`].
    pub fn name_at(&self, address: usize, name: &mut [u8]) -> Result<usize, Errno> {
        let (name_size, name_addr) = (name.len() as u32, name.as_mut_ptr().expose_provenance() as u64);
        let mut query = Mapping { query_addr: address as u64, name_size, name_addr, ..Mapping::default() };
        self.ask(&mut query).map(|()| query.name_size as usize)
    }

    /// Where the mapping ends that is at an address.
    ///
    /// # Errors
    /// As for [`Maps::at_or_behind`].
    #[inline(never)] // What it needs is off the stack when the mapping is moved.
    pub fn end_of(&self, address: usize) -> Result<usize, Errno> {
        let mut query = Mapping { query_addr: address as u64, ..Mapping::default() };
        match self.ask(&mut query) {
            Ok(()) => Ok(query.end as usize),
            Err(errno) => Err(errno),
        }
    }

    /// How many of `len` bytes are one mapping, from the first on. Where nobody can say, a page, which is never more
    /// than one.
    pub fn first(&self, at: usize, len: usize) -> usize {
        match self.end_of(at) {
            Ok(end) => len.min(end - at),
            Err(_) => len.min(PAGE),
        }
    }

    /// One call.
    fn ask(&self, query: &mut Mapping) -> Result<(), Errno> {
        query.size = size_of::<Mapping>() as u64;
        let mut again = None;
        let file = self.0.get_or_open(&mut again, open)?;
        // SAFETY: the argument is the structure that the call reads and writes. The buffer that it may name is one that
        // can be written.
        match unsafe { ioctl(file, PROCMAP_QUERY, query) } {
            Ok(_) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

fn open() -> Result<Descriptor, Errno> {
    Descriptor::keep_of_proc(c"/proc/thread-self/maps", OFlags::RDONLY)
}

#[cfg(test)]
mod tests {
    use core::ptr;
    use std::println;

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::*;

    #[test]
    fn the_number_is_the_kernels() {
        assert_eq!(PROCMAP_QUERY, 0xc068_6611);
    }

    #[test]
    fn the_kernel_tells_what_is_where() {
        let len = 4 * PAGE;
        // SAFETY: a new mapping touches nothing that exists.
        let map = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE) }.unwrap();
        let (maps, at) = (Maps::open().unwrap(), map.addr());
        // SAFETY: our own mapping, which nobody uses.
        unsafe { mprotect(map.byte_add(2 * PAGE), 2 * PAGE, MprotectFlags::empty()) }.unwrap();
        match maps.at_or_behind(at) {
            Ok(found) => {
                assert!((found.start..found.end).contains(&(at as u64)));
                assert_eq!((found.flags, found.inode, found.end as usize), (READABLE, 0, at + 2 * PAGE));
            }
            Err(errno) => {
                println!("skipped: this kernel does not tell of single mappings (Linux 6.11): {errno}");
                assert_eq!(maps.first(at, len), PAGE);
                return;
            }
        }
        assert_eq!(maps.end_of(at), Ok(at + 2 * PAGE));
        assert_eq!([PAGE, len].map(|len| maps.first(at, len)), [PAGE, 2 * PAGE]);
        let mut name = [1; 16];
        assert_eq!(maps.name_at(at, &mut name), Ok(0), "it has none");
        let own = maps.name_at((the_kernel_tells_what_is_where as fn() as usize) & !(PAGE - 1), &mut name);
        assert_eq!(own, Err(Errno::NAMETOOLONG));
        // SAFETY: as above.
        unsafe { munmap(map, len) }.unwrap();
        assert_eq!((maps.end_of(at), maps.first(at, len)), (Err(Errno::NOENT), PAGE));
        assert_eq!(maps.at_or_behind(usize::MAX - PAGE).map(|found| found.start), Err(Errno::NOENT));
    }
}
