//! What a write to a block does (fault.rs; by_page.rs through private mappings; run.rs says which neighbours come
//! along), and what is done before one so that it does not fault.
//!
//! | methods of `RegionCore` | purpose |
//! |---|---|
//! | `resolve` | resolves the write of a fault |
//! | `populate`, `prepare_blocks`, `prepare_write` | makes blocks writable before that |
//! | `make_own`, `make_own_in_turn`, `try_to_make` | makes a block the region's own, for other calls |
//! | `write_back_what_is_alone`, `end_cow_mappings` | the same, for private mappings |
//! | `pin`, `unpin` | keeps blocks where they are |
//! | `revoke_from_others` | takes a block away from forks and snapshots |

mod by_page;
mod fault;
mod pins;
mod populate;
mod revoke;
mod run;

pub(super) use fault::Become;

pub(crate) use fault::Resolution;
