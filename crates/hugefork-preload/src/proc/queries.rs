//! What is mapped at an address, by `PROCMAP_QUERY` (Linux 6.11): `/proc/thread-self/maps` as text begins with the
//! first of all mappings each time.

use std::ops::Range;

use hugefork_linux::procmap_query::{self, EXECUTABLE, READABLE, SHARED, WRITABLE};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use crate::descriptors::passing::Passing;

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vma {
    pub(crate) range: Range<usize>,
    pub(crate) rights: ProtFlags,
    /// Whether it is a private mapping of the engine's file.
    pub(crate) is_inherited: bool,
}

/// `/proc/thread-self/maps`, to ask.
pub(crate) struct Maps(Passing<procmap_query::Maps>);

impl Maps {
    /// Opens it.
    ///
    /// # Errors
    /// The process has no descriptor left, or no `/proc`.
    pub(crate) fn open() -> Result<Maps, Errno> {
        Passing::open(procmap_query::Maps::open).map(Maps)
    }

    /// The mapping at an address, or the first behind it; none if there is none.
    ///
    /// # Errors
    /// The kernel cannot say.
    pub(crate) fn at_or_behind(&self, address: usize) -> Result<Option<Vma>, Errno> {
        let mapping = match self.0.at_or_behind(address) {
            Err(Errno::NOENT) => return Ok(None),
            answer => answer?,
        };
        let named =
            [(READABLE, ProtFlags::READ), (WRITABLE, ProtFlags::WRITE), (EXECUTABLE, ProtFlags::EXEC)].into_iter();
        let rights = named.filter(|(flag, _)| mapping.flags & flag != 0).map(|(_, right)| right).collect();
        let range = mapping.start as usize..mapping.end as usize;
        let is_private_file = mapping.flags & SHARED == 0 && mapping.inode != 0;
        let is_inherited = is_private_file && self.is_of_the_engine(range.start)?;
        Ok(Some(Vma { range, rights, is_inherited }))
    }

    fn is_of_the_engine(&self, start: usize) -> Result<bool, Errno> {
        let mut name = [0_u8; 64];
        match self.0.name_at(start, &mut name) {
            // A name that is longer, or the mapping is gone. Without memory, for one, nobody knows.
            Err(Errno::NAMETOOLONG | Errno::NOENT) => Ok(false),
            answer => answer.map(|_| name.starts_with(b"/memfd:hugefork (deleted)\0")),
        }
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
