//! AMD's `clzero`: one instruction clears one cache line, past the cache.
//!
//! Needs: CLZERO (every Zen). Wins: far from the target on Zen; it writes a whole line at once, so no write-combining
//! buffer is ever flushed half full, and it needs no vector register. Not for: what is touched next (it goes to memory),
//! and copies, which it cannot do. Its stores are as weakly ordered as other non-temporal ones.

use core::arch::asm;

/// The line that one `clzero` clears, on every CPU that has it.
const LINE: usize = 64;

/// # Safety
///
/// The contract of [`super::clear`]: CLZERO is available.
pub(super) unsafe fn clear(block: *mut u8, len: usize) {
    for offset in (0..len).step_by(LINE) {
        // SAFETY: clears the line at `block + offset`, wholly inside the block since both are multiples of the line.
        unsafe {
            asm!("clzero", in("rax") block.add(offset), options(nostack, preserves_flags));
        }
    }
}
