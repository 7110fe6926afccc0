//! Where mappings end, and what they are of, by `PROCMAP_QUERY` (Linux 6.11).
//!
//! Who moves several mappings with one call (Linux 6.17) moves one after the other: other threads see that, and where
//! the call fails on the way, nothing tells what has moved. Older kernels refuse it, so where the kernel does not tell,
//! there is no need to ask.

use std::ffi::{c_int, c_ulong};
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{major, minor};

use super::{last_error, open_again};
use crate::units::BASE_PAGE;

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
const PROCMAP_QUERY: c_ulong = 3 << 30 | (size_of::<Query>() as c_ulong) << 16 | (b'f' as c_ulong) << 8 | 17;

/// Asks for the mapping at an address, or the first behind it.
const COVERING_OR_NEXT: u64 = 1 << 4;

/// Which file a mapping is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: [u32; 2],
    inode: u64,
}

impl FileId {
    /// By its numbers as `fstat` has them.
    pub(super) fn new(device: u64, inode: u64) -> FileId {
        FileId { device: [major(device), minor(device)], inode }
    }
}

/// `/proc/thread-self/maps`, if it answers. `/proc/self` is the first thread's, which has no memory once it has ended.
pub(super) struct Mappings(Option<OwnedFd>);

impl Mappings {
    /// Opens it. `mapped` is the address of some mapping.
    pub(super) fn open(mapped: usize) -> Mappings {
        let maps = File::open("/proc/thread-self/maps").ok().map(OwnedFd::from);
        Mappings(maps.filter(|maps| end_of(maps, mapped).is_some()))
    }

    /// Whether these bytes may be moved by one call, as far as others see: they are one mapping, or the call refuses
    /// them.
    pub(super) fn is_one(&self, at: usize, len: usize) -> bool {
        match &self.0 {
            Some(maps) => end_of(maps, at).is_some_and(|end| at + len <= end),
            None => true,
        }
    }

    /// How many of these bytes a call moves as one mapping, or refuses: from the first on.
    pub(super) fn first(&self, at: usize, len: usize) -> usize {
        match &self.0 {
            Some(maps) => match end_of(maps, at) {
                Some(end) => len.min(end - at),
                // It has told before: then a page, which is never more than one.
                None => len.min(BASE_PAGE),
            },
            None => len,
        }
    }

    /// The first piece of a range of addresses that shows a file, from `offset` on at the start of the range, or at any
    /// offset. All of it where the kernel does not tell.
    pub(super) fn shown(&self, range: &Range<usize>, file: FileId, offset: Option<usize>) -> Option<Range<usize>> {
        let Some(maps) = &self.0 else { return Some(range.clone()) };
        let mut at = range.start;
        while at < range.end {
            let found = match at_or_behind(maps, at) {
                Ok(found) => found,
                Err(libc::ENOENT) => return None,
                Err(_) => return Some(at..range.end),
            };
            let piece = at.max(found.start as usize)..range.end.min(found.end as usize);
            if piece.is_empty() {
                return None;
            }
            let shown_at = found.offset as usize + (piece.start - found.start as usize);
            let is_expected = offset.is_none_or(|offset| shown_at == offset + (piece.start - range.start));
            if is_expected && (found.inode, found.device) == (file.inode, file.device) {
                return Some(piece);
            }
            at = piece.end;
        }
        None
    }

    /// Opens it again, if the program has closed it, which did not know of it: see [`open_again`].
    pub(super) fn open_again(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|maps| open_again(maps, || File::open("/proc/thread-self/maps").ok().map(OwnedFd::from)))
    }

    pub(super) fn file(&mut self) -> Option<&mut OwnedFd> {
        self.0.as_mut()
    }

    pub(super) fn descriptor(&self) -> Option<i32> {
        self.0.as_ref().map(AsRawFd::as_raw_fd)
    }
}

