//! `stnp`: stores pairs of 16 bytes with a hint that the program will not use the lines soon.
//!
//! Needs: any aarch64 CPU. Wins: not measured (the folder's `mod.rs`); a CPU may ignore the hint.
//! Not for: bytes that the program touches next.

use core::arch::asm;

/// # Safety
///
/// The contract of [`Primitive::clear`](crate::Primitive::clear).
pub(super) unsafe fn clear(block: *mut u8, len: usize) {
    // SAFETY: writes `len` bytes from `block` on, which the caller vouches for: whole steps of 64 bytes,
    // at least one.
    unsafe {
        asm!(
            "movi v0.2d, #0",
            "2:",
            "stnp q0, q0, [{block}]",
            "stnp q0, q0, [{block}, #32]",
            "add {block}, {block}, #64",
            "subs {len}, {len}, #64",
            "b.ne 2b",
            block = inout(reg) block => _,
            len = inout(reg) len => _,
            out("v0") _,
            options(nostack),
        );
    }
}

/// # Safety
///
/// The contract of [`Primitive::copy`](crate::Primitive::copy).
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: reads and writes `len` bytes from `from` and `to` on, which the caller vouches for: whole steps of 64
    // bytes, at least one.
    unsafe {
        asm!(
            "2:",
            "ldp q0, q1, [{from}]",
            "ldp q2, q3, [{from}, #32]",
            "stnp q0, q1, [{to}]",
            "stnp q2, q3, [{to}, #32]",
            "add {from}, {from}, #64",
            "add {to}, {to}, #64",
            "subs {len}, {len}, #64",
            "b.ne 2b",
            to = inout(reg) to => _,
            from = inout(reg) from => _,
            len = inout(reg) len => _,
            out("v0") _, out("v1") _, out("v2") _, out("v3") _,
            options(nostack),
        );
    }
}
