//! Page faults: how they are resolved and how they reach us.
//!
//! ```text
//!   write to a region ─▶ SIGSEGV ─▶ delivery ─▶ arena: which region? ─▶ resolver ─▶ return, the write is repeated
//!                                      │ not ours                          │ cannot
//!                                      ▼                                   ▼
//!                              the earlier handler               one line on stderr, SIGBUS
//! ```

pub(crate) mod delivery;
pub(crate) mod history;
pub(crate) mod report;
pub(crate) mod resolver;
