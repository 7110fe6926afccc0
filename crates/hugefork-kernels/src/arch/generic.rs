//! `memset` and `memcpy` of the compiler and the C library.
//!
//! Needs: nothing. Wins: on architectures that have no folder here, and near the target on x86-64 CPUs without fast
//! `rep`. Not for: comparing orders on x86-64. glibc changes its strategy with the length (`rep` from about 100 KiB,
//! non-temporal stores from megabytes), so the comparison would measure glibc.

/// # Safety
///
/// `block` is valid for writes of `len` bytes, and no other thread accesses them during the call.
pub(super) unsafe fn clear(block: *mut u8, len: usize) {
    // SAFETY: the caller vouches for these bytes.
    unsafe { block.write_bytes(0, len) }
}

/// # Safety
///
/// `to` is valid for writes and `from` for reads of `len` bytes; they do not overlap; during the call no other thread
/// accesses `to` or writes `from`.
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller vouches for both ranges.
    unsafe { to.copy_from_nonoverlapping(from, len) }
}
