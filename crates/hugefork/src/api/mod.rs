//! The public face: handles that own what the rooms below do, check who calls, and turn what comes back into errors.
//!
//! | file | what |
//! |---|---|
//! | `builder` | what pools are made of |
//! | `changes` | what differs between two snapshots, or a region and a snapshot |
//! | `cut` | snapshots of several regions at one moment |
//! | `export` | a snapshot for other processes |
//! | `grant` | which backing the machine grants |
//! | `import` | what another process has exported |
//! | `machine` | what this machine offers |
//! | `operations` | several writes of which a cut has all or none |
//! | `pinned` | ranges that stay where they are |
//! | `placing` | which extents of an import are mapped, and which are copied over those |
//! | `pool` | physical memory in blocks |
//! | `region` | memory that is read and written |
//! | `routed` | a region, which its handle and its owned pins hold together |
//! | `snapshot` | a region as it was at one moment |
//! | `stats` | figures |
//! | `transfer` | files, pipes and sockets |
//! | `values` | values of plain types |
//! | `views` | atomic words, parts for several writers |

pub(crate) mod builder;
pub(crate) mod changes;
pub(crate) mod cut;
pub(crate) mod export;
mod grant;
pub(crate) mod import;
pub mod machine;
pub(crate) mod operations;
pub(crate) mod pinned;
mod placing;
pub(crate) mod pool;
pub(crate) mod region;
mod routed;
pub(crate) mod snapshot;
pub(crate) mod stats;
pub(crate) mod transfer;
#[cfg(feature = "bytemuck")]
pub(crate) mod values;
pub(crate) mod views;
