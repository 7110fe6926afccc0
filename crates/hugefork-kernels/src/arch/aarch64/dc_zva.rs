//! `dc zva`: one instruction clears a block of the CPU's choice, mostly 64 bytes, through the cache.
//!
//! Needs: DCZID_EL0 without DZP, which a system sets to forbid it. Wins: not measured; it spares the read of a line
//! that is about to be overwritten. Not for: copies. Untested, see the folder.

use core::arch::asm;

use crate::order::SUBPAGE;

/// The proof that the system lets programs use `dc zva`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct DcZva {
    /// Bytes that one instruction clears; a power of two that divides a subpage.
    step: usize,
}

impl DcZva {
    pub(super) fn new() -> Option<DcZva> {
        /// Forbidden.
        const DZP: u64 = 1 << 4;
        let id: u64;
        // SAFETY: programs may read the register on every aarch64 CPU, and reading it changes nothing.
        unsafe { asm!("mrs {id}, dczid_el0", id = out(reg) id, options(nomem, nostack, preserves_flags, pure)) };
        // The logarithm of the number of 4-byte words, at most 9.
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
