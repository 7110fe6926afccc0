//! The engine's own memory, for everything that it writes to in the fault handler or under a lock that a fault takes:
//! tables, counters, locks, lists.
//!
//! The program's allocator cannot serve for that. It may take its memory from a region, if the program snapshots its
//! heap as a whole, and then a write to that memory may fault. In the handler nobody could resolve such a fault;
//! elsewhere its resolution might need the very lock that the writing thread holds. Other values may come from the
//! program's allocator: values that are built once and handed out, such as errors, and values that change only under
//! locks that no fault takes.
//!
//! ```text
//!   EngineBox, EngineVec, EngineArc, PinnedBox ─▶ Own ─▶ dlmalloc, under a lock ─▶ anonymous mappings
//! ```
//! The handler calls nothing in this file. Other threads may call it under a lock that the handler takes.

mod arc;
pub(crate) mod pinned;

use core::alloc::Layout;
use core::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use allocator_api2::alloc::{AllocError, Allocator};
use dlmalloc::Dlmalloc;

use crate::sync::SignalsBlocked;
use crate::sys::linux::memory::{self, Mappings};
use crate::sys::linux::owner;
use crate::units::BASE_PAGE;

pub(crate) use arc::EngineArc;

/// A box in the engine's own memory.
pub(crate) type EngineBox<T> = allocator_api2::boxed::Box<T, Own>;

/// A growing list in the engine's own memory.
pub(crate) type EngineVec<T> = allocator_api2::vec::Vec<T, Own>;

/// A list of `items`, with room for all of them before the first is made.
pub(crate) fn list<T>(items: impl ExactSizeIterator<Item = T>) -> EngineVec<T> {
    let mut list = EngineVec::with_capacity_in(items.len(), Own);
    list.extend(items);
    list
}

static HEAP: Mutex<Dlmalloc<Mappings>> = Mutex::new(Dlmalloc::new_with_allocator(Mappings));

/// Access to the heap for one thread at a time. The program's signals are blocked meanwhile: a signal handler could
/// wait for a lock whose holder waits for the heap.
struct Heap {
    guard: MutexGuard<'static, Dlmalloc<Mappings>>,
    _signals: SignalsBlocked,
}

fn heap() -> Heap {
    let signals = SignalsBlocked::new();
    Heap { guard: HEAP.lock().unwrap_or_else(PoisonError::into_inner), _signals: signals }
}

/// Locks the heap against all other threads.
#[cfg(test)]
pub(crate) fn lock() -> impl Sized {
    heap()
}

/// The allocator of [`EngineBox`] and [`EngineVec`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Own;

// SAFETY: memory that is handed out stays valid and in place until it is given back; all copies are one allocator.
unsafe impl Allocator for Own {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(NonNull::slice_from_raw_parts(layout.dangling_ptr(), 0));
        }
        if is_mapped(layout) {
            return sized(memory::map_anonymous(layout.size()).ok(), layout);
        }
        // SAFETY: the size is not zero.
        sized(NonNull::new(unsafe { heap().guard.malloc(layout.size(), layout.align()) }), layout)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 || is_mapped(layout) {
            return self.allocate(layout);
        }
        // SAFETY: the size is not zero.
        sized(NonNull::new(unsafe { heap().guard.calloc(layout.size(), layout.align()) }), layout)
    }

    unsafe fn deallocate(&self, at: NonNull<u8>, layout: Layout) {
        // A fork(2) child keeps its parent's memory: a thread that the child does not have may hold the lock.
        if layout.size() == 0 || owner::is_forked_child() {
            return;
        }
        if is_mapped(layout) {
            // SAFETY: the memory was mapped for this allocation alone, and the caller guarantees that nobody uses it
            // any more. If the kernel refuses, the memory stays mapped.
            unsafe { memory::unmap_anonymous(at.as_ptr(), layout.size()) };
        } else {
            // SAFETY: the caller guarantees that it came from this heap, with this size and alignment.
            unsafe { heap().guard.free(at.as_ptr(), layout.size(), layout.align()) };
        }
    }
}

/// Whether memory of this layout gets a mapping of its own, as the tables of very large regions do. The kernel gives
/// such memory page by page as it is used, zeroed, and takes it back at once. Smaller memory is cleared instead, which
/// is cheaper than a page fault for each 4 KiB of every snapshot. In a `fork(2)` child all memory is mapped: a thread
/// that the child does not have may hold the lock of the heap.
fn is_mapped(layout: Layout) -> bool {
    layout.align() <= BASE_PAGE && (layout.size() >= 4 << 20 || owner::is_forked_child())
}

fn sized(at: Option<NonNull<u8>>, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
    at.map(|at| NonNull::slice_from_raw_parts(at, layout.size())).ok_or(AllocError)
}

/// Types for which all zeroes are a value.
///
/// # Safety
/// All zeroes must be a value of the type.
pub(crate) unsafe trait Zeroed {}

// SAFETY: zero is a number.
unsafe impl Zeroed for core::sync::atomic::AtomicU8 {}
// SAFETY: as above.
unsafe impl Zeroed for core::sync::atomic::AtomicU32 {}
// SAFETY: as above.
unsafe impl Zeroed for core::sync::atomic::AtomicU64 {}
#[cfg(test)]
// SAFETY: as above; it wraps one of these.
unsafe impl Zeroed for crate::sync::steps::AtomicU32 {}
#[cfg(test)]
// SAFETY: as above.
unsafe impl Zeroed for crate::sync::steps::AtomicU64 {}
// SAFETY: all zeroes are the null pointer.
unsafe impl<T> Zeroed for core::sync::atomic::AtomicPtr<T> {}

/// A slice of `count` zeroes. For a large one, the kernel gives the memory page by page as it is used.
pub(crate) fn zeroed<T: Zeroed>(count: usize) -> EngineBox<[T]> {
    let zeroes = EngineBox::new_zeroed_slice_in(count, Own);
    // SAFETY: `T: Zeroed` guarantees that all zeroes are a value of it.
    unsafe { zeroes.assume_init() }
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
        // Other tests use some memory meanwhile.
        assert!(resident() < before + (1 << 30), "2 GiB were touched");
        assert_eq!((words[1 << 28].load(Ordering::Relaxed), words[0].load(Ordering::Relaxed)), (1, 0));
    }
}
