//! What a region is made of, and what each change of an entry means.
//!
//! | of `RegionCore` | what |
//! |---|---|
//! | `zeros`, `of_program`, `at` | a new region |
//! | `pool`, `len`, `check`, `touched`, `bytes_of`, `windows_of`, `offsets_of` | where things are |
//! | `shown`, `site`, `site_at`, `remap` | what the kernel shows, and how that is changed |
//! | `held`, `is_alone_with`, `is_revoked_at` | whose a block is |
//! | `has_history`, `may_share_pages` | whether snapshots hold pages of it |
//! | `note_density` | whether a block is better copied than its pages |
//! | `store`, `reserve_again` | changes entries, and what depends on them |
//! | `split`, `pages_of`, `prepare_split` | blocks that are treated page by page |
//! | `take_turn`, `try_take_turn`, `set_operations` | who may cut or reset it, and when |
//! | `error` | what a call returns where a fault prints a line |

mod accounts;
mod core;
mod dirty_list;
pub(super) mod history;
pub(super) mod operations;
mod placement;
mod split;
mod store;
mod unresolved;

pub(super) use crate::pool::captured::Turn;
pub(super) use dirty_list::{DirtyList, Page};

pub(crate) use self::core::RegionCore;
pub(crate) use operations::{HeldOperations, OperationsCore, ThreadSeat};
pub(crate) use unresolved::Unresolved;
