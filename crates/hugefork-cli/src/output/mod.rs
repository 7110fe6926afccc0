//! Where what a command has to say goes: standard output, a terminal, a file.

pub(crate) mod sink;
pub(crate) mod stdout;
pub(crate) mod terminal;
