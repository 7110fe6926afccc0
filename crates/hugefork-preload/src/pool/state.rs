//! The pool's state that threads read without its lock: the role of this process, the engine's
//! addresses, and whether a fork is under way.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use crate::fork::copies;
use crate::switch;

/// The role of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Role {
    /// It may have a pool; the initial role.
    Owner = 0,
    /// It was forked from a process with a pool.
    Child = 1,
    /// The engine cannot work here.
    Without = 2,
}

pub(super) static ROLE: AtomicU8 = AtomicU8::new(Role::Owner as u8);

pub(super) fn role() -> Role {
    if !switch::is_on() {
        return Role::Without;
    }
    if copies::is_unnoticed() {
        // This process is an unhandled copy, so engine calls would change the original's memory. If it was copied in
        // the middle of a fork, another library's handler runs before ours, and `in_child` will soon make it a child.
        return if IS_FORKING.load(Ordering::Acquire) { Role::Child } else { Role::Without };
    }
    match ROLE.load(Ordering::Acquire) {
        0 => Role::Owner,
        1 => Role::Child,
        _ => Role::Without,
    }
}

/// The start of the engine's addresses; 0 before it has any.
pub(super) static START: AtomicUsize = AtomicUsize::new(0);
pub(super) static END: AtomicUsize = AtomicUsize::new(0);

/// Whether a thread is forking.
pub(super) static IS_FORKING: AtomicBool = AtomicBool::new(false);

/// Whether a range belongs to the kernel alone, as in most calls.
pub(crate) fn is_plain(start: usize, len: usize) -> bool {
    if !switch::is_on() {
        // The whole range was handed over.
        return true;
    }
    let (from, to) = (START.load(Ordering::Acquire), END.load(Ordering::Acquire));
    start >= to || start.saturating_add(len) <= from
}

/// Whether this process has a pool.
pub(crate) fn is_owner() -> bool {
    END.load(Ordering::Acquire) != 0 && role() == Role::Owner
}

/// Whether this process is the child of a process with a pool.
pub(crate) fn is_child() -> bool {
    role() == Role::Child
}

/// The part of a range above the engine's addresses.
pub(crate) fn behind(range: &Range<usize>) -> Option<Range<usize>> {
    let end = END.load(Ordering::Acquire).max(range.start);
    (end < range.end).then_some(end..range.end)
}
