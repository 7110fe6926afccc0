//! What drops contents.

pub(crate) mod discard;
pub(crate) mod lazy_free;
pub(crate) mod reclaim;
