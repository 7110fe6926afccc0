//! What drops contents, at once or when memory is short.

mod discard;
mod lazy_free;
mod reclaim;

pub use lazy_free::LazyFreed;
