//! Copies bytes back to where they were, which is mostly where they still are.
//!
//! To compare costs little beside the copy, since both read both sides. In return only what differs is written, and the
//! caller learns whether anything did.

use core::slice;

/// What is compared at once, and copied if any of it differs.
const STEP_BYTES: usize = 512;

/// Has the processor fetch the first lines of what is at an address. Nothing need be there. The hardware goes on by
/// itself, but not from one page to another.
pub(crate) fn expect(address: usize) {
    const LINE_BYTES: usize = 64;
    const LINES: usize = 4;
    for nth in 0..LINES {
        let line = core::ptr::without_provenance::<i8>(address + nth * LINE_BYTES);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this reads nothing, and never faults.
        unsafe {
            core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}

/// Copies the `len` bytes at `from` to those at `to` that differ. True if any did.
///
/// # Safety
/// `to` is valid for reads and writes of `len` bytes, and `from` for reads. They do not overlap, and nobody else writes
/// to either meanwhile.
pub(crate) unsafe fn restore(to: *mut u8, from: *const u8, len: usize) -> bool {
    let (mut at, mut differed) = (0, false);
    while at < len {
        let count = STEP_BYTES.min(len - at);
        // SAFETY: within both ranges, which nobody else writes to. The slices are gone before the copy.
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
/// Both are valid for reads of `len` bytes, and nobody writes to them meanwhile.
pub(crate) unsafe fn differs(one: *const u8, other: *const u8, len: usize) -> bool {
    // SAFETY: by contract.
    unsafe { slice::from_raw_parts(one, len) != slice::from_raw_parts(other, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_copied_and_what_does_not_is_left() {
        for len in [1, STEP_BYTES - 1, STEP_BYTES, 4096, 5000] {
            let from: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            for changed in [0, len / 2, len - 1] {
                let mut to = from.clone();
                // SAFETY: two vectors of this length.
                let mut put_back = || unsafe { restore(to.as_mut_ptr(), from.as_ptr(), len) };
                assert!(!put_back(), "nothing differs");
                to[changed] ^= 1;
                // SAFETY: as above.
                assert!(unsafe { restore(to.as_mut_ptr(), from.as_ptr(), len) } && to == from);
            }
        }
    }
}
