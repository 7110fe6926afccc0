//! 64-byte stores, cached and non-temporal.
//!
//! Needs: AVX-512F, and a system that saves the mask and ZMM registers. Wins: the non-temporal
//! form, far from the target: a store is a whole line, so no write-combining buffer is left half
//! full. The cached form wins in short runs. Not for: bytes that the program touches next
//! (non-temporal); whole blocks (cached: 64 µs; one `rep stosb` takes 53); the window of a copy
//! (cached): `rep movsb` leaves the lines in a nearer cache (64 KiB use afterwards 0.4 against
//! 0.7–1.0 µs on Zen 5); CPUs that lower their clock for AVX-512 (Skylake-SP).

use super::{
    cpu::{Feature, has},
    vector::{clear_loop, copy_loop},
};

/// Proof that this CPU has AVX-512F and that the system saves its registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(super) fn new() -> Option<Avx512> {
        has(Feature::Avx512f).then_some(Avx512(()))
    }

    clear_loop!(
        /// Clears through the cache.
        clear, "avx512f", 64, "vpxord zmm0, zmm0, zmm0", "vmovdqa64", "zmm0", "vzeroupper"
    );

    clear_loop!(
        /// Clears past the cache; weakly ordered until a fence.
        clear_nt, "avx512f", 64, "vpxord zmm0, zmm0, zmm0", "vmovntdq", "zmm0", "vzeroupper"
    );

    copy_loop!(
        /// Copies through the cache.
        copy, "avx512f", 64, "vmovdqa64", "vmovdqa64", ["zmm0", "zmm1", "zmm2", "zmm3"], "vzeroupper"
    );

    copy_loop!(
        /// Copies past the cache; weakly ordered until a fence.
        copy_nt, "avx512f", 64, "vmovdqa64", "vmovntdq", ["zmm0", "zmm1", "zmm2", "zmm3"], "vzeroupper"
    );
}
