//! What the library counts: a page of words that the program's process writes and others may read while it runs.
//!
//! `page` is the page and its words, `own` that of this process, `read` reads that of another.

pub(crate) mod own;
mod page;
mod read;

pub use page::{BUCKETS, Counters, PoolRefusal};
pub use read::{ReadError, Report, of};
