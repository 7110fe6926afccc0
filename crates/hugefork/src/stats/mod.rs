//! Counters and histograms that faults write and users read.

pub(crate) mod counters;
pub(crate) mod histogram;
