//! Identifies this process: whether the library knows it, and whether the process that it was
//! forked from still runs.

use std::sync::atomic::{AtomicI32, Ordering};

use rustix::process::{Pid, getpid, getppid};

use crate::fork::copies;

/// The process that this one was forked from; or one of these values, for a started program or an unknown parent.
static PARENT: AtomicI32 = AtomicI32::new(STARTED);
const STARTED: i32 = 0;
const UNKNOWN: i32 = -1;

/// The process in which the constructor or a fork handler ran last.
static THIS: AtomicI32 = AtomicI32::new(0);

/// Notes the number of this process.
pub(crate) fn note_this() {
    THIS.store(Pid::as_raw(Some(getpid())), Ordering::Relaxed);
}

/// Notes in the child of a fork the process that was copied; `None` if no handler ran at the fork, so that only the
/// present parent is known.
pub(crate) fn forked_from(parent: Option<Pid>) {
    note_this();
    PARENT.store(parent.or_else(getppid).map_or(UNKNOWN, |parent| Pid::as_raw(Some(parent))), Ordering::Relaxed);
}

/// Whether this process may have a pool and a thread: it was not forked, or the process that it was forked from has
/// ended, as for a daemon. For a parent in another namespace the library cannot find out.
pub(crate) fn may_have_a_pool() -> bool {
    match PARENT.load(Ordering::Relaxed) {
        STARTED => true,
        known => getppid().is_some_and(|parent| Pid::as_raw(Some(parent)) != known),
    }
}

/// The relation of a process to the library's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    /// The process that the records describe.
    Known,
    /// A copy made without the fork handlers: it has none of the library's threads.
    Copy,
    /// A child that shares the memory (`vfork`), and so the records too.
    Borrower,
}

/// Determines the relation of this process. Before the first pool a copy counts as a borrower: it has no pool to leave.
pub(crate) fn identify() -> Relation {
    if Pid::as_raw(Some(getpid())) == THIS.load(Ordering::Relaxed) {
        return Relation::Known;
    }
    if copies::is_unnoticed() { Relation::Copy } else { Relation::Borrower }
}
