//! `dc zva`: one instruction clears a block through the cache. The CPU chooses the block's size,
//! mostly 64 bytes.
//!
//! Needs: the bit DZP of DCZID_EL0 must be clear; a system sets it to forbid the instruction. Wins:
//! not measured (the folder's `mod.rs`); it avoids reading a line that is about to be overwritten.
//! Not for: copies.

use core::arch::asm;

use crate::order::SUBPAGE;

/// Proof that the system lets programs use `dc zva`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct DcZva {
    /// Bytes that one instruction clears; a power of two that divides a subpage.
    step: usize,
}

impl DcZva {
    pub(super) fn new() -> Option<DcZva> {
        /// The bit that forbids the instruction.
        const DZP: u64 = 1 << 4;
        let id: u64;
        // SAFETY: programs may read the register on every aarch64 CPU, and reading it changes nothing.
        unsafe { asm!("mrs {id}, dczid_el0", id = out(reg) id, options(nomem, nostack, preserves_flags, pure)) };
        // The register holds the logarithm of the number of 4-byte words, at most 9.
        let step = 4 << (id & 0xf);
        (id & DZP == 0 && step <= SUBPAGE).then_some(DcZva { step })
    }

    /// # Safety
    ///
    /// The contract of [`Primitive::clear`](crate::Primitive::clear).
    pub(super) unsafe fn clear(self, block: *mut u8, len: usize) {
        // SAFETY: the system allows `dc zva`, as `self` proves. The loop clears `len` bytes from `block` on in whole
        // steps: both are multiples of 4 KiB and the step divides that.
        unsafe {
            asm!(
                "2:",
                "dc zva, {block}",
                "add {block}, {block}, {step}",
                "subs {len}, {len}, {step}",
                "b.ne 2b",
                block = inout(reg) block => _,
                len = inout(reg) len => _,
                step = in(reg) self.step,
                options(nostack),
            );
        }
    }
}
