//! Page faults: how they reach hugefork, and how it resolves them.
//!
//! ```text
//!   write to a region ─▶ SIGSEGV ─▶ delivery ─▶ route: which region? ─▶ region/write ─▶ return, the write is repeated
//!                                      │ not ours                          │ cannot
//!                                      ▼                                   ▼
//!                              the earlier handler               report: one line; SIGBUS
//! ```

pub(crate) mod delivery;
mod report;
pub(crate) mod route;
