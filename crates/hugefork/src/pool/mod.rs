//! Pools without their public face: physical memory in blocks.
//!
//! | file | what |
//! |---|---|
//! | `ahead`, `supply` | how much memory is got before it is needed, and the thread that gets it |
//! | `bits` | the free blocks, found without a look at each |
//! | `captured`, `unheld` | a record a block of its private pages, those of the last snapshots, and who drops them |
//! | `density` | from how many pages on a block is copied as a whole |
//! | `core` | a pool's blocks and their memory, on any `Sys` |
//! | `frames` | how many hold each block, what is in it, which are free |
//! | `holders` | regions and snapshots, which are asked when blocks are short |
//! | `placements` | where regions would like their blocks |
//! | `kernels` | which kernels clear and copy (their order: hugefork-kernels) |
//! | `lineage` | the region that a fork or snapshot was made of, and what that costs it |
//! | `pressure` | gives memory back when the machine or the control group is short of it |
//! | `reservation` | blocks that only certain entries may take |
//! | `page_set`, `slots`, `free_slots` | what snapshots hold of blocks that others hold too: single pages |
//! | `shortage` | reclaim, and memory that goes back to the system |
//! | `stock`, `zeroing` | how many blocks are kept zero, and the thread that clears them |
//! | `maintenance` | the thread that writes back and promotes CoW mappings |
//! | `worker` | the threads of a pool |

pub(crate) mod ahead;
mod bits;
pub(crate) mod captured;
pub(crate) mod core;
pub(crate) mod density;
pub(crate) mod frames;
#[cfg(test)]
mod frames_tests;
pub(crate) mod free_slots;
pub(crate) mod holders;
pub(crate) mod kernels;
pub(crate) mod lineage;
pub(crate) mod maintenance;
pub(crate) mod page_set;
pub(crate) mod placements;
pub(crate) mod pressure;
pub(crate) mod reservation;
pub(crate) mod shortage;
pub(crate) mod slots;
pub(crate) mod stock;
pub(crate) mod supply;
mod unheld;
pub(crate) mod worker;
pub(crate) mod zeroing;
