//! The parts of a region, and the changes of its entries with all that depends on them.
//!
//! | methods of `RegionCore` | purpose |
//! |---|---|
//! | `zeros`, `at` | make a new region |
//! | `pool`, `len`, `check`, `touched`, `bytes_of`, `windows_of`, `parts` | locate entries, bytes and windows |
//! | `shown`, `site`, `site_at`, `remap`, `replace` | read and change what the kernel maps |
//! | `reprotect`, `note_failed_protection` | change the right to write, and store what the entries may show then |
//! | `count_mappings_anew` | counts the mappings after many entries were changed |
//! | `held`, `shares_cow_mapping`, `is_alone_with`, `is_revoked_at` | say which holders a block has |
//! | `has_history`, `may_share_pages`, `may_capture` | say whether snapshots may hold single pages over shared blocks |
//! | `note_density` | records whether a block is better copied than its pages |
//! | `lock_entry`, `lock_entries` | lock entries for a call that changes them |
//! | `store`, `reserve_again` | change entries and all that depends on them |
//! | `split`, `pages_of`, `prepare_split` | treat blocks page by page |
//! | `keep` | cancels lazy free of a block or of pages |
//! | `take_turn`, `try_take_turn`, `set_operations` | decide which thread may cut or reset the region, and when |
//! | `error` | makes the error that a call returns where a fault prints a line |

mod accounts;
mod core;
mod dirty_list;
pub(super) mod history;
pub(super) mod operations;
mod placement;
mod seats;
mod split;
mod store;
mod unresolved;

pub(super) use dirty_list::{DirtyList, Page};

pub(crate) use self::core::RegionCore;
#[cfg(feature = "heap")]
pub(crate) use operations::is_this_thread_between;
pub(crate) use operations::{BetweenOperations, HeldOperations, OperationsCore, ThreadSeat};
pub(crate) use unresolved::Unresolved;
