//! Page grain: CoW mappings, which show blocks through private mappings, and the write-back of their private pages into
//! blocks.
//!
//! | methods of `RegionCore` | purpose |
//! |---|---|
//! | `may_cow_map`, `shows_by_page` | say whether writes may be by page, or are so after each snapshot |
//! | `cow_map`, `cow_map_each`, `publish_cow_mappings`, `noted` | show blocks through private mappings |
//! | `allow_writes`, `write_protect`, `write_protect_all` | make CoW mappings writable or read-only |
//! | `holds` | keeps writers off by making them wait |
//! | `visible` | finds the entries that threads may access |
//! | `see_to_right` | makes a block writable that counts as writable |
//! | `cow_mappings` | finds the CoW mappings |
//! | `scan`, `count_pages` | find private pages or those without a mark, and mark them |
//! | `patched`, `private_page_count`, `by_block` | find the blocks with private pages |
//! | `copy_private` | copies private pages |
//! | `drop_private` | drops private pages |
//! | `is_alone_with_cow_mapping`, `may_write_back` | say whether private pages may go back into their own blocks |
//! | `write_back_run`, `write_back_in_place` | put private pages back into blocks |
//! | `write_back_read_only` | puts them back while a snapshot keeps writers off |
//!
//! [`Quiesced`] keeps writers off, by making them wait or fault, and resumes them.
//!
//! Nothing here takes a block from the pool, or makes a holder give one up. If an entry needs a block, the caller has
//! to get it: `write_back_run` returns the CoW mappings that it has written back, and the others need a copy.

mod cow_mapping;
mod quiesce;
mod write_back;

pub(super) use quiesce::{Locks, Quiesced};
pub(super) use write_back::{PAGES_AT_ONCE, Patched, WrittenBack};
