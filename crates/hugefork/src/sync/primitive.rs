//! What the locks are made of. `tests/locks.rs` puts a concurrency checker in its place.

pub(super) use core::hint::spin_loop;
use core::sync::atomic::compiler_fence;

pub(super) use super::atomic::{AtomicU32, Ordering, fence, wait, wait_at_most, wake};
use super::gate::Fences;
pub(super) use crate::sys::SystemError as FenceError;
use crate::sys::linux::barrier;
pub(super) use crate::sys::linux::owner::is_forked_child;

/// A lock looks so many times before it sleeps: to publish a mapping takes microseconds, and to sleep and wake takes
/// longer.
pub(super) const SPINS: u32 = 100;

/// Orders a store before a load, for those who run a [`heavy_fence`] between theirs.
#[inline]
pub(super) fn light_fence(fences: Fences) {
    match fences {
        Fences::Asymmetric => compiler_fence(Ordering::SeqCst),
        Fences::Full => fence(Ordering::SeqCst),
    }
}

/// Orders a store before a load, here and on every thread that runs a [`light_fence`] between its own.
pub(super) fn heavy_fence(fences: Fences) -> Result<(), FenceError> {
    // The call itself is one for the caller; where there is no call, this is.
    fence(Ordering::SeqCst);
    match fences {
        Fences::Asymmetric => barrier::on_all_threads(),
        Fences::Full => Ok(()),
    }
}
