//! Drops contents, at once or when memory is short.
//!
//! | methods of `RegionCore` | purpose |
//! |---|---|
//! | `discard` | drops contents at once |
//! | `lazy_free`, `cancel_lazy_free`, `keep_all` | permit the engine to drop contents later, and take that back |
//!
//! Reclaim (reclaim.rs) drops lazily freed contents when memory is short. A write takes the permission back, too
//! (write/fault.rs).

mod discard;
mod lazy_free;
mod reclaim;

pub use lazy_free::LazyFreed;
