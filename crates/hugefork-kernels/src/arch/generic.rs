//! `memset` and `memcpy` as the compiler and the C library have them.
//!
//! Needs: nothing. Wins: on architectures that have no file here, and near the target on x86-64 CPUs whose microcode
//! has no fast `rep`. Not for: judging orders on x86-64, since glibc changes its own strategy with the length (from
//! some 100 KiB up it may use `rep`, from megabytes up non-temporal stores), so an order measured with it measures
//! glibc.

/// # Safety
///
/// `block` is valid for writes of `len` bytes, and nobody else accesses them meanwhile.
pub(super) unsafe fn clear(block: *mut u8, len: usize) {
    // SAFETY: the caller's contract is this one.
    unsafe { block.write_bytes(0, len) }
}

/// # Safety
///
/// `to` is valid for writes and `from` for reads of `len` bytes; they do not overlap; nobody else accesses `to` or
/// writes `from` meanwhile.
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's contract is this one.
    unsafe { to.copy_from_nonoverlapping(from, len) }
}
