//! How a plan is run, and what is found meanwhile.
//!
//! ```text
//! runner     subjects interleaved, round by round        sample   what a subject does for it
//! tally      samples and results so far
//! counters   the CPU's own counters                      load     what else happens on the machine
//! ```

mod counters;
mod load;
pub mod runner;
pub(crate) mod sample;
mod tally;
