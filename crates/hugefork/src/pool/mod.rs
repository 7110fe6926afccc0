//! The pool: blocks of physical memory, their contents and holders, and the threads that tend them. The public face is
//! in api/.
//!
//! | file | what |
//! |---|---|
//! | `ahead`, `supply` | how much memory a pool allocates before it is needed, and the steps that allocate it |
//! | `bits` | sets as bitmaps, and one that finds free blocks without a scan of all blocks |
//! | `captured`, `unheld` | one record a block of its private pages; the sets of pages for snapshots, and their drop |
//! | `density` | the numbers of private pages from which a block is copied as a whole |
//! | `core` | a pool's blocks and their memory, on any `Sys` |
//! | `frames` | for each block: the number of holders, the content, whether it is free |
//! | `holders` | the list of regions and snapshots, which give blocks up when the pool runs out of them |
//! | `placements` | ranges of the pool that regions prefer for their blocks |
//! | `kernels` | the choice of the kernels that clear and copy (their order: hugefork-kernels) |
//! | `lineage` | the parent of a fork or snapshot, and the blocks that its forks and snapshots cost a region |
//! | `pressure` | a thread that gives memory back when the machine or the control group is short of it |
//! | `reservation` | blocks that only certain entries may take |
//! | `page_set`, `slots`, `free_slots` | single pages that snapshots hold over shared blocks |
//! | `shortage` | reclaim, and memory that goes back to the system |
//! | `stock`, `zeroing` | how many free blocks a pool keeps zeroed, and the thread that clears them |
//! | `maintenance` | the thread that writes back and promotes CoW mappings |
//! | `worker` | how a pool's threads start, sleep and end |

pub(crate) mod ahead;
pub(crate) mod bits;
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
pub(crate) mod unheld;
pub(crate) mod worker;
pub(crate) mod zeroing;
