//! The ways to write a run of bytes: names, what each needs, and whether this machine has it.
//!
//! A primitive knows nothing about orders and targets. The code is in [`arch`](crate::arch), one file an extension,
//! which also says when each wins; what the CPU has is asked of `cpu`.

use core::fmt;

/// A way to clear or copy a run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Primitive {
    /// The compiler's `memset` and `memcpy`; everywhere.
    Portable,
    /// `rep stosb` and `rep movsb`.
    Rep,
    /// 16-byte non-temporal stores.
    Sse2Nt,
    /// 32-byte cached stores.
    Avx2,
    /// 32-byte non-temporal stores.
    Avx2Nt,
    /// 64-byte cached stores.
    Avx512,
    /// 64-byte non-temporal stores.
    Avx512Nt,
    /// The `clzero` instruction, 64 bytes at a time; clears only.
    Clzero,
    /// `dc zva` of aarch64, which clears a line or more through the cache; clears only.
    DcZva,
    /// 32-byte non-temporal stores of aarch64, `stnp`.
    Stnp,
}

impl Primitive {
    /// Every primitive, whether this machine has it or not.
    pub const ALL: &[Primitive] = &[
        Primitive::Portable,
        Primitive::Rep,
        Primitive::Sse2Nt,
        Primitive::Avx2,
        Primitive::Avx2Nt,
        Primitive::Avx512,
        Primitive::Avx512Nt,
        Primitive::Clzero,
        Primitive::DcZva,
        Primitive::Stnp,
    ];

    /// The cached primitive that goes with any other one, on every machine of this architecture.
    pub(crate) const CACHED: Primitive =
        if cfg!(target_arch = "x86_64") { Primitive::Rep } else { Primitive::Portable };

    /// The stable name, as in `hybrid/avx512-nt`.
    pub fn name(self) -> &'static str {
        match self {
            Primitive::Portable => "portable",
            Primitive::Rep => "rep",
            Primitive::Sse2Nt => "sse2-nt",
            Primitive::Avx2 => "avx2",
            Primitive::Avx2Nt => "avx2-nt",
            Primitive::Avx512 => "avx512",
            Primitive::Avx512Nt => "avx512-nt",
            Primitive::Clzero => "clzero",
            Primitive::DcZva => "dc-zva",
            Primitive::Stnp => "stnp",
        }
    }

    /// What a machine must have to run it, in words.
    pub fn needs(self) -> &'static str {
        match self {
            Primitive::Portable => "nothing",
            Primitive::Rep | Primitive::Sse2Nt => "an x86-64 CPU",
            Primitive::Avx2 | Primitive::Avx2Nt => "a CPU with AVX2 and a system that saves its registers",
            Primitive::Avx512 | Primitive::Avx512Nt => "a CPU with AVX-512F and a system that saves its registers",
            Primitive::Clzero => "an AMD CPU with CLZERO",
            Primitive::DcZva => "an aarch64 CPU and a system that lets programs use DC ZVA",
            Primitive::Stnp => "an aarch64 CPU",
        }
    }

    /// Whether this CPU has it and the system lets programs use it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use crate::cpu::{Feature, has};
            match self {
                Primitive::Portable | Primitive::Rep | Primitive::Sse2Nt => true,
                Primitive::Avx2 | Primitive::Avx2Nt => has(Feature::Avx2),
                Primitive::Avx512 | Primitive::Avx512Nt => has(Feature::Avx512f),
                Primitive::Clzero => has(Feature::Clzero),
                Primitive::DcZva | Primitive::Stnp => false,
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            match self {
                Primitive::Portable | Primitive::Stnp => true,
                Primitive::DcZva => crate::arch::has_dc_zva(),
                _ => false,
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            self == Primitive::Portable
        }
    }

    /// Whether it copies as well as clears.
    pub fn can_copy(self) -> bool {
        !matches!(self, Primitive::Clzero | Primitive::DcZva)
    }

    /// Whether its stores bypass the cache. They are weakly ordered too; [`Kernel`](crate::Kernel) puts the fence.
    pub fn is_non_temporal(self) -> bool {
        match self {
            Primitive::Portable | Primitive::Rep | Primitive::Avx2 | Primitive::Avx512 | Primitive::DcZva => false,
            Primitive::Sse2Nt | Primitive::Avx2Nt | Primitive::Avx512Nt | Primitive::Clzero | Primitive::Stnp => true,
        }
    }
}

impl fmt::Display for Primitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
