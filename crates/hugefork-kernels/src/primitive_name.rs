//! The names of the primitives, and their properties on every machine.
//!
//! A name does not depend on this machine; a [`Primitive`](crate::Primitive) exists only on a
//! machine that can run it.

use core::fmt;

/// The name of a way to clear or copy a run of bytes, whether this machine can run that way or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PrimitiveName {
    /// The compiler's `memset` and `memcpy`, which every machine has.
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
    /// The `clzero` instruction, which clears 64 bytes; it cannot copy.
    Clzero,
    /// `dc zva` of aarch64, which clears a line or more through the cache; it cannot copy.
    DcZva,
    /// `stnp`, the 32-byte non-temporal stores of aarch64.
    Stnp,
}

impl PrimitiveName {
    /// Every name.
    pub const ALL: &[PrimitiveName] = &[
        PrimitiveName::Portable,
        PrimitiveName::Rep,
        PrimitiveName::Sse2Nt,
        PrimitiveName::Avx2,
        PrimitiveName::Avx2Nt,
        PrimitiveName::Avx512,
        PrimitiveName::Avx512Nt,
        PrimitiveName::Clzero,
        PrimitiveName::DcZva,
        PrimitiveName::Stnp,
    ];

    /// The name in text, as in `hybrid/avx512-nt`. It is stable.
    pub fn as_str(self) -> &'static str {
        match self {
            PrimitiveName::Portable => "portable",
            PrimitiveName::Rep => "rep",
            PrimitiveName::Sse2Nt => "sse2-nt",
            PrimitiveName::Avx2 => "avx2",
            PrimitiveName::Avx2Nt => "avx2-nt",
            PrimitiveName::Avx512 => "avx512",
            PrimitiveName::Avx512Nt => "avx512-nt",
            PrimitiveName::Clzero => "clzero",
            PrimitiveName::DcZva => "dc-zva",
            PrimitiveName::Stnp => "stnp",
        }
    }

    /// The requirements on the machine, in words.
    pub fn needs(self) -> &'static str {
        match self {
            PrimitiveName::Portable => "nothing",
            PrimitiveName::Rep | PrimitiveName::Sse2Nt => "an x86-64 CPU",
            PrimitiveName::Avx2 | PrimitiveName::Avx2Nt => "a CPU with AVX2 and a system that saves its registers",
            PrimitiveName::Avx512 | PrimitiveName::Avx512Nt => {
                "a CPU with AVX-512F and a system that saves its registers"
            }
            PrimitiveName::Clzero => "an AMD CPU with CLZERO",
            PrimitiveName::DcZva => "an aarch64 CPU and a system that lets programs use DC ZVA",
            PrimitiveName::Stnp => "an aarch64 CPU",
        }
    }

    /// Whether the primitive can copy as well as clear.
    pub fn can_copy(self) -> bool {
        !matches!(self, PrimitiveName::Clzero | PrimitiveName::DcZva)
    }

    /// Whether the primitive's stores bypass the cache. Such stores are weakly ordered too; [`Kernel`](crate::Kernel)
    /// issues the fences for them.
    pub fn is_non_temporal(self) -> bool {
        match self {
            PrimitiveName::Portable
            | PrimitiveName::Rep
            | PrimitiveName::Avx2
            | PrimitiveName::Avx512
            | PrimitiveName::DcZva => false,
            PrimitiveName::Sse2Nt
            | PrimitiveName::Avx2Nt
            | PrimitiveName::Avx512Nt
            | PrimitiveName::Clzero
            | PrimitiveName::Stnp => true,
        }
    }
}

impl fmt::Display for PrimitiveName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
