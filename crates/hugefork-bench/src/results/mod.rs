//! What was measured.
//!
//! ```text
//! metric   single values, and their units     curve         figures that are a curve    stats   of a set of samples
//! result   results as JSON                    samples_csv   as CSV                      date    when it was
//! ratios   hugefork beside the other subjects
//! ```

pub(crate) mod curve;
mod date;
pub mod metric;
pub mod ratios;
pub mod result;
mod samples_csv;
pub mod stats;
