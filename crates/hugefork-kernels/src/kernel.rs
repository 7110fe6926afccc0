//! A kernel: an order, a primitive for the far part, a primitive for the window, and the window's
//! size.
//!
//! The constructors make all checks, including those of the CPU, so every kernel can run, and a signal handler may
//! call [`Kernel::clear`] and [`Kernel::copy`]. Both are [`Kernel::run`] over [`visit`], which picks the primitive of
//! each span and issues the fences. The module `name` prints and parses kernels.

use core::sync::atomic::{Ordering, fence};

use crate::{
    arch::drain,
    error::KernelError,
    order::{GIGANTIC, Order, Reach, SUBPAGE, Side, Target, Window, visit},
    primitive::Primitive,
    primitive_name::PrimitiveName,
};

/// Default window: the smallest that contains the 64 KiB around any target. Times of a clear of 2 MiB and the use of
/// 64 KiB on Zen 5, in µs: 26.9 + 0.99 with a window of 64 KiB, 28.9 + 0.43 with 128 KiB, 30.8 + 0.43 with 256 KiB. For
/// a copy, in sum: 84.1 with 128 KiB, 85.7 with 256 KiB.
pub(crate) const WINDOW: WindowSize = WindowSize::new(128 << 10).unwrap();

/// Bytes in the window of a hybrid kernel: a positive multiple of [`SUBPAGE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowSize(usize);

impl WindowSize {
    pub(crate) const fn new(bytes: usize) -> Option<WindowSize> {
        if bytes != 0 && bytes.is_multiple_of(SUBPAGE) { Some(WindowSize(bytes)) } else { None }
    }
}

/// A complete way to clear or copy a block; see the [crate documentation](crate).
///
/// Two kernels are equal when their names are equal. The near primitive and the window's size count in
/// [`Order::Hybrid`] only. The window's side and the reschedule function never count, since callers may set them for
/// each block.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    order: Order,
    /// The primitive that writes the whole block, or in the hybrid order the part outside the window.
    far: Primitive,
    /// The primitive that writes the window of the hybrid order, through the cache.
    near: Primitive,
    window: WindowSize,
    side: Side,
    reschedule: fn(),
}

impl Kernel {
    /// A kernel that writes with `far`. In [`Order::Hybrid`], `far` writes outside a window of 128 KiB, and the window
    /// is written with `rep` on x86-64 and `portable` elsewhere.
    pub fn new(order: Order, far: Primitive) -> Kernel {
        Kernel { order, far, near: Primitive::CACHED, window: WINDOW, side: Side::Around, reschedule: || () }
    }

    /// Sets another primitive for the window. Only [`Order::Hybrid`] has a window.
    ///
    /// # Errors
    ///
    /// [`KernelError::NearNotCached`] if the primitive bypasses the cache.
    pub fn with_near(self, near: Primitive) -> Result<Kernel, KernelError> {
        if near.is_non_temporal() { Err(KernelError::NearNotCached(near.name())) } else { Ok(Kernel { near, ..self }) }
    }

    /// Sets another size of the window. Only [`Order::Hybrid`] has a window.
    ///
    /// # Errors
    ///
    /// [`KernelError::BadWindow`] unless `bytes` is a positive multiple of [`SUBPAGE`].
    pub fn with_window(self, bytes: usize) -> Result<Kernel, KernelError> {
        WindowSize::new(bytes).map(|window| self.resized(window)).ok_or(KernelError::BadWindow(bytes))
    }

    pub(crate) fn resized(self, window: WindowSize) -> Kernel {
        Kernel { window, ..self }
    }

    /// Sets the side of the target on which the window lies. Only [`Order::Hybrid`] has a window.
    pub fn with_side(self, side: Side) -> Kernel {
        Kernel { side, ..self }
    }

    /// Sets a function that is called between the steps of a block above [`GIGANTIC`], at least every
    /// [`RESCHEDULE_EVERY`](crate::RESCHEDULE_EVERY) bytes. The function may yield or check a stop flag. It runs on the
    /// thread that calls the kernel; in a signal handler, the function must obey the handler's rules.
    pub fn with_reschedule(self, reschedule: fn()) -> Kernel {
        Kernel { reschedule, ..self }
    }

    /// The default kernel for clearing on this machine: hybrid with the best non-temporal primitive outside a 128 KiB
    /// window.
    pub fn for_clear() -> Kernel {
        // The default has the narrowest stores. All non-temporal primitives have the same bandwidth (23–24 µs per 2 MiB
        // on Zen 5), but the window takes 2 µs after 16-byte stores, and 5 to 6 after wider ones: wider stores fill the
        // queues to memory, and the window then waits for them. Clear of 2 MiB and use of 64 KiB: sse2-nt 25.5 µs,
        // clzero 29.3, avx2-nt and avx512-nt 30.9; in a fault 32.4, 36.7 and 38.4.
        Kernel::first(&[PrimitiveName::Sse2Nt])
    }

