//! The commands: a file or folder for each, and one for `completions` and `man` together. No
//! command uses another.

pub(crate) mod bench;
pub(crate) mod compare;
pub(crate) mod doctor;
pub(crate) mod keep;
pub(crate) mod manual;
pub(crate) mod report;
pub(crate) mod run;
