//! The library's own threads, and what keeps threads out of each other's way.
//!
//! ```text
//! worker   the thread that does what takes time         thread    how such threads are made and sent away
//! rights   what they give up at first                   affinity  on which processors they run
//! lock     a lock that handlers of a fork may take      signals   handlers of signals wait
//! ```

pub(crate) mod affinity;
pub(crate) mod lock;
pub(crate) mod rights;
pub(crate) mod signals;
pub(crate) mod thread;
pub(crate) mod worker;
