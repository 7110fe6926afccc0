//! The library's own thread, and its locks and signal masks.
//!
//! ```text
//! worker   the thread that does what takes time
//! lock     a lock that handlers of a fork may take      signals   handlers of signals wait
//! ```

pub(crate) mod lock;
pub(crate) mod signals;
pub(crate) mod worker;
