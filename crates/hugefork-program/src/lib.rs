//! The big memory of programs that know nothing of hugefork: what `hugefork run --mode pool` puts in the place of their
//! own, so that a `fork(2)` copies no page tables of it.
//!
//! | file | what |
//! |---|---|
//! | `memory` | which bytes are the program's: mapping, unmapping, emptying |
//! | `plain` | what is the kernel's |
//! | `children` | what children inherit, and what becomes of it |
//! | `living` | whether children live, and for how long |
//! | `foresight` | which blocks are worth to be promoted for them |
//! | `keeping` | for how long memory is kept for the copies of the next ones |
//! | `uncopy` | which copied pages may be as before again |
//! | `huge` | huge pages of what is full, and memory that goes back |
//!
//! What becomes of a block is the engine's to do (its `seam`); here lies what the program was told.

mod children;
mod foresight;
mod huge;
mod keeping;
mod living;
mod memory;
#[cfg(test)]
mod model_test;
mod plain;
mod uncopy;
mod units;

pub use children::Inherited;
pub use huge::Full;
pub use hugefork::seam::Held;
pub use memory::{ProgramCounts, ProgramMemory};
pub use plain::Zeros;
pub use uncopy::{CopiedPages, Looks, UncopyBudget};
