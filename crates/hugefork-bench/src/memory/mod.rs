//! What subjects stand on.
//!
//! ```text
//! engine   hugefork's pools                             kernel_memory   anonymous mappings
//! thp      the settings for huge pages, as they are     holder          a child of fork(2) that holds such memory
//! folios   the sizes of folios, and how to get just one of them
//! ```

pub(crate) mod engine;
pub mod folios;
pub(crate) mod holder;
pub mod kernel_memory;
pub mod thp;
