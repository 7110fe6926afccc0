//! The primitives of this machine: the ways to write a run of bytes.
//!
//! A [`Primitive`] exists only where it can run, so code that has a `Primitive` need not check the CPU again. A
//! primitive does not depend on orders and targets. The code of the primitives is in `arch`, one file for each
//! extension; each file also says when the primitive wins.

use core::fmt;

use crate::{arch::Code, primitive_name::PrimitiveName};

/// A way to clear or copy a run of bytes on this machine. A value of this type proves that the CPU has the instructions
/// and that the system lets programs use them.
///
/// ```
/// use hugefork_kernels::{Kernel, Order, Primitive, PrimitiveName};
///
/// let far = Primitive::new(PrimitiveName::Avx2Nt).unwrap_or(Primitive::PORTABLE);
/// let kernel = Kernel::new(Order::Hybrid, far);
/// assert_eq!(kernel.far(), far);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Primitive(Code);

impl Primitive {
    /// The compiler's `memset` and `memcpy`, which every machine has.
    pub const PORTABLE: Primitive = Primitive(Code::Portable);

    /// The cached primitive that every machine of this architecture has: `rep` on x86-64, elsewhere `portable`.
    pub(crate) const CACHED: Primitive = Primitive(Code::CACHED);

    /// The primitive with this name, if this machine has it.
    pub fn new(name: PrimitiveName) -> Option<Primitive> {
        Code::new(name).map(Primitive)
    }

    /// Every primitive that this machine has.
    pub fn all() -> impl Iterator<Item = Primitive> {
        PrimitiveName::ALL.iter().filter_map(|name| Primitive::new(*name))
    }

    /// The fastest cached primitive on this machine.
    pub(crate) fn best_cached() -> Primitive {
        Primitive(Code::best_cached())
    }

    /// Its name.
    pub fn name(self) -> PrimitiveName {
        self.0.name()
    }

    /// Whether the primitive can copy as well as clear.
    pub fn can_copy(self) -> bool {
        self.name().can_copy()
    }

    /// Whether the primitive's stores bypass the cache. They are weakly ordered too; [`Kernel`](crate::Kernel) fences
    /// them.
    pub fn is_non_temporal(self) -> bool {
        self.name().is_non_temporal()
    }

    /// Clears `len` bytes. Non-temporal stores are weakly ordered until [`drain`](crate::arch::drain).
    ///
    /// # Safety
    ///
    /// `block` is aligned to 4 KiB and valid for writes of `len` bytes, a positive multiple of 4 KiB. No other thread
    /// accesses them until this call has returned and, for non-temporal stores, the next [`drain`](crate::arch::drain)
    /// too.
    pub(crate) unsafe fn clear(self, block: *mut u8, len: usize) {
        // SAFETY: the caller vouches for the memory and the alignment.
        unsafe { self.0.clear(block, len) }
    }

    /// Copies `len` bytes. Non-temporal stores are weakly ordered until [`drain`](crate::arch::drain). If the primitive
    /// cannot copy, the cached one of this architecture copies.
    ///
    /// # Safety
    ///
    /// `to` and `from` are aligned to 4 KiB, do not overlap, and are valid for writes and reads of `len` bytes, a
    /// positive multiple of 4 KiB. No other thread accesses `to` or writes `from` until this call has returned and, for
    /// non-temporal stores, the next [`drain`](crate::arch::drain) too.
    pub(crate) unsafe fn copy(self, to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller vouches for the memory and the alignment.
        unsafe { self.0.copy(to, from, len) }
    }
}

impl fmt::Debug for Primitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(f)
    }
}

impl fmt::Display for Primitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(f)
    }
}
