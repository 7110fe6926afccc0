//! What a child does about memory that it has inherited from a program with a pool. It has private mappings of the
//! pool's file, of which the kernel copies each page at its first write.
//!
//! ```text
//! empty       what the child drops, which is to read as zeros
//! own         what the child moves, or does such to as only anonymous memory is fit for
//! userfaults  has those wait who use what is not there yet
//! ```
//! What is inherited still, the kernel is asked. Where it does not tell, since there is no `/proc` or no descriptor
//! left, nothing is dropped, and what would be moved is copied.

mod empty;
mod own;
mod userfaults;

pub(crate) use empty::{Emptied, Locks, empty, heed_locks};
pub(crate) use own::make_own;
