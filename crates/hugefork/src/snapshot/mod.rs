//! A snapshot without its public face: the blocks of a region at one moment. Forks are made of it, too.
//!
//! | file | what |
//! |---|---|
//! | `changes` | what differs between a snapshot and something newer |
//! | `core` | which blocks it holds |
//! | `export` | where its bytes lie in the pool's memory, and copies of them |
//! | `hold` | keeps single blocks as they are while somebody reads them |
//! | `mapped` | its bytes at an address: who asks for them |
//! | `pages` | what it holds of blocks that others hold too |
//! | `read` | reading it without a mapping |
//! | `revoke` | giving a block back to the region that needs it |
//! | `view` | … and how they come there |
//! | `zeros` | blocks of zeros that it takes where it has none |

#![deny(clippy::wildcard_enum_match_arm)] // A new state is to be thought of everywhere.

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
