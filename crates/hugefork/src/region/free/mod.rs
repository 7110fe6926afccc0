//! What drops contents, at once or when memory is short.
//!
//! | of `RegionCore` | what |
//! |---|---|
//! | `discard` | drops contents at once |
//! | `lazy_free`, `cancel_lazy_free`, `keep_all` | permits the engine to drop contents later, and takes that back |

mod discard;
mod lazy_free;
mod reclaim;

pub use lazy_free::LazyFreed;
