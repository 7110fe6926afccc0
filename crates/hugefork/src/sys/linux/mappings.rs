//! Where mappings end and which file they show, by `PROCMAP_QUERY` (Linux 6.11). A call that moves several mappings
//! (Linux 6.17) moves one after the other ([`hugefork_linux::parking`]), so a caller that needs them moved at one
//! moment asks here first. Kernels without `PROCMAP_QUERY` refuse to move several, so there is no need to ask.

use std::ops::Range;

use hugefork_linux::procmap_query::{Maps, SHARED};
use rustix::fs::{major, minor};
use rustix::io::Errno;

/// The identity of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: [u32; 2],
    inode: u64,
}

impl FileId {
    /// The identity by the numbers that `fstat` returns.
    pub(super) fn new(device: u64, inode: u64) -> FileId {
        FileId { device: [major(device), minor(device)], inode }
    }
}

/// `/proc/thread-self/maps`, if it answers queries.
pub(super) struct Mappings(pub(super) Option<Maps>);

impl Mappings {
    /// Opens the file. `mapped` is the address of some mapping, for a first query.
    pub(super) fn open(mapped: usize) -> Mappings {
        Mappings(Maps::open().ok().filter(|maps| maps.end_of(mapped).is_ok()))
    }

    /// Whether one call moves these bytes at one moment, as other threads see it, or refuses to: they are one mapping,
    /// or the kernel refuses to move several.
    pub(super) fn is_one(&self, at: usize, len: usize) -> bool {
        let Some(maps) = &self.0 else { return true };
        maps.end_of(at).is_ok_and(|end| at + len <= end)
    }

    /// As [`Mappings::is_one`], for a shared mapping, as far as the kernel tells.
    pub(super) fn is_one_shared(&self, at: usize, len: usize) -> bool {
        let Some(maps) = &self.0 else { return true };
        maps.at_or_behind(at).is_ok_and(|found| {
            found.flags & SHARED != 0 && found.start as usize <= at && at + len <= found.end as usize
        })
    }

    /// The first piece of `range` that shows `file`. With `offset`, it must show the file from there on, counted from
    /// the start of the range. The whole range if the kernel does not answer.
    pub(super) fn shown(&self, range: &Range<usize>, file: FileId, offset: Option<usize>) -> Option<Range<usize>> {
        let Some(maps) = &self.0 else { return Some(range.clone()) };
        let mut at = range.start;
        while at < range.end {
            let found = match maps.at_or_behind(at) {
                Ok(found) => found,
                Err(Errno::NOENT) => return None,
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

    /// Opens the file again if the program, which does not know of the descriptor, has closed it: see
    /// [`Descriptor::reopen`](hugefork_linux::Descriptor::reopen).
    pub(super) fn reopen(&self) -> bool {
        self.0.as_ref().is_some_and(|maps| maps.0.reopen(|| Maps::open().ok().map(|maps| maps.0)))
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::*;
    use crate::units::BASE_PAGE;

    #[test]
    fn a_file_is_distinguished_from_other_mappings_in_its_place() {
        let len = 4 * BASE_PAGE;
        let file = rustix::fs::memfd_create("hugefork-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 2 * len as u64).unwrap();
        let known = rustix::fs::fstat(&file).unwrap();
        let id = FileId::new(known.st_dev, known.st_ino);
        let (none, rights, offset) = (core::ptr::null_mut(), ProtFlags::READ, BASE_PAGE);
        // SAFETY: a new mapping touches nothing that exists.
        let map = unsafe { rustix::mm::mmap(none, len, rights, MapFlags::SHARED, &file, offset as u64) }.unwrap();
        let mappings = Mappings::open(map.addr());
        if mappings.0.is_none() {
            println!("skipped: this kernel does not report single mappings (Linux 6.11)");
            return;
        }
        let all = map.addr()..map.addr() + len;
        assert_eq!(mappings.shown(&all, id, Some(offset)), Some(all.clone()));
        assert_eq!((mappings.shown(&all, id, Some(0)), mappings.shown(&all, id, None)), (None, Some(all.clone())));
        let second = all.start + BASE_PAGE;
        // SAFETY: the page lies within our own mapping, which nothing uses.
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
        if mappings.0.is_none() {
            println!("skipped: this kernel does not report single mappings (Linux 6.11)");
            return;
        }
        // SAFETY: our own mapping, which nothing uses.
        unsafe { mprotect(map.byte_add(2 * BASE_PAGE), 2 * BASE_PAGE, MprotectFlags::empty()) }.unwrap();
        assert!(mappings.is_one(map.addr(), 2 * BASE_PAGE) && !mappings.is_one(map.addr(), 3 * BASE_PAGE));
        // SAFETY: as above.
        unsafe { munmap(map, len) }.unwrap();
        assert!(!mappings.is_one(map.addr(), BASE_PAGE), "nothing is there");
    }
}
