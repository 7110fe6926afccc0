//! What the library allocates with: the program may be in the middle of its own `malloc`. It is dlmalloc, under a lock
//! of the library's own. A mutex of libc's is none here: while glibc knows of one thread it locks and unlocks without
//! telling others, and the worker is no thread that glibc knows of. Its memory comes straight from the kernel: the
//! library's own `mmap` may wait for the engine, and whoever has that may wait for the allocator.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

use dlmalloc::Dlmalloc;
use hugefork_linux::mappings::Mappings;

use crate::threads::lock::{Guarded, Taken};

pub(crate) struct Allocator(Guarded<Heap>);

struct Heap(Dlmalloc<Mappings>);

// SAFETY: its memory is nobody's in particular, and it is only used under a lock.
unsafe impl Send for Heap {}

// SAFETY: a shared reference to it offers nothing.
unsafe impl Sync for Heap {}

impl Allocator {
    pub(crate) const fn new() -> Allocator {
        Allocator(Guarded::new(Heap(Dlmalloc::new_with_allocator(Mappings))))
    }

    /// Keeps all others from it, so that a fork copies it as a whole. False if this thread is in the middle of it.
    pub(crate) fn before_fork(&self) -> bool {
        self.0.take() == Taken::Now
    }

    /// In the parent, if [`Allocator::before_fork`] has taken it.
    pub(crate) fn in_parent(&self) {
        self.0.give_back();
    }

    /// In the child, likewise.
    pub(crate) fn in_child(&self) {
        self.0.reset();
    }
}

// SAFETY: dlmalloc keeps to the contract, and a thread that is in the middle of it gets nothing.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let given = self.0.with(|heap| unsafe { heap.0.malloc(layout.size(), layout.align()) });
        given.unwrap_or(ptr::null_mut())
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller's, who got it here with this layout.
        self.0.with(|heap| unsafe { heap.0.free(old, layout.size(), layout.align()) });
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let given = self.0.with(|heap| unsafe { heap.0.calloc(layout.size(), layout.align()) });
        given.unwrap_or(ptr::null_mut())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: the caller's, who got it here with this layout.
        let given = self.0.with(|heap| unsafe { heap.0.realloc(old, layout.size(), layout.align(), len) });
        given.unwrap_or(ptr::null_mut())
    }
}
