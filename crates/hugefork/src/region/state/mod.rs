//! What a region is made of.

pub(crate) mod books;
pub(crate) mod core;
pub(crate) mod density;
pub(crate) mod history;
pub(crate) mod home;
pub(crate) mod operations;
pub(crate) mod promises;
pub(crate) mod returns;
pub(crate) mod split;
pub(crate) mod store;
pub(crate) mod unresolved;
