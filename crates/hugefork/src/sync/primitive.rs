//! What the locks are made of. `tests/locks.rs` puts a concurrency checker in its place.

pub(super) use core::hint::spin_loop;

pub(super) use super::atomic::{AtomicU32, Ordering, wait, wait_at_most, wake};

/// A lock looks so many times before it sleeps: to publish a mapping takes microseconds, and to sleep and wake takes
/// longer.
pub(super) const SPINS: u32 = 100;
