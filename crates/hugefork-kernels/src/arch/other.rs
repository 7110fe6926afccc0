//! Architectures without a folder: the portable code, whatever is asked for.

use core::sync::atomic::{Ordering, fence};

use super::generic;
use crate::primitive::Primitive;

/// # Safety
///
/// `block` is valid for writes of `len` bytes, and nobody else accesses them meanwhile.
pub(crate) unsafe fn clear(_: Primitive, block: *mut u8, len: usize) {
    // SAFETY: the same contract.
    unsafe { generic::clear(block, len) }
}

/// # Safety
///
/// `to` is valid for writes and `from` for reads of `len` bytes; they do not overlap; nobody else accesses `to` or
/// writes `from` meanwhile.
pub(crate) unsafe fn copy(_: Primitive, to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the same contract.
    unsafe { generic::copy(to, from, len) }
}

/// There are no non-temporal stores here, so a release fence is enough.
pub(crate) fn drain() {
    fence(Ordering::Release);
}
