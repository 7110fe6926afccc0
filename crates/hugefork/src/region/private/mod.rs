//! Page grain: blocks that are shown through private mappings, and how what was written there gets back into blocks.

mod fold;
mod overlay;
mod quiesce;

pub(super) use fold::{Folded, PAGES_AT_ONCE, Patched};
