//! What is done when it is asked for: a file or folder a command, and one for `completions` and `man`. None knows
//! another.

pub(crate) mod bench;
pub(crate) mod bench_compare;
pub(crate) mod doctor;
pub(crate) mod keep;
pub(crate) mod manual;
pub(crate) mod report;
pub(crate) mod run;
