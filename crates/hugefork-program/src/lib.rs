//! Memory that `hugefork run --pool` substitutes for the big mappings of programs that know nothing
//! of hugefork, so that `fork(2)` copies no page tables for that memory.
//!
//! | file | contents |
//! |---|---|
//! | `memory` | the program's part of each block: mapping, unmapping, emptying |
//! | `plain` | memory handed over to the kernel |
//! | `children` | memory inherited by children, and its return |
//! | `huge` | huge pages for full blocks, and freeing memory |
//!
//! The engine moves and copies the blocks (its `seam`); this crate records the program's mappings.

mod children;
mod huge;
mod memory;
#[cfg(test)]
mod model_test;
mod plain;
mod units;

pub use children::Inherited;
pub use huge::Full;
pub use hugefork::seam::{Forks, Zeros};
pub use memory::{ProgramCounts, ProgramMemory};
