//! What the kernel tells about the process and its memory.
//!
//! ```text
//! mappings   what is mapped, by /proc/…/maps        queries    what is mapped at an address, by PROCMAP_QUERY
//! pages      which blocks are in base pages, and which pages are private
//! shortage   how much more memory there is          usage      what was used, and what the machine has
//! ```

pub(crate) mod mappings;
pub(crate) mod pages;
pub(crate) mod queries;
pub(crate) mod shortage;
pub(crate) mod usage;
