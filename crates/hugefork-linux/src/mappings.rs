//! Anonymous memory straight from the kernel, for a heap apart from the program's own.

use core::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::PAGE;

/// Maps `len` new bytes, all zeros, readable and writable.
///
/// # Errors
/// The kernel's refusal.
pub fn map_anonymous(len: usize) -> Result<NonNull<u8>, Errno> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new anonymous mapping touches nothing that exists.
    let mapped = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, flags) }?;
    NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)
}

/// Unmaps memory of [`map_anonymous`]; returns false if the kernel refuses.
///
/// # Safety
/// The range is part of memory that [`map_anonymous`] returned, and no code uses it any more.
pub unsafe fn unmap_anonymous(at: *mut u8, len: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { munmap(at.cast(), len) }.is_ok()
}

/// The memory source of such a heap (`dlmalloc`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Mappings;

#[expect(clippy::not_unsafe_ptr_arg_deref, reason = "the trait has it so: they are the heap's to call")]
// SAFETY: the mappings are new, and no other code uses them.
unsafe impl dlmalloc::Allocator for Mappings {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        (map_anonymous(size).map_or(ptr::null_mut(), NonNull::as_ptr), size, 0)
    }

    fn remap(&self, _at: *mut u8, _before: usize, _after: usize, _can_move: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, at: *mut u8, before: usize, after: usize) -> bool {
        // SAFETY: the heap no longer uses the bytes after `after`.
        unsafe { unmap_anonymous(at.wrapping_add(after), before - after) }
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        // SAFETY: the heap no longer uses it.
        unsafe { unmap_anonymous(at, size) }
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use dlmalloc::Allocator;

    use super::*;

    /// The heap frees a part of a mapping when much of it is unused.
    #[test]
    fn a_part_of_a_mapping_can_be_freed_alone() {
        const HALF: usize = 8 * PAGE;
        let memory = File::open("/proc/self/mem").unwrap();
        let goes = || {
            let (at, len, flags) = Mappings.alloc(2 * HALF);
            assert!(!at.is_null() && len == 2 * HALF && Mappings.can_release_part(flags));
            // SAFETY: the mapping is new, and this test owns it.
            unsafe { at.write_bytes(7, len) };
            assert!(Mappings.free_part(at, len, HALF));
            let is_there = |offset: usize| memory.read_at(&mut [0], (at.addr() + offset) as u64).is_ok();
            let is_gone = !is_there(HALF) && !is_there(len - 1);
            // SAFETY: this half is still mapped.
            assert!((0..HALF).all(|offset| unsafe { at.add(offset).read() } == 7));
            assert!(Mappings.remap(at, HALF, len, true).is_null(), "a growing allocation is copied");
            assert!(Mappings.free(at, HALF));
            is_gone
        };
        // Another test may have received these addresses meanwhile, but not each time.
        assert!((0..1000).any(|_| goes()), "all of it stays");
    }
}
