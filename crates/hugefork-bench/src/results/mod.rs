//! Results.
//!
//! ```text
//! metric   single values, and their units     stats   ranks of a set of samples
//! result   results as JSON                    date    the time of a run
//! ratios   hugefork beside the best rival
//! ```

mod date;
pub mod metric;
pub mod ratios;
pub mod result;
pub mod stats;
