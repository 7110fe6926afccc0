//! The means to make figures comparable: the same work, the same clock, CPUs and memory that are ready.
//!
//! ```text
//! work       the loads and stores of all subjects        tasks      several that write at the same time
//! clock      how times are taken                         affinity   which CPU
//! warm       the host has given the memory               random     the same targets for each subject of a round
//! ```

pub mod affinity;
pub mod clock;
pub(crate) mod random;
pub mod tasks;
pub(crate) mod warm;
pub mod work;
