//! Where mappings end, and what they are of, by `PROCMAP_QUERY` (Linux 6.11). Who moves several with one call (Linux
//! 6.17) moves one after the other ([`hugefork_linux::parking`]). Older kernels refuse that, so where the kernel does
//! not tell, there is no need to ask.

use std::ops::Range;

use hugefork_linux::Descriptor;
use hugefork_linux::procmap_query::Maps;
use rustix::fs::{major, minor};
use rustix::io::Errno;

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

/// `/proc/thread-self/maps`, if it answers.
pub(super) struct Mappings(Option<Maps>);

impl Mappings {
    /// Opens it. `mapped` is the address of some mapping.
    pub(super) fn open(mapped: usize) -> Mappings {
        Mappings(Maps::open().ok().filter(|maps| maps.end_of(mapped).is_ok()))
    }

    /// What answers, for those who move mappings.
    pub(super) fn maps(&self) -> Option<&Maps> {
        self.0.as_ref()
    }

    /// Whether these bytes may be moved by one call, as far as others see: they are one mapping, or the call refuses
    /// them.
    pub(super) fn is_one(&self, at: usize, len: usize) -> bool {
        match &self.0 {
            Some(maps) => maps.end_of(at).is_ok_and(|end| at + len <= end),
            None => true,
        }
    }

    /// The first piece of a range of addresses that shows a file, from `offset` on at the start of the range, or at any
    /// offset. All of it where the kernel does not tell.
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

    /// Opens it again, if the program has closed it, which did not know of it: see
    /// [`Descriptor::reopen`](hugefork_linux::Descriptor::reopen).
    pub(super) fn reopen(&self) -> bool {
        self.0.as_ref().is_some_and(|maps| maps.0.reopen(|| Maps::open().ok().map(|maps| maps.0)))
    }

    pub(super) fn descriptor(&self) -> Option<&Descriptor> {
        self.0.as_ref().map(|maps| &maps.0)
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::*;
    use crate::units::BASE_PAGE;

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
        // SAFETY: as above.
        unsafe { munmap(map, len) }.unwrap();
        assert!(!mappings.is_one(map.addr(), BASE_PAGE), "nothing is there");
    }
}
