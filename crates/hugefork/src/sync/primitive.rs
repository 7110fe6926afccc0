//! What the locks are made of. `tests/locks.rs` puts a concurrency checker's in its place.

pub(super) use core::hint::spin_loop;
pub(super) use core::sync::atomic::{AtomicU32, Ordering};

pub(super) use crate::sys::linux::futex::{wait, wait_at_most, wake};

/// A lock looks this many times before it sleeps: publishing a mapping takes microseconds, a sleep and a wake more
/// than that.
pub(super) const SPINS: u32 = 100;
