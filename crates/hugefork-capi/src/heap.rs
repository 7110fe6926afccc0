//! Heaps: `hf_heap`.

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use allocator_api2::alloc::Allocator;

use crate::boundary::{ask, run};
use crate::failure::Failure;
use crate::handle;
use crate::kinds::{hf_heap, hf_operations, hf_pool, hf_region};

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_heap_create(pool: *mut hf_pool, len: usize, out: *mut *mut hf_heap) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, || Ok(handle::get(pool)?.pool.heap(len)?)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_heap_close(heap: *mut hf_heap) {
    // SAFETY: the caller vouches for the arguments.
    unsafe { handle::close(heap) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_heap_region(heap: *const hf_heap, out: *mut *mut hf_region) -> c_int {
    // SAFETY: the caller vouches for the arguments, and uses the region as the header says.
    run(|| unsafe { handle::give(out, || Ok(handle::get(heap)?.region().clone())) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_heap_operations(heap: *const hf_heap, out: *mut *mut hf_operations) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    run(|| unsafe { handle::give(out, || Ok(handle::get(heap)?.operations().clone())) })
}

fn layout(size: usize, alignment: usize) -> Result<Layout, Failure> {
    Layout::from_size_align(size, alignment).map_err(|_| {
        Failure::bad_value(format_args!(
            "{size} bytes at a multiple of {alignment}: give a power of two and at most PTRDIFF_MAX bytes"
        ))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_heap_alloc(heap: *mut hf_heap, size: usize, alignment: usize) -> *mut c_void {
    ask(ptr::null_mut(), || {
        // SAFETY: the caller vouches for the arguments.
        let heap = unsafe { handle::get(heap)? };
        match heap.allocate(layout(size, alignment)?) {
            Ok(bytes) => Ok(bytes.as_ptr().cast()),
            Err(_) => Err(Failure::heap_full(size, heap.len())),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hf_heap_free(heap: *mut hf_heap, at: *mut c_void, size: usize, alignment: usize) {
    run(|| {
        let Some(at) = NonNull::new(at) else { return Ok(()) };
        // SAFETY: the caller vouches for the arguments.
        unsafe { handle::get(heap)?.deallocate(at.cast(), layout(size, alignment)?) };
        Ok(())
    });
}
