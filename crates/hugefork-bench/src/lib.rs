//! The workloads of `hugefork bench`: the engine beside the kernel, doing the same work on the same machine in the same
//! minute.
//!
//! ```text
//! Options ──Plan::new──▶ Plan ──Plan::settle(host)──▶ what runs, what does not and why
//!                          │
//!                     runner::run      round 0 warms up, rounds 1…n count; each round runs every subject once;
//!                          │           budget cuts sizes and rounds, load and counters look at the machine
//!                       Report ──▶ JSON (schema 1), ratios::compare ──▶ hugefork beside the others
//! ```
//!
//! Each file says what it does to keep figures comparable: [`work`] has the loads and stores that every subject runs,
//! [`tasks`] runs several subjects' tasks at once, [`clock`] takes times, [`kernel_memory`] is what the kernel's
//! subjects stand on, and each module in [`cases`] says what one sample is. [`Case`] is all that the planner, the
//! runner and the ratios know of a case.
//!
//! It relies on Linux: `/proc`, `/sys`, `fork(2)`, futexes.

pub mod affinity;
mod budget;
mod case;
pub mod cases;
pub mod clock;
mod counters;
mod curve;
mod date;
mod engine;
mod error;
pub mod folios;
mod holder;
pub mod host;
pub mod job;
pub mod kernel_memory;
mod load;
pub mod metric;
pub mod nearest;
mod options;
pub mod plan;
mod random;
pub mod ratios;
pub mod result;
pub mod runner;
mod sample;
mod samples_csv;
pub mod stats;
pub mod subject;
mod tally;
pub mod tasks;
pub mod thp;
mod warm;
mod words;
pub mod work;
pub mod writes;

pub use case::Case;
pub use error::{BenchError, UsageError};
pub use folios::Settings;
pub use host::Host;
pub use job::Scope;
pub use options::Options;
pub use plan::Plan;
pub use result::Report;
pub use subject::Subject;

/// The code in the README is tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The code in the README of the project is tested, too.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ProjectReadme;
