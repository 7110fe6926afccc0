//! What is done when it is asked for: one file or folder a command. No command knows another.

pub(crate) mod bench;
pub(crate) mod bench_compare;
pub(crate) mod doctor;
pub(crate) mod manual;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod stats;
