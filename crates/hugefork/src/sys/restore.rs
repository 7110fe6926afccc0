//! Copies bytes back to a place that mostly still has the same bytes.
//!
//! A comparison costs little beside a copy, since both read both sides. In return only differing bytes are written, and
//! the caller learns whether there were any.

use core::slice;

/// The number of bytes that are compared at once, and copied if any of them differs.
const STEP_BYTES: usize = 512;

/// Prefetches the first lines at an address, where nothing need be mapped. The processor prefetches later lines by
/// itself, but not across pages.
pub(crate) fn expect(address: usize) {
    const LINE_BYTES: usize = 64;
    const LINES: usize = 4;
    for nth in 0..LINES {
        let line = core::ptr::without_provenance::<i8>(address + nth * LINE_BYTES);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing, and never faults.
        unsafe {
            core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line);
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            core::arch::asm!("prfm pldl1keep, [{line}]", line = in(reg) line, options(readonly, nostack));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    }
}

/// Makes the `len` bytes at `to` equal to those at `from`, and writes only where they differ. Returns true if any did.
///
/// # Safety
/// `to` is valid for reads and writes of `len` bytes, and `from` for reads. They do not overlap, and no other thread
/// writes to either meanwhile.
pub(crate) unsafe fn restore(to: *mut u8, from: *const u8, len: usize) -> bool {
    let (mut at, mut differed) = (0, false);
    while at < len {
        let count = STEP_BYTES.min(len - at);
        // SAFETY: the bytes lie within both ranges, and no other thread writes to those. The slices are gone before the
        // copy.
        unsafe {
            let (now, then) = (to.add(at), from.add(at));
            if slice::from_raw_parts(now, count) != slice::from_raw_parts(then, count) {
                now.copy_from_nonoverlapping(then, count);
                differed = true;
            }
        }
        at += count;
    }
    differed
}

/// Whether any of the `len` bytes at `one` differs from those at `other`.
///
/// # Safety
/// Both are valid for reads of `len` bytes, and no thread writes to them meanwhile.
pub(crate) unsafe fn differs(one: *const u8, other: *const u8, len: usize) -> bool {
    // SAFETY: by this function's contract.
    unsafe { slice::from_raw_parts(one, len) != slice::from_raw_parts(other, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_bytes_are_copied_and_equal_bytes_are_not_written() {
        for len in [1, STEP_BYTES - 1, STEP_BYTES, 4096, 5000] {
            let from: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            for changed in [0, len / 2, len - 1] {
                let mut to = from.clone();
                // SAFETY: both vectors have this length.
                let mut put_back = || unsafe { restore(to.as_mut_ptr(), from.as_ptr(), len) };
                assert!(!put_back(), "nothing differs");
                to[changed] ^= 1;
                // SAFETY: as above.
                assert!(unsafe { restore(to.as_mut_ptr(), from.as_ptr(), len) } && to == from);
            }
        }
    }
}
