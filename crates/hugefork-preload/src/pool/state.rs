//! What the threads of the process know of the pool without its lock: what this process is, where the engine has its
//! addresses, and what holds just now.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use crate::fork::copies;
use crate::switch;

/// What this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Role {
    /// It may have a pool, and nothing came before.
    Owner = 0,
    /// It was forked from one that has.
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
        // What the engine did here would befall the process that this one is a copy of. If it was copied in the middle
        // of a fork, `in_child` is about to make a child of it: another library's handler came first.
        return if IS_FORKING.load(Ordering::Acquire) { Role::Child } else { Role::Without };
    }
    match ROLE.load(Ordering::Acquire) {
        0 => Role::Owner,
        1 => Role::Child,
        _ => Role::Without,
    }
}

/// The addresses that are the engine's: none before it has any.
pub(super) static START: AtomicUsize = AtomicUsize::new(0);
pub(super) static END: AtomicUsize = AtomicUsize::new(0);

/// Whether a thread forks just now.
pub(super) static IS_FORKING: AtomicBool = AtomicBool::new(false);

/// Whether the kernel alone knows what lies in a range: most calls are about such.
pub(crate) fn is_plain(start: usize, len: usize) -> bool {
    if !switch::is_on() {
        // All of it was handed over.
        return true;
    }
    let (from, to) = (START.load(Ordering::Acquire), END.load(Ordering::Acquire));
    start >= to || start.saturating_add(len) <= from
}

/// Whether this process has a pool.
pub(crate) fn is_owner() -> bool {
    END.load(Ordering::Acquire) != 0 && role() == Role::Owner
}

/// Whether this is the child of a process that has one.
pub(crate) fn is_child() -> bool {
    role() == Role::Child
}

/// The part of a range that lies behind the engine's addresses.
pub(crate) fn behind(range: &Range<usize>) -> Option<Range<usize>> {
    let end = END.load(Ordering::Acquire).max(range.start);
    (end < range.end).then_some(end..range.end)
}
