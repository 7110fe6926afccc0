//! Output to standard output, a terminal or a file.

pub(crate) mod sink;
pub(crate) mod stdout;
pub(crate) mod terminal;
