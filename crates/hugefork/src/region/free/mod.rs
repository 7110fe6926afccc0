//! What drops contents, at once or when memory is short.
//!
//! | methods of `RegionCore` | purpose |
//! |---|---|
//! | `discard` | drops contents at once |
//! | `lazy_free`, `cancel_lazy_free`, `keep_all` | permits the engine to drop contents later, and takes that back |
//!
//! Reclaim (reclaim.rs) drops them, when memory is short. A write takes the permission back, too: write/fault.rs.

mod discard;
mod lazy_free;
mod reclaim;

pub use lazy_free::LazyFreed;
