//! x86-64: maps each primitive to its function, and defines the fence.
//!
//! Lengths are multiples of 4 KiB and pointers are aligned to 4 KiB. So no loop has a head or a
//! tail, and two primitives never write the same cache line: a line that receives both non-temporal
//! and cached stores is evicted in between, which costs some ten times as much.

use crate::{arch::generic, primitive_name::PrimitiveName};

mod avx2;
mod avx512;
mod clzero;
mod cpu;
mod rep;
mod sse2;
mod vector;

use avx2::Avx2;
use avx512::Avx512;
use clzero::Clzero;
use sse2::Sse2;

/// A primitive of x86-64, in the order of [`PrimitiveName`]. If a CPU may lack the extension, the variant holds the
/// proof that this CPU has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Code {
    Portable,
    Rep,
    Sse2Nt,
    Avx2(Avx2),
    Avx2Nt(Avx2),
    Avx512(Avx512),
    Avx512Nt(Avx512),
    Clzero(Clzero),
}

impl Code {
    /// The cached primitive that every machine of this architecture has.
    pub(crate) const CACHED: Code = Code::Rep;

    /// The primitive with this name, if this machine has it.
    pub(crate) fn new(name: PrimitiveName) -> Option<Code> {
        match name {
            PrimitiveName::Portable => Some(Code::Portable),
            PrimitiveName::Rep => Some(Code::Rep),
            PrimitiveName::Sse2Nt => Some(Code::Sse2Nt),
            PrimitiveName::Avx2 => Avx2::new().map(Code::Avx2),
            PrimitiveName::Avx2Nt => Avx2::new().map(Code::Avx2Nt),
            PrimitiveName::Avx512 => Avx512::new().map(Code::Avx512),
            PrimitiveName::Avx512Nt => Avx512::new().map(Code::Avx512Nt),
            PrimitiveName::Clzero => Clzero::new().map(Code::Clzero),
            PrimitiveName::DcZva | PrimitiveName::Stnp => None,
        }
    }

    /// The fastest cached primitive on this machine: CPUs without ERMS run `rep` in slow microcode.
    pub(crate) fn best_cached() -> Code {
        if cpu::has(cpu::Feature::FastRep) { Code::Rep } else { Code::Portable }
    }

    pub(crate) fn name(self) -> PrimitiveName {
        match self {
            Code::Portable => PrimitiveName::Portable,
            Code::Rep => PrimitiveName::Rep,
            Code::Sse2Nt => PrimitiveName::Sse2Nt,
            Code::Avx2(_) => PrimitiveName::Avx2,
            Code::Avx2Nt(_) => PrimitiveName::Avx2Nt,
            Code::Avx512(_) => PrimitiveName::Avx512,
            Code::Avx512Nt(_) => PrimitiveName::Avx512Nt,
            Code::Clzero(_) => PrimitiveName::Clzero,
        }
    }

    /// # Safety
    ///
    /// The contract of [`Primitive::clear`](crate::Primitive::clear).
    // Not inlined: `visit` begins a span in eight places, and each would contain the whole dispatch.
    #[inline(never)]
    pub(crate) unsafe fn clear(self, block: *mut u8, len: usize) {
        // SAFETY: the caller vouches for the memory and the alignment. The value proves that the CPU has the extension.
        unsafe {
            match self {
                Code::Portable => generic::clear(block, len),
                Code::Rep => rep::clear(block, len),
                Code::Sse2Nt => Sse2.clear_nt(block, len),
                Code::Avx2(avx2) => avx2.clear(block, len),
                Code::Avx2Nt(avx2) => avx2.clear_nt(block, len),
                Code::Avx512(avx512) => avx512.clear(block, len),
                Code::Avx512Nt(avx512) => avx512.clear_nt(block, len),
                Code::Clzero(clzero) => clzero.clear(block, len),
            }
        }
    }

    /// `clzero` cannot copy, so for it `rep` copies.
    ///
    /// # Safety
    ///
    /// The contract of [`Primitive::copy`](crate::Primitive::copy).
    // Not inlined, for the same reason as `clear`.
    #[inline(never)]
    pub(crate) unsafe fn copy(self, to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller vouches for the memory and the alignment. The value proves that the CPU has the extension.
        unsafe {
            match self {
                Code::Portable => generic::copy(to, from, len),
                Code::Rep | Code::Clzero(_) => rep::copy(to, from, len),
                Code::Sse2Nt => Sse2.copy_nt(to, from, len),
                Code::Avx2(avx2) => avx2.copy(to, from, len),
                Code::Avx2Nt(avx2) => avx2.copy_nt(to, from, len),
                Code::Avx512(avx512) => avx512.copy(to, from, len),
                Code::Avx512Nt(avx512) => avx512.copy_nt(to, from, len),
            }
        }
    }
}

/// Orders all earlier non-temporal stores and `clzero`s before every later store.
pub(crate) fn drain() {
    // SAFETY: SSE is part of x86-64.
    unsafe { core::arch::x86_64::_mm_sfence() }
}
