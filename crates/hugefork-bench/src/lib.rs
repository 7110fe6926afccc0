//! The workloads of `hugefork bench`: the engine beside the kernel, doing the same work on the same machine in the same
//! minute.
//!
//! ```text
//! Options ──Plan::new──▶ Plan ──Plan::settle(host)──▶ subjects that run, and reasons why others do not
//!                          │
//!                     runner::run      round 0 warms up, rounds 1…n count; each round runs every subject once
//!                          │
//!                       Report ──▶ JSON (schema 1), ratios::compare ──▶ hugefork beside its best rivals
//! ```
//!
//! ```text
//! plan/      the options, and the work that comes of them    run/      the rounds, and the machine meanwhile
//! cases/     a module a case                                 subject   the contestants
//! measure/   the same work, clock, CPUs and targets for all of them
//! memory/    the memory under the subjects                   results/  figures, JSON, ratios
//! ```
//!
//! Each file explains how it keeps figures comparable: [`work`] has the loads and stores that every subject runs,
//! [`tasks`] runs several subjects' tasks at once, [`clock`] takes times, [`kernel_memory`] is the memory of the
//! kernel's subjects, and the module of a case documents its sample. The planner, the runner and the ratios know a case
//! only as a [`Case`].
//!
//! The crate relies on Linux: `/proc`, `/sys`, `fork(2)`, futexes.

mod case;
pub mod cases;
mod error;
pub mod host;
mod measure;
mod memory;
pub mod nearest;
pub mod plan;
mod results;
mod run;
pub mod subject;
mod words;

pub use measure::{affinity, clock, tasks, work};
pub use memory::{folios, kernel_memory, thp};
pub use results::{metric, ratios, result, stats};
pub use run::runner;

pub use case::Case;
pub use error::{BenchError, UsageError};
pub use folios::Settings;
pub use host::Host;
pub use plan::Plan;
pub use plan::job::Scope;
pub use plan::options::Options;
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
