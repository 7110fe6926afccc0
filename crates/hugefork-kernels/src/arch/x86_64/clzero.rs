//! AMD's `clzero`: one instruction clears one cache line, past the cache.
//!
//! Needs: CLZERO (every Zen). Wins: far from the target on Zen. It writes a whole line at once, so
//! no write-combining buffer is flushed half full, and it needs no vector register. Not for: bytes
//! that the program touches next (they end up in memory), or copies, which it cannot do. Its stores
//! are as weakly ordered as other non-temporal stores.

use core::arch::asm;

use super::cpu::{Feature, has};
use crate::order::SUBPAGE;

/// The line that one `clzero` clears, on every CPU that has it.
const LINE: usize = 64;

/// Proof that this CPU has CLZERO.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Clzero(());

impl Clzero {
    pub(super) fn new() -> Option<Clzero> {
        has(Feature::Clzero).then_some(Clzero(()))
    }

    /// Clears past the cache; weakly ordered until a fence.
    ///
    /// # Safety
    ///
    /// The contract of [`Primitive::clear`](crate::Primitive::clear).
    pub(super) unsafe fn clear(self, block: *mut u8, len: usize) {
        const { assert!(SUBPAGE.is_multiple_of(LINE), "a run ends with a line") };
        for offset in (0..len).step_by(LINE) {
            // SAFETY: the CPU has CLZERO, as `self` proves. It clears the line at `block + offset`, which lies wholly
            // in the run, since the run begins and ends with a line.
            unsafe {
                asm!("clzero", in("rax") block.add(offset), options(nostack, preserves_flags));
            }
        }
    }
}
