//! A region without its public face: what happens to its blocks at each fault and call.
//!
//! | file | what |
//! |---|---|
//! | `at_once` | a reset at one moment, beside threads that go on |
//! | `books` | what is counted of a region |
//! | `changes` | what differs between a region and a snapshot |
//! | `core` | what a region is made of |
//! | `cut` | makes snapshots of one region or several at one moment |
//! | `density` | which blocks are written to densely |
//! | `discard` | drops contents at once |
//! | `exchange` | what a reset does with entries that show another block |
//! | `fault` | what a write to a block does |
//! | `fold` | private pages go back into blocks |
//! | `fork` | makes a region of a snapshot |
//! | `freeze` | shares all blocks of a region with a snapshot |
//! | `history` | what recent faults say about the next ones |
//! | `home` | where in the pool a region would like its blocks |
//! | `lazy_free` | permits the engine to drop contents when memory is short, and takes that back |
//! | `operations` | several writes of the program that cuts do not divide |
//! | `overlay` | page grain: the kernel copies the pages that are written |
//! | `pins` | blocks that stay where they are |
//! | `populate` | makes blocks writable before they are written to |
//! | `program` | the memory of a program that knows nothing of hugefork |
//! | `promises` | blocks in which no write may fault for now |
//! | `put_back` | what a reset does with private pages |
//! | `reclaim` | drops what was lazily freed |
//! | `reset` | gives a region the bytes of a snapshot again |
//! | `reset_all` | gives several regions the bytes of snapshots, at one moment |
//! | `returns` | what a region knows from its last reset |
//! | `revoke` | takes a block away from forks and snapshots |
//! | `run` | which neighbours a fault treats together with its block |
//! | `split` | blocks that are treated page by page |
//! | `store` | what each change of an entry means for references, reservations and counts |
//! | `tend` | what the pool's thread does for overlays |
//! | `unresolved` | why a write could not be resolved |

#![deny(clippy::wildcard_enum_match_arm)] // A new state is to be thought of everywhere.

mod at_once;
mod books;
mod changes;
pub(crate) mod core;
pub(crate) mod cut;
pub(crate) mod density;
mod discard;
mod exchange;
pub(crate) mod fault;
mod fold;
mod fork;
mod freeze;
pub(crate) mod history;
mod home;
pub(crate) mod lazy_free;
pub(crate) mod operations;
mod overlay;
pub(crate) mod pins;
mod populate;
mod program;
mod promises;
mod put_back;
mod reclaim;
mod reset;
pub(crate) mod reset_all;
mod returns;
mod revoke;
mod run;
mod split;
mod store;
mod tend;
pub(crate) mod unresolved;
