//! A block between two pages that a kernel must not touch.
//!
//! ```text
//! At::Low    | no access | block ……………… | sentinel | no access |
//! At::High   | no access | sentinel | block ……………… | no access |
//! ```
//!
//! A read or write past the guarded end raises SIGSEGV; a write past the other end changes the
//! sentinel.

use std::ptr::{null_mut, slice_from_raw_parts};

use hugefork_kernels::SUBPAGE;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const SENTINEL: u8 = 0x5e;

/// The end of the block that borders on the inaccessible page.
#[derive(Clone, Copy, Debug)]
pub(crate) enum At {
    Low,
    High,
}

pub(crate) struct Guarded {
    mapping: *mut u8,
    len: usize,
    at: At,
}

impl Guarded {
    pub(crate) fn new(len: usize, at: At) -> Guarded {
        let all = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping; nothing is replaced.
        let mapping = unsafe { mmap_anonymous(null_mut(), len + 3 * SUBPAGE, all, MapFlags::PRIVATE) };
        let mapping = mapping.unwrap().cast::<u8>();
        let last = mapping.wrapping_add(len + 2 * SUBPAGE);
        for guard in [mapping, last] {
            // SAFETY: the first or the last page of the mapping above; no pointer to it exists yet.
            unsafe { mprotect(guard.cast(), SUBPAGE, MprotectFlags::empty()) }.unwrap();
        }
        let guarded = Guarded { mapping, len, at };
        // SAFETY: the sentinel page is inside of the mapping and accessible.
        unsafe { guarded.sentinel().write_bytes(SENTINEL, SUBPAGE) };
        guarded
    }

    pub(crate) fn block(&self) -> *mut u8 {
        match self.at {
            At::Low => self.mapping.wrapping_add(SUBPAGE),
            At::High => self.mapping.wrapping_add(2 * SUBPAGE),
        }
    }

    fn sentinel(&self) -> *mut u8 {
        match self.at {
            At::Low => self.mapping.wrapping_add(SUBPAGE + self.len),
            At::High => self.mapping.wrapping_add(SUBPAGE),
        }
    }

    pub(crate) fn fill(&mut self, byte: u8) {
        // SAFETY: the whole block, and `&mut self` excludes readers.
        unsafe { self.block().write_bytes(byte, self.len) }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len);
        // SAFETY: the whole block, and `&mut self` excludes readers.
        unsafe { self.block().copy_from_nonoverlapping(bytes.as_ptr(), self.len) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the block is mapped as long as `self` lives. Only holders of `&mut self` and kernels write it, and no
        // test runs a kernel while it holds this slice.
        unsafe { &*slice_from_raw_parts(self.block(), self.len) }
    }

    pub(crate) fn sentinel_is_intact(&self) -> bool {
        // SAFETY: the sentinel page is mapped as long as `self` lives; only a broken kernel writes it.
        let sentinel = unsafe { &*slice_from_raw_parts(self.sentinel(), SUBPAGE) };
        sentinel.iter().all(|byte| *byte == SENTINEL)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; slices of it borrow `self` and are gone.
        unsafe { munmap(self.mapping.cast(), self.len + 3 * SUBPAGE) }.unwrap();
    }
}
