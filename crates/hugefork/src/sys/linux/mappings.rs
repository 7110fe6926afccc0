//! Where mappings end, by `PROCMAP_QUERY` (Linux 6.11).
//!
//! Who moves several mappings with one call (Linux 6.17) moves one after the other: other threads see that, and where
//! the call fails on the way, nothing tells what has moved. Older kernels refuse it, so where the kernel does not tell,
//! there is no need to ask.

use std::ffi::c_ulong;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

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

/// `/proc/self/maps`, if it answers.
pub(super) struct Mappings(Option<OwnedFd>);

impl Mappings {
    /// Opens it. `mapped` is the address of some mapping.
    pub(super) fn open(mapped: usize) -> Mappings {
        let maps = File::open("/proc/self/maps").ok().map(OwnedFd::from);
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

    pub(super) fn file(&mut self) -> Option<&mut OwnedFd> {
        self.0.as_mut()
    }

    pub(super) fn descriptor(&self) -> Option<i32> {
        self.0.as_ref().map(AsRawFd::as_raw_fd)
    }
}

/// Where the mapping ends that is at this address.
#[inline(never)] // What it needs is off the handler's stack when the mapping is moved.
fn end_of(maps: &OwnedFd, address: usize) -> Option<usize> {
    let mut query = Query { size: size_of::<Query>() as u64, address: address as u64, ..Query::default() };
    // SAFETY: the argument is the structure that the call reads and writes; it names no buffers.
    let answer = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    (answer == 0).then_some(query.end as usize)
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::*;

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
