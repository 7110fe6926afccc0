//! A region without its public face: what happens to its blocks at each fault and call.
//!
//! | room | what |
//! |---|---|
//! | `state` | what a region is made of, and what each change of an entry means |
//! | `private` | page grain: private mappings, and how what was written there gets back into blocks |
//! | `write` | what a write to a block does, and what is done before one so that it does not fault |
//! | `cut` | snapshots of one region or several at one moment |
//! | `reset` | gives regions the bytes of snapshots again |
//! | `fork` | a region that starts as a snapshot |
//! | `free` | drops contents, at once or when memory is short |
//! | `changes` | what differs between a region and a snapshot |
//! | `program` | the memory of a program that knows nothing of hugefork |
//! | `maintain` | what the pool's thread does for private mappings |

#![deny(clippy::wildcard_enum_match_arm)] // A new state is to be thought of everywhere.

mod changes;
pub(crate) mod cut;
mod fork;
pub(crate) mod free;
pub(crate) mod maintain;
mod private;
mod program;
pub(crate) mod reset;
pub(crate) mod state;
pub(crate) mod write;
