//! x86-64: which function runs which primitive, and the fence.
//!
//! Lengths are multiples of 4 KiB and pointers aligned to 4 KiB, so that no kernel has a head or a tail, and no cache
//! line is ever written by two primitives (a line that is written with non-temporal and cached stores is evicted in
//! between: some ten times the cost).

use crate::{arch::generic, primitive::Primitive};

mod avx2;
mod avx512;
mod clzero;
mod rep;
mod sse2;
mod vector;

/// Clears `len` bytes. The stores of a non-temporal primitive are weakly ordered until [`drain`].
///
/// # Safety
///
/// The primitive is available. `block` is aligned to 4 KiB and valid for writes of `len` bytes, a multiple of 4 KiB;
/// nobody else accesses them until this, and for a non-temporal primitive the next [`drain`], has returned.
// A call, not a copy of the dispatch in each of the eight places where `visit` begins a span.
#[inline(never)]
pub(crate) unsafe fn clear(primitive: Primitive, block: *mut u8, len: usize) {
    // SAFETY: the caller vouches for the memory, the alignment, and the extension that the primitive needs.
    unsafe {
        match primitive {
            Primitive::Portable | Primitive::DcZva | Primitive::Stnp => generic::clear(block, len),
            Primitive::Rep => rep::clear(block, len),
            Primitive::Sse2Nt => sse2::clear_nt(block, len),
            Primitive::Avx2 => avx2::clear(block, len),
            Primitive::Avx2Nt => avx2::clear_nt(block, len),
            Primitive::Avx512 => avx512::clear(block, len),
            Primitive::Avx512Nt => avx512::clear_nt(block, len),
            Primitive::Clzero => clzero::clear(block, len),
        }
    }
}

/// Copies `len` bytes. The stores of a non-temporal primitive are weakly ordered until [`drain`]. A primitive that
/// cannot copy is replaced by `rep`.
///
/// # Safety
///
/// The primitive is available. `to` and `from` are aligned to 4 KiB, do not overlap, and are valid for writes and reads
/// of `len` bytes, a multiple of 4 KiB; until this, and for a non-temporal primitive the next [`drain`], has returned,
/// nobody else accesses `to` or writes `from`.
// A call for the same reason.
#[inline(never)]
pub(crate) unsafe fn copy(primitive: Primitive, to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller vouches for the memory, the alignment, and the extension that the primitive needs.
    unsafe {
        match primitive {
            Primitive::Portable | Primitive::DcZva | Primitive::Stnp => generic::copy(to, from, len),
            Primitive::Rep | Primitive::Clzero => rep::copy(to, from, len),
            Primitive::Sse2Nt => sse2::copy_nt(to, from, len),
            Primitive::Avx2 => avx2::copy(to, from, len),
            Primitive::Avx2Nt => avx2::copy_nt(to, from, len),
            Primitive::Avx512 => avx512::copy(to, from, len),
            Primitive::Avx512Nt => avx512::copy_nt(to, from, len),
        }
    }
}

/// Orders all earlier non-temporal stores and `clzero`s before every later store.
pub(crate) fn drain() {
    // SAFETY: SSE is part of x86-64.
    unsafe { core::arch::x86_64::_mm_sfence() }
}
