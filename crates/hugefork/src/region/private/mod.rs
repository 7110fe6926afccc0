//! Blocks that are shown through private mappings.

pub(crate) mod fold;
pub(crate) mod overlay;
