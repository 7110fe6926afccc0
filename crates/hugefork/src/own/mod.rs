//! Memory of the engine's own, for what it writes to in the fault handler or under the locks that a fault takes: tables,
//! counters, locks, lists.
//!
//! The program's allocator will not do for that. It may serve from a region (a heap that is snapshotted as a whole), and a write to
//! such memory may fault: in the handler, where nothing can be resolved, or under the very lock that resolving it takes. What
//! is only built and handed out, such as errors, or is changed under locks that no fault takes, may come from there.
//!
//! ```text
//!   Boxed, List, Counted, Fixed ─▶ Own ─▶ dlmalloc, under a lock ─▶ anonymous mappings
//! ```
//! Nothing in this file is called by the handler, nor under a lock that it takes.

mod counted;
pub(crate) mod fixed;

use core::alloc::Layout;
use core::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use allocator_api2::alloc::{AllocError, Allocator};
use dlmalloc::Dlmalloc;

use crate::sys::linux::{memory, owner};
use crate::units::BASE_PAGE;

pub(crate) use counted::Counted;

/// A box in memory of the engine's own.
pub(crate) type Boxed<T> = allocator_api2::boxed::Box<T, Own>;

/// A growing list in memory of the engine's own.
pub(crate) type List<T> = allocator_api2::vec::Vec<T, Own>;

static HEAP: Mutex<Dlmalloc<Mappings>> = Mutex::new(Dlmalloc::new_with_allocator(Mappings));

fn heap() -> MutexGuard<'static, Dlmalloc<Mappings>> {
    HEAP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The allocator of [`Boxed`] and [`List`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Own;

// SAFETY: what is handed out stays valid and in place until it is given back; all copies are one and the same.
unsafe impl Allocator for Own {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            let nowhere = NonNull::new(ptr::without_provenance_mut(layout.align())).ok_or(AllocError)?;
            return Ok(NonNull::slice_from_raw_parts(nowhere, 0));
        }
        if is_large(layout) {
            return sized(memory::map_anonymous(layout.size()), layout);
        }
        // SAFETY: the size is not zero.
        sized(NonNull::new(unsafe { heap().malloc(layout.size(), layout.align()) }), layout)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 || is_large(layout) {
            return self.allocate(layout);
        }
        // SAFETY: the size is not zero.
        sized(NonNull::new(unsafe { heap().calloc(layout.size(), layout.align()) }), layout)
    }

    unsafe fn deallocate(&self, at: NonNull<u8>, layout: Layout) {
        // In a fork(2) child the lock may be held by a thread that did not come along.
        if layout.size() == 0 || owner::is_forked_child() {
            return;
        }
        if is_large(layout) {
            // SAFETY: it was mapped for this alone, and nobody uses it any more, says the caller. If the kernel refuses, it stays.
            unsafe { memory::unmap_anonymous(at.as_ptr(), layout.size()) };
        } else {
            // SAFETY: it came from there, with this size and alignment, says the caller.
            unsafe { heap().free(at.as_ptr(), layout.size(), layout.align()) };
        }
    }
}

/// What is mapped by itself: the tables of very large regions, of which the system gives what is used, zeroed, and has it back at
/// once. Smaller ones are cleared instead: that is cheaper than a page fault for each 4 KiB of every snapshot.
fn is_large(layout: Layout) -> bool {
    layout.size() >= 4 << 20 && layout.align() <= BASE_PAGE
}

fn sized(at: Option<NonNull<u8>>, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
    at.map(|at| NonNull::slice_from_raw_parts(at, layout.size())).ok_or(AllocError)
}

/// Types of which all zeroes are a value.
///
/// # Safety
/// They are.
pub(crate) unsafe trait Zeroed {}

// SAFETY: a number.
unsafe impl Zeroed for core::sync::atomic::AtomicU8 {}
// SAFETY: a number.
unsafe impl Zeroed for core::sync::atomic::AtomicU32 {}
// SAFETY: a number.
unsafe impl Zeroed for core::sync::atomic::AtomicU64 {}
// SAFETY: null.
unsafe impl<T> Zeroed for core::sync::atomic::AtomicPtr<T> {}

/// So many zeroes. Where they are many the system gives the memory page by page, as it is used.
pub(crate) fn zeroed<T: Zeroed>(count: usize) -> Boxed<[T]> {
    let zeroes = Boxed::new_zeroed_slice_in(count, Own);
    // SAFETY: the type says that all zeroes are a value of it.
    unsafe { zeroes.assume_init() }
}

/// Where the heap gets its memory.
struct Mappings;

// SAFETY: fresh anonymous mappings, which are nobody else's.
unsafe impl dlmalloc::Allocator for Mappings {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        (memory::map_anonymous(size).map_or(ptr::null_mut(), NonNull::as_ptr), size, 0)
    }

    fn remap(&self, _at: *mut u8, _before: usize, _after: usize, _can_move: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, at: *mut u8, before: usize, after: usize) -> bool {
        // SAFETY: the heap does not use the rest any more.
        unsafe { memory::unmap_anonymous(at.wrapping_add(after), before - after) }
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        // SAFETY: the heap does not use it any more.
        unsafe { memory::unmap_anonymous(at, size) }
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        BASE_PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn what_is_given_back_is_used_again_and_zeroed_again() {
        for count in [1, 7, 5_000, 1 << 20] {
            for _ in 0..3 {
                let words = zeroed::<AtomicU32>(count);
                assert!(words.len() == count && words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
                words.iter().for_each(|word| word.store(u32::MAX, Ordering::Relaxed));
            }
        }
        assert!(zeroed::<AtomicU32>(0).is_empty());
    }

    #[test]
    fn many_zeroes_take_memory_as_they_are_used() {
        let resident = || -> usize {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * BASE_PAGE
        };
        let (before, words) = (resident(), zeroed::<AtomicU32>(1 << 29));
        words[1 << 28].store(1, Ordering::Relaxed);
        // Other tests use some meanwhile.
        assert!(resident() < before + (1 << 30), "2 GiB were touched");
        assert_eq!((words[1 << 28].load(Ordering::Relaxed), words[0].load(Ordering::Relaxed)), (1, 0));
    }
}
