//! 16-byte non-temporal stores.
//!
//! Needs: any x86-64 CPU. Wins: far from the target on CPUs and virtual machines without AVX; the
//! write-combining buffers hide the small width (2 MiB clear on Zen 5: 22.8 µs, with 64-byte stores
//! 23.1). Not for: bytes that the program touches next (they end up in memory), or CPUs with slow
//! non-temporal clears (Skylake-SP). There is no cached variant, since `rep` serves every CPU that
//! would use it.

use super::vector::{clear_loop, copy_loop};

/// Every x86-64 CPU has SSE2, so this type proves nothing.
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
