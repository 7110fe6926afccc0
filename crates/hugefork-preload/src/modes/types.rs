//! What a program asks of memory, and what a mode answers.

use std::ffi::c_int;

/// A mapping that the program asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) hint: usize,
    pub(crate) len: usize,
    pub(crate) rights: c_int,
    pub(crate) flags: c_int,
    /// Without `MAP_ANONYMOUS`: of which file, and from where on.
    pub(crate) file: c_int,
    pub(crate) offset: i64,
}

/// A mapping that the kernel has just made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) rights: c_int,
    pub(crate) flags: c_int,
}

/// What became of contents that the program drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emptied {
    /// They are zero.
    All,
    /// The kernel is to do it.
    Plain,
    /// They are what they were, at least in part: nobody can say whose they are just now, or the kernel refuses.
    Refused,
}

/// What the program has done to its memory since this was last asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// It has filled some, which was looked after.
    Some,
    /// Nothing that is to be looked after.
    None,
    /// Whatever it does, nothing is to be done before the next fork.
    OfNoConcern,
}

/// What was done about what descendants share or have shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maintained {
    /// Nothing is shared any more.
    All,
    /// What can be done now.
    Some,
    /// The same, and the program has hardly written since the last time.
    Quiet,
    /// Some of that. What nobody holds any more is better given up before it goes on.
    InPart,
}
