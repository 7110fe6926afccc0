//! aarch64: which function runs which primitive, and the fence.
//!
//! **Untested.** No aarch64 machine or standard library was at hand: the assembly of the two files here went through
//! LLVM's assembler and nothing else, and no figure says when they win. So no default uses them; only the calibration
//! and `HUGEFORK_KERNEL` choose them. Cached stores are the portable code (the C library's own `stp` and `dc zva`). Left
//! out: MOPS (`setp`, `cpyfp`), whose presence cannot be asked without std on a system that hides ID_AA64ISAR2_EL1.

use core::sync::atomic::{Ordering, fence};

use super::generic;
use crate::primitive::Primitive;

mod dc_zva;
mod stnp;

/// Whether the CPU has `dc zva`, the system lets programs use it, and its block divides a subpage.
pub(crate) fn has_dc_zva() -> bool {
    dc_zva::block_size().is_some()
}

/// Clears `len` bytes; nothing is ordered before the next [`drain`].
///
/// # Safety
///
/// The primitive is available. `block` is aligned to 4 KiB and valid for writes of `len` bytes, a positive multiple of
/// 4 KiB; nobody else accesses them until the next [`drain`] has returned.
#[inline(never)]
pub(crate) unsafe fn clear(primitive: Primitive, block: *mut u8, len: usize) {
    // SAFETY: the caller vouches for the memory, the alignment, and what the primitive needs.
    unsafe {
        match (primitive, dc_zva::block_size()) {
            (Primitive::DcZva, Some(step)) => dc_zva::clear(block, len, step),
            (Primitive::Stnp, _) => stnp::clear(block, len),
            _ => generic::clear(block, len),
        }
    }
}

/// Copies `len` bytes; nothing is ordered before the next [`drain`]. A primitive that cannot copy is replaced by the
/// portable one.
///
/// # Safety
///
/// The primitive is available. `to` and `from` are aligned to 4 KiB, do not overlap, and are valid for writes and reads
/// of `len` bytes, a positive multiple of 4 KiB; until the next [`drain`] has returned, nobody else accesses `to` or
/// writes `from`.
#[inline(never)]
pub(crate) unsafe fn copy(primitive: Primitive, to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller vouches for the memory, the alignment, and what the primitive needs.
    unsafe {
        match primitive {
            Primitive::Stnp => stnp::copy(to, from, len),
            _ => generic::copy(to, from, len),
        }
    }
}

/// Orders all earlier stores before every later one. `stnp` and `dc zva` are ordered as plain stores are.
pub(crate) fn drain() {
    fence(Ordering::Release);
}
