//! What the kernel tells about the process and its memory.
//!
//! ```text
//! mappings   what is mapped, by /proc/…/maps        queries    what is mapped at an address, by PROCMAP_QUERY
//! pages      which blocks are in base pages         shortage   how much more memory there is
//! ```

pub(crate) mod mappings;
pub(crate) mod pages;
pub(crate) mod queries;
pub(crate) mod shortage;
