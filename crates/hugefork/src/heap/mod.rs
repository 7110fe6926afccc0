//! Heaps: regions with an allocator, for data that are full of pointers.
//!
//! | file | contents |
//! |---|---|
//! | `allocator` | a heap |
//! | `rooted` | a value in a heap, with a lock |
//! | `scoped` | a `#[global_allocator]` that a thread switches to a heap |
//! | `space` | the memory of a heap, and all that its allocator knows |

pub(crate) mod allocator;
pub(crate) mod rooted;
pub(crate) mod scoped;
mod space;