    /// The default kernel for copying on this machine: hybrid with the best non-temporal primitive outside a 128 KiB
    /// window.
    pub fn for_copy() -> Kernel {
        // Copy of 2 MiB and use of 64 KiB on Zen 5: avx2-nt 84.1 µs, sse2-nt 86.3, avx512-nt 93.0, `memcpy` 110.
        Kernel::first(&[PrimitiveName::Avx2Nt, PrimitiveName::Sse2Nt])
    }

    /// The hybrid kernel with the first primitive of `names` that this machine has. If the machine has none of these,
    /// as outside of x86-64, the straight portable kernel, which every machine runs.
    fn first(names: &[PrimitiveName]) -> Kernel {
        let cached = Kernel::cached();
        match names.iter().copied().find_map(Primitive::new) {
            Some(far) => cached.hybrid(far, WINDOW),
            None => cached.straight(Primitive::PORTABLE),
        }
    }

    /// The kernel that writes a block straight through the cache, with the fastest cached primitive of this machine.
    pub(crate) fn cached() -> Kernel {
        let cached = Primitive::best_cached();
        Kernel { near: cached, ..Kernel::new(Order::Straight, cached) }
    }

    /// The same kernel in straight order with `far`.
    pub(crate) fn straight(self, far: Primitive) -> Kernel {
        Kernel { order: Order::Straight, far, ..self }
    }

    /// The same kernel in hybrid order with `far`, this window and the fastest cached primitive of this machine.
    pub(crate) fn hybrid(self, far: Primitive, window: WindowSize) -> Kernel {
        Kernel { order: Order::Hybrid, far, near: Primitive::best_cached(), window, ..self }
    }

    /// Refuses a kernel that only clears, such as `hybrid/clzero`. Call this function before you use a chosen kernel
    /// for copies.
    ///
    /// # Errors
    ///
    /// [`KernelError::CannotCopy`] if the far primitive only clears.
    pub fn check_copy(self) -> Result<Kernel, KernelError> {
        if self.far.can_copy() { Ok(self) } else { Err(KernelError::CannotCopy(self.far.name())) }
    }

    /// The order.
    pub fn order(&self) -> Order {
        self.order
    }

    /// The primitive that writes outside the window; for any order but [`Order::Hybrid`] it writes the whole block.
    pub fn far(&self) -> Primitive {
        self.far
    }

    /// The primitive that writes the window of [`Order::Hybrid`].
    pub fn near(&self) -> Primitive {
        self.near
    }

    /// Bytes in the window of [`Order::Hybrid`].
    pub fn window(&self) -> usize {
        self.window.0
    }

    /// The size of the window of [`Order::Hybrid`] as a type.
    pub(crate) fn window_size(&self) -> WindowSize {
        self.window
    }

    /// The side of the target on which the window of [`Order::Hybrid`] lies.
    pub fn side(&self) -> Side {
        self.side
    }

    /// The function that is called between the steps of a block above [`GIGANTIC`].
    pub(crate) fn reschedule(&self) -> fn() {
        self.reschedule
    }

    /// Clears the block, and clears the bytes around the target last. The call allocates nothing, takes no lock and
    /// does not panic, so a signal handler may make it. All stores of the call are ordered before the caller's later
    /// stores, so the caller can publish the block.
    ///
    /// # Safety
    ///
    /// `block` is aligned to [`SUBPAGE`] and valid for writes of `len` bytes; `len` is a positive multiple of
    /// [`SUBPAGE`]; no other thread accesses the block during the call.
    pub unsafe fn clear(&self, block: *mut u8, len: usize, target: Target) {
        debug_assert!(block.addr().is_multiple_of(SUBPAGE) && len != 0);
        self.run(self.far, len, target, |primitive, start, len| {
            // SAFETY: `visit` yields whole subpages inside the block; `run` drains.
            unsafe { primitive.clear(block.add(start), len) }
        });
    }

    /// Copies the block, and copies the bytes around the target last; otherwise like [`clear`](Kernel::clear). A kernel
    /// whose far primitive only clears copies with the near primitive (see [`check_copy`](Kernel::check_copy)).
    ///
    /// # Safety
    ///
    /// `to` and `from` are aligned to [`SUBPAGE`], valid for writes and reads of `len` bytes, and do not overlap; `len`
    /// is a positive multiple of [`SUBPAGE`]; during the call no other thread accesses `to` or writes `from`.
    pub unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize, target: Target) {
        debug_assert!(to.addr().is_multiple_of(SUBPAGE) && len != 0);
        debug_assert!(from.addr().is_multiple_of(SUBPAGE) && to.addr().abs_diff(from.addr()) >= len);
        let far = if self.far.can_copy() { self.far } else { self.near };
        self.run(far, len, target, |primitive, start, len| {
            // SAFETY: as in `clear`, for both blocks.
            unsafe { primitive.copy(to.add(start), from.add(start), len) }
        });
    }

    /// Calls `step(primitive, start, len)` for every span: the common part of clear and copy.
    fn run(&self, far: Primitive, len: usize, target: Target, mut step: impl FnMut(Primitive, usize, usize)) {
        let mut undrained = false;
        let window = Window { bytes: self.window.0, side: self.side };
        visit(self.order, len, target, window, |span| {
            if len > GIGANTIC && span.start > 0 {
                (self.reschedule)();
            }
            let primitive = match (self.order, span.reach) {
                (Order::Hybrid, Reach::Near) => self.near,
                _ => far,
            };
            // One fence between the far part and the window, not one for each span: a fence waits for the
            // write-combining buffers. With 512 fences, 2 MiB of `clzero` take 80 µs instead of 23.
            if undrained && !primitive.is_non_temporal() {
                drain();
            }
            undrained = primitive.is_non_temporal();
            step(primitive, span.start, span.len);
        });
        if undrained {
            drain();
        } else {
            // Cached stores need this fence on architectures that reorder them; on x86-64 it compiles to no
            // instruction.
            fence(Ordering::Release);
        }
    }
}

