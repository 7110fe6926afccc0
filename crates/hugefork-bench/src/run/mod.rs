//! The run of a plan.
//!
//! ```text
//! runner   subjects interleaved, round by round      sample   the work of a subject for one sample
//! tally    samples and results so far                load     other activity on the machine
//! ```

mod load;
pub mod runner;
pub(crate) mod sample;
mod tally;
