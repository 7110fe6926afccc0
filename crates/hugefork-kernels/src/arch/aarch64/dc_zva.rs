//! `dc zva`: one instruction clears a block of the CPU's choice, mostly 64 bytes, through the cache.
//!
//! Needs: DCZID_EL0 without DZP, which a system sets that forbids it. Wins: not measured; it spares the read of a line
//! that is about to be overwritten. Not for: copies. Untested, see the folder.

use core::arch::asm;

use crate::order::SUBPAGE;

/// Bytes that one `dc zva` clears, or `None` where it is forbidden or clears more than a subpage.
pub(super) fn block_size() -> Option<usize> {
    /// Forbidden.
    const DZP: u64 = 1 << 4;
    let id: u64;
    // SAFETY: the register is there for programs on every aarch64 CPU, and reading it changes nothing.
    unsafe { asm!("mrs {id}, dczid_el0", id = out(reg) id, options(nomem, nostack, preserves_flags, pure)) };
    // The logarithm of the number of 4-byte words, at most 9.
    let bytes = 4 << (id & 0xf);
    (id & DZP == 0 && bytes <= SUBPAGE).then_some(bytes)
}

/// # Safety
///
/// The contract of [`super::clear`]; `step` is what [`block_size`] says.
pub(super) unsafe fn clear(block: *mut u8, len: usize, step: usize) {
    // SAFETY: clears `len` bytes from `block` on in whole steps: both are multiples of 4 KiB and the step divides that.
    unsafe {
        asm!(
            "2:",
            "dc zva, {block}",
            "add {block}, {block}, {step}",
            "subs {len}, {len}, {step}",
            "b.ne 2b",
            block = inout(reg) block => _,
            len = inout(reg) len => _,
            step = in(reg) step,
            options(nostack),
        );
    }
}
