//! The library's own allocator, because the program may be in the middle of its `malloc`. It is
//! dlmalloc under a lock of the library. A mutex of libc would be wrong: while glibc knows of only
//! one thread, its mutexes are not thread-safe, and glibc does not know the worker. Its memory
//! comes straight from the kernel: the library's own `mmap` may wait for the engine, and the thread
//! that has the engine may wait for the allocator.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

use dlmalloc::Dlmalloc;
use hugefork_linux::mappings::Mappings;

use crate::threads::lock::{Guarded, Taken};

pub(crate) struct Allocator(Guarded<Heap>);

struct Heap(Dlmalloc<Mappings>);

// SAFETY: its memory belongs to no thread, and it is only used under a lock.
unsafe impl Send for Heap {}

// SAFETY: a shared reference offers no method.
unsafe impl Sync for Heap {}

impl Allocator {
    pub(crate) const fn new() -> Allocator {
        Allocator(Guarded::new(Heap(Dlmalloc::new_with_allocator(Mappings))))
    }

    /// Locks the allocator, so that a fork copies it in a consistent state. Returns false if this thread is in the
    /// middle of using it.
    pub(crate) fn before_fork(&self) -> bool {
        self.0.take() == Taken::Now
    }

    /// Unlocks it in the parent, if [`Allocator::before_fork`] has locked it.
    pub(crate) fn in_parent(&self) {
        self.0.give_back();
    }

    /// Unlocks it in the child, likewise.
    pub(crate) fn in_child(&self) {
        self.0.reset();
    }
}

// SAFETY: dlmalloc fulfils the contract, and a thread that is already in the allocator gets null.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let given = self.0.with(|heap| unsafe { heap.0.malloc(layout.size(), layout.align()) });
        given.unwrap_or(ptr::null_mut())
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller got the memory here with this layout.
        self.0.with(|heap| unsafe { heap.0.free(old, layout.size(), layout.align()) });
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let given = self.0.with(|heap| unsafe { heap.0.calloc(layout.size(), layout.align()) });
        given.unwrap_or(ptr::null_mut())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: the caller got the memory here with this layout.
        let given = self.0.with(|heap| unsafe { heap.0.realloc(old, layout.size(), layout.align(), len) });
        given.unwrap_or(ptr::null_mut())
    }
}
