//! The big memory of programs that know nothing of hugefork: what `hugefork run --pool` puts in the place of their
//! own, so that a `fork(2)` copies no page tables of it.
//!
//! | file | what |
//! |---|---|
//! | `memory` | which bytes are the program's: mapping, unmapping, emptying |
//! | `plain` | what is the kernel's |
//! | `children` | what children inherit, and what becomes of it |
//! | `huge` | huge pages of what is full, and memory that goes back |
//!
//! What becomes of a block is the engine's to do (its `seam`); here lies what the program was told.

mod children;
mod huge;
mod memory;
#[cfg(test)]
mod model_test;
mod plain;
mod units;

pub use children::Inherited;
pub use huge::Full;
pub use hugefork::seam::Zeros;
pub use memory::{ProgramCounts, ProgramMemory};
