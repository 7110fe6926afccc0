//! Page grain: blocks that are shown through private mappings, and how what was written there gets back into blocks.
//!
//! | of `RegionCore` | what |
//! |---|---|
//! | `may_overlay`, `shows_by_page` | whether writes may be by page, or are from a snapshot on |
//! | `overlay`, `overlay_each`, `publish_overlays`, `noted` | shows blocks through private mappings |
//! | `unseal`, `seal`, `seal_all`, `protect`, `protect_split` | gives and takes away the right to write |
//! | `holds`, `park_all` | keeps writers off by having them wait |
//! | `resume`, `resume_all`, `resume_after_failure` | resumes them |
//! | `overlays`, `mappings` | which entries are shown so |
//! | `patched`, `next_patched`, `private_page_count` | where there are private pages |
//! | `copy_private`, `copy_private_by` | copies them |
//! | `is_alone_with_overlay`, `may_write_back`, `write_back_run`, `write_back_in_place` | puts them back into blocks |
//! | `write_back_read_only` | the same, in a pause |
//!
//! Nothing here takes a block, and nobody gives one up. What cannot go on without one is left to the caller:
//! `write_back_run` says which overlays it has written back, and the others need a copy.

mod overlay;
mod quiesce;
mod write_back;

pub(super) use write_back::{PAGES_AT_ONCE, Patched, WrittenBack};
