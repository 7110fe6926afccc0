//! Reads facts about the process and its memory from the kernel.
//!
//! ```text
//! mappings   of the process        limits   of threads and memory        usage   of time and memory
//! ```

pub(crate) mod limits;
pub(crate) mod mappings;
pub(crate) mod usage;
