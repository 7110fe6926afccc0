//! The operations that the locks are built from. `tests/locks.rs` puts a concurrency checker in place of this file.

pub(super) use core::hint::spin_loop;
use core::sync::atomic::compiler_fence;

pub(super) use super::atomic::{AtomicU32, Ordering, fence, wait, wait_at_most, wake};
use super::gate::Fences;
pub(super) use crate::sys::SystemError as FenceError;
use crate::sys::linux::barrier;
pub(super) use crate::sys::linux::owner::is_forked_child;

/// Rounds that a lock spins before it sleeps: a fault publishes a mapping within microseconds, and to sleep and wake
/// takes longer.
pub(super) const SPINS: u32 = 100;

/// Orders a store before a load with respect to a thread that runs a [`heavy_fence`] between its store and load.
#[inline]
pub(super) fn light_fence(fences: Fences) {
    match fences {
        Fences::Asymmetric => compiler_fence(Ordering::SeqCst),
        Fences::Full => fence(Ordering::SeqCst),
    }
}

/// Orders a store before a load here, and on every thread that runs a [`light_fence`] between its store and load.
pub(super) fn heavy_fence(fences: Fences) -> Result<(), FenceError> {
    // With `membarrier(2)`, the call is a fence for the calling thread too; without, this is its fence.
    fence(Ordering::SeqCst);
    match fences {
        Fences::Asymmetric => barrier::on_all_threads(),
        Fences::Full => Ok(()),
    }
}
