//! The code behind each [`Primitive`], one folder an architecture, one file an extension.
//!
//! Offers three functions, the same on every architecture: `clear` and `copy` run one primitive over one run of bytes,
//! `drain` orders weakly ordered stores before whatever comes next. Nothing here asks what the CPU can do: a caller
//! names only primitives that are available, and a name that is not built for this architecture runs the portable code.

#[cfg(not(target_arch = "x86_64"))]
use crate::primitive::Primitive;

mod generic;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{clear, copy, drain};

/// Clears with the portable code, whatever is asked for.
///
/// # Safety
///
/// `block` is valid for writes of `len` bytes, and nobody else accesses them meanwhile.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn clear(_: Primitive, block: *mut u8, len: usize) {
    // SAFETY: the same contract.
    unsafe { generic::clear(block, len) }
}

/// Copies with the portable code, whatever is asked for.
///
/// # Safety
///
/// `to` is valid for writes and `from` for reads of `len` bytes; they do not overlap; nobody else accesses `to` or
/// writes `from` meanwhile.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy(_: Primitive, to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the same contract.
    unsafe { generic::copy(to, from, len) }
}

/// The portable code has no weakly ordered stores.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn drain() {}
