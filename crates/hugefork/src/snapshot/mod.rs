//! The core of a snapshot: the blocks of a region at one moment. A fork begins as one, too.
//!
//! | file | what |
//! |---|---|
//! | `changes` | finds where a snapshot differs from something newer |
//! | `core` | the blocks that it holds |
//! | `export` | lists where its bytes lie in the pool's memory, and copies them out |
//! | `hold` | keeps single blocks unchanged while somebody reads them |
//! | `mapped` | gives it an address and shows more of it on request |
//! | `pages` | its pages over blocks that others hold too |
//! | `read` | reads it without a mapping |
//! | `revoke` | gives a block back to the region that needs it |
//! | `view` | the mappings behind its address |
//! | `zeros` | blocks of zeros that it takes where it has none |

#![deny(clippy::wildcard_enum_match_arm)] // A new state must be considered in every match.

pub(crate) mod changes;
pub(crate) mod core;
mod export;
pub(crate) mod hold;
mod mapped;
pub(crate) mod pages;
pub(crate) mod read;
mod revoke;
mod view;
mod zeros;
