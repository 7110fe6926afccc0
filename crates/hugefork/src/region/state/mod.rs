//! What a region is made of, and what each change of an entry means.

mod books;
mod core;
mod density;
pub(super) mod history;
mod home;
pub(super) mod operations;
mod promises;
mod returns;
mod split;
mod store;
mod unresolved;

pub(super) use self::core::Turn;
pub(super) use returns::{Known, NoRoom, Page};

pub(crate) use self::core::RegionCore;
pub(crate) use density::Density;
pub(crate) use operations::{HeldOperations, OperationsCore, ThreadSeat};
pub(crate) use unresolved::Unresolved;
