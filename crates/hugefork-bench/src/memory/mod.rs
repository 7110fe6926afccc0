//! What subjects stand on.
//!
//! ```text
//! engine    hugefork's pools             kernel_memory   anonymous mappings      holder   a child that holds such memory
//! thp       the settings for huge pages as they are      folios   the sizes of folios, and how to get just one of them
//! ```

pub(crate) mod engine;
pub mod folios;
pub(crate) mod holder;
pub mod kernel_memory;
pub mod thp;
