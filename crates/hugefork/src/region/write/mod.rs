//! What a write to a block does, and what is done before one so that it does not fault.

mod by_page;
mod fault;
mod pins;
mod populate;
mod revoke;
mod run;

pub(super) use fault::Become;

pub(crate) use fault::Resolution;
