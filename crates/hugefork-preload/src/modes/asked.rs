//! What a program asks of memory.

use std::ffi::c_int;

/// A mapping that the program asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) hint: usize,
    pub(crate) len: usize,
    pub(crate) rights: c_int,
    pub(crate) flags: c_int,
}

/// A mapping that the kernel has just made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) rights: c_int,
    pub(crate) flags: c_int,
}
