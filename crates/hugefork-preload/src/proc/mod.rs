//! What the kernel tells about the process and its memory.
//!
//! ```text
//! mappings   what is mapped        groups   limits of memory and threads        usage   what was used
//! ```

pub(crate) mod groups;
pub(crate) mod mappings;
pub(crate) mod usage;
