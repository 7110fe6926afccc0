//! Architectures without a folder have the portable code only.

use core::sync::atomic::{Ordering, fence};

use super::generic;
use crate::primitive_name::PrimitiveName;

/// A primitive of this architecture.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Code {
    Portable,
}

impl Code {
    /// The cached primitive that every machine of this architecture has.
    pub(crate) const CACHED: Code = Code::Portable;

    /// The primitive with this name, if this machine has it.
    pub(crate) fn new(name: PrimitiveName) -> Option<Code> {
        (name == PrimitiveName::Portable).then_some(Code::Portable)
    }

    /// The fastest cached primitive on this machine.
    pub(crate) fn best_cached() -> Code {
        Code::Portable
    }

    pub(crate) fn name(self) -> PrimitiveName {
        PrimitiveName::Portable
    }

    /// # Safety
    ///
    /// The contract of [`Primitive::clear`](crate::Primitive::clear).
    pub(crate) unsafe fn clear(self, block: *mut u8, len: usize) {
        // SAFETY: the caller vouches for the memory and the alignment.
        unsafe { generic::clear(block, len) }
    }

    /// # Safety
    ///
    /// The contract of [`Primitive::copy`](crate::Primitive::copy).
    pub(crate) unsafe fn copy(self, to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller vouches for the memory and the alignment.
        unsafe { generic::copy(to, from, len) }
    }
}

/// This architecture has no non-temporal stores here, so a release fence is enough.
pub(crate) fn drain() {
    fence(Ordering::Release);
}
