//! Memory calls in a child, on memory inherited from a program with a pool. The child has private
//! mappings of the pool's file, of which the kernel copies each page at its first write.
//!
//! ```text
//! empty       drops inherited contents, which must read as zeros afterwards
//! own         makes inherited memory anonymous, before calls that need that
//! userfaults  suspends threads that access memory while it is replaced
//! ```
//! The library asks the kernel which memory is still inherited. If the kernel cannot answer,
//! because `/proc` is missing or no descriptor is left, nothing is dropped, and memory to be moved
//! is copied.

mod empty;
mod own;
mod userfaults;

pub(crate) use empty::{Emptied, Locks, empty, heed_locks};
pub(crate) use own::make_own;
