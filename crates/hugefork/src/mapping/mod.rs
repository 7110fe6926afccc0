//! The memory that the addresses of a region or snapshot show, and the transactions that change it.
//!
//! | file | what |
//! |---|---|
//! | `addresses` | a range of addresses and the mappings that it takes |
//! | `change` | the transactions `remap` and `reprotect` |
//! | `edges` | where one mapping ends and the next begins |
//! | `inheritance` | what they show in a child of `fork(2)` |

#![deny(clippy::wildcard_enum_match_arm)] // A new state must be considered in every match.

pub(crate) mod addresses;
pub(crate) mod change;
pub(crate) mod edges;
pub(crate) mod inheritance;