/// Where the mapping ends that is at this address.
fn end_of(maps: &OwnedFd, address: usize) -> Option<usize> {
    let mut query = Query { size: size_of::<Query>() as u64, address: address as u64, ..Query::default() };
    // SAFETY: the argument is the structure that the call reads and writes; it names no buffers.
    let answer = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    (answer == 0).then_some(query.end as usize)
}

/// The mapping at an address, or the first behind it.
fn at_or_behind(maps: &OwnedFd, address: usize) -> Result<Query, c_int> {
    let (size, flags) = (size_of::<Query>() as u64, COVERING_OR_NEXT);
    let mut query = Query { size, flags, address: address as u64, ..Query::default() };
    // SAFETY: as above.
    let answer = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    if answer == 0 { Ok(query) } else { Err(last_error().raw_os_error()) }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::*;

    #[test]
    fn a_file_is_told_from_what_lies_in_its_place() {
        let len = 4 * BASE_PAGE;
        let file = rustix::fs::memfd_create("hugefork-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 2 * len as u64).unwrap();
        let known = rustix::fs::fstat(&file).unwrap();
        let id = FileId::new(known.st_dev, known.st_ino);
        let (none, rights, offset) = (core::ptr::null_mut(), ProtFlags::READ, BASE_PAGE);
        // SAFETY: a new mapping touches nothing that exists.
        let map = unsafe { rustix::mm::mmap(none, len, rights, MapFlags::SHARED, &file, offset as u64) }.unwrap();
        let mappings = Mappings::open(map.addr());
        if mappings.descriptor().is_none() {
            println!("skipped: this kernel does not tell of single mappings (Linux 6.11)");
            return;
        }
        let all = map.addr()..map.addr() + len;
        assert_eq!(mappings.shown(&all, id, Some(offset)), Some(all.clone()));
        assert_eq!((mappings.shown(&all, id, Some(0)), mappings.shown(&all, id, None)), (None, Some(all.clone())));
        let second = all.start + BASE_PAGE;
        // SAFETY: within our own mapping, which nobody uses.
        unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            mmap_anonymous(map.byte_add(BASE_PAGE), BASE_PAGE, rights, flags).unwrap();
        }
        assert_eq!(mappings.shown(&all, id, Some(offset)), Some(all.start..second));
        assert_eq!(mappings.shown(&(second..all.end), id, Some(offset + BASE_PAGE)), Some(second + BASE_PAGE..all.end));
        assert_eq!(mappings.shown(&(second..second + BASE_PAGE), id, None), None);
        // SAFETY: our own mappings.
        unsafe { munmap(map, len) }.unwrap();
        assert_eq!(mappings.shown(&all, id, None), None);
    }

    #[test]
    fn two_mappings_are_not_one() {
        let len = 4 * BASE_PAGE;
        // SAFETY: a new mapping touches nothing that exists.
        let map = unsafe { mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE) }.unwrap();
        let mappings = Mappings::open(map.addr());
        if mappings.descriptor().is_none() {
            println!("skipped: this kernel does not tell of single mappings (Linux 6.11)");
            return;
        }
        // SAFETY: our own mapping, which nobody uses.
        unsafe { mprotect(map.byte_add(2 * BASE_PAGE), 2 * BASE_PAGE, MprotectFlags::empty()) }.unwrap();
        assert!(mappings.is_one(map.addr(), 2 * BASE_PAGE) && !mappings.is_one(map.addr(), 3 * BASE_PAGE));
        assert_eq!([BASE_PAGE, len].map(|len| mappings.first(map.addr(), len)), [BASE_PAGE, 2 * BASE_PAGE]);
        // SAFETY: as above.
        unsafe { munmap(map, len) }.unwrap();
        assert!(!mappings.is_one(map.addr(), BASE_PAGE), "nothing is there");
        assert_eq!(mappings.first(map.addr(), len), BASE_PAGE, "nobody says how much");
    }
}
