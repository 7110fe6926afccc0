//! Writes to blocks: how a write that faults is resolved (fault.rs, by_page.rs for private mappings, run.rs for the
//! neighbours that come along, revoke.rs in a full pool), and how blocks are prepared so that writes do not fault.
//!
//! | methods of `RegionCore` | purpose |
//! |---|---|
//! | `resolve` | resolves the write of a fault |
//! | `populate`, `prepare_blocks`, `prepare_write` | make blocks writable before the program writes |
//! | `make_own`, `make_until_done`, `try_to_make` | make a block the region's own, for other calls |
//! | `end_cow_mappings` | replaces CoW mappings by blocks of the region's own |
//! | `pin`, `unpin` | keep blocks where they are, and end that |
//! | `revoke_from_others` | takes a block away from forks and snapshots |

mod by_page;
mod fault;
mod pins;
mod populate;
mod revoke;
mod run;

pub(super) use fault::{Become, Turns};

pub(crate) use fault::Resolution;