impl PartialEq for Kernel {
    fn eq(&self, other: &Kernel) -> bool {
        self.order == other.order
            && self.far == other.far
            && (self.order != Order::Hybrid || (self.near == other.near && self.window == other.window))
    }
}

impl Eq for Kernel {}

/// Every primitive of this machine in every order, with the near primitive and window of [`Kernel::new`], including
/// kernels that only clear. For benches and tests.
pub fn every_kernel() -> impl Iterator<Item = Kernel> {
    Primitive::all().flat_map(|far| Order::ALL.iter().map(move |order| Kernel::new(*order, far)))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::{vec, vec::Vec};

    use super::*;

    const KIB: usize = 1 << 10;

    /// A kernel with a window of 16 KiB, and with two different primitives if this architecture has two.
    fn kernel(order: Order) -> Kernel {
        let kernel = Kernel::new(order, Kernel::for_clear().far);
        kernel.with_near(Primitive::PORTABLE).unwrap().with_window(16 * KIB).unwrap()
    }

    /// Primitive, start and length in KiB of each step in a block of `len` bytes with the target in its middle.
    fn steps(kernel: Kernel, len: usize) -> Vec<(Primitive, usize, usize)> {
        let mut steps = vec![];
        kernel.run(kernel.far, len, Target::At(len / 2), |primitive, start, len| {
            steps.push((primitive, start / KIB, len / KIB));
        });
        steps
    }

    #[test]
    fn hybrid_writes_far_and_near_with_their_primitives() {
        let kernel = kernel(Order::Hybrid);
        let (far, near) = (kernel.far, kernel.near);
        assert!(far != near || !cfg!(target_arch = "x86_64"));
        assert_eq!(steps(kernel, 64 * KIB), [(far, 0, 24), (far, 40, 24), (near, 24, 16)]);
        assert_eq!(steps(kernel, 16 * KIB), [(near, 0, 16)]);
        // A gigantic block has no window.
        let expected = [(far, 0, 2048), (far, 2048, 2048), (far, 4096, 64)];
        assert_eq!(steps(kernel, GIGANTIC + 64 * KIB), expected);
    }

    #[test]
    fn the_side_moves_the_window() {
        let kernel = kernel(Order::Hybrid);
        let (far, near) = (kernel.far, kernel.near);
        let after = [(far, 0, 32), (far, 48, 16), (near, 32, 16)];
        assert_eq!(steps(kernel.with_side(Side::After), 64 * KIB), after);
        let before = [(far, 0, 20), (far, 36, 28), (near, 20, 16)];
        assert_eq!(steps(kernel.with_side(Side::Before), 64 * KIB), before);
        assert_eq!(kernel.with_side(Side::Before), kernel, "the name is the same");
    }

    #[test]
    fn other_orders_write_with_one_primitive() {
        for order in Order::ALL.iter().filter(|order| **order != Order::Hybrid) {
            let kernel = kernel(*order);
            let steps = steps(kernel, 64 * KIB);
            assert!(steps.iter().all(|step| step.0 == kernel.far), "{order}: {steps:?}");
            assert_eq!(steps.iter().map(|step| step.2).sum::<usize>(), 64);
        }
    }

    #[test]
    fn the_default_kernels_write_the_window_through_the_cache() {
        for kernel in [Kernel::for_clear(), Kernel::for_copy()] {
            assert!(!kernel.near.is_non_temporal() && kernel.near.can_copy());
            assert_eq!((kernel.window(), kernel.side), (128 * KIB, Side::Around));
        }
        let portable = Kernel::first(&[]);
        assert_eq!((portable.order, portable.far), (Order::Straight, Primitive::PORTABLE));
    }

    #[test]
    fn a_window_is_whole_subpages() {
        assert!([0, 1, SUBPAGE - 1, SUBPAGE + 1, usize::MAX].map(WindowSize::new).iter().all(Option::is_none));
        assert_eq!(WindowSize::new(3 * SUBPAGE), Some(WindowSize(3 * SUBPAGE)));
    }
}
