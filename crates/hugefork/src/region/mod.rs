//! Regions without their public API: the changes of a region's blocks by each fault and call.
//!
//! | room | purpose |
//! |---|---|
//! | `state` | the parts of a region, and the changes of its entries with all that depends on them |
//! | `private` | page grain: private mappings, and the write-back of private pages into blocks |
//! | `write` | resolves writes to blocks, and prepares blocks so that writes do not fault |
//! | `cut` | takes snapshots of one region, or of several at one moment |
//! | `children` | gives children of `fork(2)` the regions |
//! | `reset` | gives regions the bytes of snapshots again |
//! | `fork` | makes a region that starts as a snapshot |
//! | `free` | drops contents, at once or when memory is short |
//! | `changes` | finds the differences between a region and a snapshot |
//! | `program` | treats the memory of a program that knows nothing of hugefork |
//! | `maintain` | does the work of the pool's thread on CoW mappings |

#![deny(clippy::wildcard_enum_match_arm)] // Each match has to decide about a new state.

mod changes;
pub(crate) mod children;
pub(crate) mod cut;
mod fork;
pub(crate) mod free;
pub(crate) mod maintain;
mod private;
mod program;
pub(crate) mod reset;
pub(crate) mod state;
pub(crate) mod write;
