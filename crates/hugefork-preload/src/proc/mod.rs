//! What the kernel tells about the process and its memory.
//!
//! ```text
//! mappings   what is mapped        limits   of threads and memory        usage   what was used
//! ```

pub(crate) mod limits;
pub(crate) mod mappings;
pub(crate) mod usage;
