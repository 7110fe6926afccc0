//! The memory under the subjects.
//!
//! ```text
//! pools    hugefork's pools                           kernel_memory   anonymous mappings
//! tracked  memory whose writes the kernel marks       holder          a child of fork(2) that holds memory
//! thp      the settings for huge pages, as they are   used            how much memory the machine uses
//! folios   the sizes of folios, and how to get just one of them
//! ```

pub mod folios;
pub(crate) mod holder;
pub mod kernel_memory;
pub(crate) mod pools;
pub mod thp;
pub(crate) mod tracked;
pub(crate) mod used;
