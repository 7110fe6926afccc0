//! Page grain: blocks that are shown through private mappings, and how what was written there gets back into blocks.
//!
//! | methods of `RegionCore` | purpose |
//! |---|---|
//! | `may_cow_map`, `shows_by_page` | whether writes may be by page, or are from a snapshot on |
//! | `cow_map`, `cow_map_each`, `publish_cow_mappings`, `noted` | shows blocks through private mappings |
//! | `allow_writes`, `write_protect`, `write_protect_all` | gives CoW mappings the right to write, and takes it away |
//! | `holds` | keeps writers off by having them wait |
//! | `each_visible` | which entries writers see |
//! | `see_to_right` | makes a block writable that counts as such |
//! | `cow_mappings` | which entries are shown so |
//! | `scan`, `count_pages` | finds private pages or those without a mark, and marks them |
//! | `patched`, `next_patched`, `private_page_count`, `by_block` | which blocks have private pages |
//! | `copy_private`, `copy_private_by` | copies them |
//! | `drop_private`, `drop_at_once` | drops them |
//! | `is_alone_with_cow_mapping`, `may_write_back` | whether they may go back into their own blocks |
//! | `write_back_run`, `write_back_in_place` | puts them back into blocks |
//! | `write_back_read_only` | the same, in a pause |
//!
//! [`Quiesced`] keeps writers off in the one way or the other, and resumes them.
//!
//! Nothing here takes a block, and nobody gives one up. What cannot go on without one is left to the caller:
//! `write_back_run` says which CoW mappings it has written back, and the others need a copy.

mod beside_pins;
mod cow_mapping;
mod quiesce;
mod write_back;

pub(super) use quiesce::{Locks, Quiesced};
pub(super) use write_back::{PAGES_AT_ONCE, Patched, WrittenBack};
