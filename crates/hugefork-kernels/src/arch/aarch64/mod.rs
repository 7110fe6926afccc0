//! aarch64: maps each primitive to its function, and defines the fence.
//!
//! **Never measured.** The tests pass in an emulator (`tests/guests.sh`); no aarch64 machine was
//! available. So no default uses the assembly of the two files here; only the calibration and
//! `HUGEFORK_KERNEL` choose it. Cached stores use the portable code (the C library's own `stp` and
//! `dc zva`). MOPS (`setp`, `cpyfp`) is left out: without std, a program cannot detect it on a system
//! that hides ID_AA64ISAR2_EL1.

use core::sync::atomic::{Ordering, fence};

use super::generic;
use crate::primitive_name::PrimitiveName;

mod dc_zva;
mod stnp;

use dc_zva::DcZva;

/// A primitive of aarch64. A system may forbid `dc zva`, so that variant holds the proof that it is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Code {
    Portable,
    DcZva(DcZva),
    Stnp,
}

impl Code {
    /// The cached primitive that every machine of this architecture has.
    pub(crate) const CACHED: Code = Code::Portable;

    /// The primitive with this name, if this machine has it.
    pub(crate) fn new(name: PrimitiveName) -> Option<Code> {
        match name {
            PrimitiveName::Portable => Some(Code::Portable),
            PrimitiveName::DcZva => DcZva::new().map(Code::DcZva),
            PrimitiveName::Stnp => Some(Code::Stnp),
            _ => None,
        }
    }

    /// The fastest cached primitive on this machine.
    pub(crate) fn best_cached() -> Code {
        Code::Portable
    }

    pub(crate) fn name(self) -> PrimitiveName {
        match self {
            Code::Portable => PrimitiveName::Portable,
            Code::DcZva(_) => PrimitiveName::DcZva,
            Code::Stnp => PrimitiveName::Stnp,
        }
    }

    /// # Safety
    ///
    /// The contract of [`Primitive::clear`](crate::Primitive::clear).
    #[inline(never)]
    pub(crate) unsafe fn clear(self, block: *mut u8, len: usize) {
        // SAFETY: the caller vouches for the memory and the alignment. The value proves that `dc zva` is allowed.
        unsafe {
            match self {
                Code::Portable => generic::clear(block, len),
                Code::DcZva(dc_zva) => dc_zva.clear(block, len),
                Code::Stnp => stnp::clear(block, len),
            }
        }
    }

    /// `dc zva` cannot copy, so for it the portable code copies.
    ///
    /// # Safety
    ///
    /// The contract of [`Primitive::copy`](crate::Primitive::copy).
    #[inline(never)]
    pub(crate) unsafe fn copy(self, to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller vouches for the memory and the alignment.
        unsafe {
            match self {
                Code::Portable | Code::DcZva(_) => generic::copy(to, from, len),
                Code::Stnp => stnp::copy(to, from, len),
            }
        }
    }
}

/// Orders all earlier stores before every later store. `stnp` and `dc zva` are ordered like plain stores.
pub(crate) fn drain() {
    fence(Ordering::Release);
}
