//! The public API: handles that own the engine's objects, check their arguments, and convert
//! results into errors.
//!
//! | file | contents |
//! |---|---|
//! | `builder` | the options of a new pool |
//! | `changes` | differences between two snapshots, or a region and a snapshot |
//! | `cut` | snapshots of several regions at one moment |
//! | `export` | a snapshot for other processes |
//! | `grant` | which backing the machine grants |
//! | `in_child` | work in a child of `fork(2)` that has older snapshots |
//! | `import` | another process's export |
//! | `machine` | this machine's support for hugefork |
//! | `metrics` | statistics as a list of figures |
//! | `operations` | groups of writes that no cut separates |
//! | `pinned` | ranges that do not move |
//! | `placing` | decides whether an extent of an import is mapped or copied |
//! | `pool` | physical memory in blocks |
//! | `region` | memory that is read and written |
//! | `routed` | a region, which its handle and its owned pins hold together |
//! | `snapshot` | the contents of a region at one moment |
//! | `stats` | statistics |
//! | `steps` | work of several threads on a range of memory |
//! | `transfer` | files, pipes and sockets |
//! | `values` | values of plain types |
//! | `views` | atomic words, parts for several writers |

pub(crate) mod builder;
pub(crate) mod changes;
pub(crate) mod cut;
pub(crate) mod export;
mod grant;
pub(crate) mod import;
pub(crate) mod in_child;
pub mod machine;
pub(crate) mod metrics;
pub(crate) mod operations;
pub(crate) mod pinned;
mod placing;
pub(crate) mod pool;
pub(crate) mod region;
mod routed;
pub(crate) mod snapshot;
pub(crate) mod stats;
mod steps;
pub(crate) mod transfer;
#[cfg(feature = "bytemuck")]
pub(crate) mod values;
pub(crate) mod views;
