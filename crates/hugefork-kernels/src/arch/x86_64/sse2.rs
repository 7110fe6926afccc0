//! 16-byte non-temporal stores.
//!
//! Needs: nothing beyond x86-64. Wins: far from the target on CPUs and virtual machines without AVX; the
//! write-combining buffers hide the width (2 MiB clear on Zen 5: 22.8 µs, with 64-byte stores 23.1). Not for: what is
//! touched next (it goes to memory), and CPUs where non-temporal clears are slow (Skylake-SP). There is no cached
//! variant, since `rep` is on every CPU that would want it.

use super::vector::{clear_loop, copy_loop};

/// Every x86-64 CPU has SSE2, so there is nothing to prove.
pub(super) struct Sse2;

impl Sse2 {
    clear_loop!(
        /// Clears past the cache; weakly ordered until a fence.
        clear_nt, "sse2", 16, "pxor xmm0, xmm0", "movntdq", "xmm0", ""
    );

    copy_loop!(
        /// Copies past the cache; weakly ordered until a fence.
        copy_nt, "sse2", 16, "movdqa", "movntdq", ["xmm0", "xmm1", "xmm2", "xmm3"], ""
    );
}
