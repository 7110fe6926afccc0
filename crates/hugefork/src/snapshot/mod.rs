//! A snapshot without its public face: the blocks of a region at one moment. Forks are made of it, too.
//!
//! | file | what |
//! |---|---|
//! | `core` | which blocks it holds |
//! | `read` | reading it without a mapping |
//! | `revoke` | giving a block back to the region that needs it |
//! | `view` | its bytes at an address |

#![deny(clippy::wildcard_enum_match_arm)] // A new state is to be thought of everywhere.

pub(crate) mod core;
mod read;
mod revoke;
mod view;
