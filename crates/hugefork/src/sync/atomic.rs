//! The atomics through which threads coordinate (locks, entries, counts, free lists) and the calls that sleep on one.
//! In tests, another thread can run before each use of them (rows_test/steps.rs).

#[cfg(not(test))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
pub(crate) use core::sync::atomic::{Ordering, fence};

#[cfg(test)]
pub(crate) use super::steps::{AtomicU32, AtomicU64, AtomicUsize, wait, wait_at_most, wake};
#[cfg(not(test))]
pub(crate) use crate::sys::linux::futex::{wait, wait_at_most, wake};
