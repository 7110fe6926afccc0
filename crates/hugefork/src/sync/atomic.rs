//! The words by which threads agree, those of the locks, entries, counts and free lists, and how they sleep on one.
//! Tests have a place before each use at which another thread may go on (rows_test/steps.rs).

#[cfg(not(test))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
pub(crate) use core::sync::atomic::{Ordering, fence};

#[cfg(test)]
pub(crate) use super::steps::{AtomicU32, AtomicU64, AtomicUsize, wait, wait_at_most, wake};
#[cfg(not(test))]
pub(crate) use crate::sys::linux::futex::{wait, wait_at_most, wake};
