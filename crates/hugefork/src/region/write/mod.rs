//! What a write does.

pub(crate) mod fault;
pub(crate) mod pins;
pub(crate) mod populate;
pub(crate) mod revoke;
pub(crate) mod run;
