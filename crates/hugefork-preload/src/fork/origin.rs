//! Which process this is: the one that the library knows, and whether the process that it was forked from still lives.

use std::sync::atomic::{AtomicI32, Ordering};

use rustix::process::{Pid, getpid, getppid};

use crate::fork::copies;

/// The process that this one was forked from; these, if it is a program that was started, or if nobody can say.
static PARENT: AtomicI32 = AtomicI32::new(STARTED);
const STARTED: i32 = 0;
const UNKNOWN: i32 = -1;

/// The process whose constructor or handler ran last.
static THIS: AtomicI32 = AtomicI32::new(0);

/// Notes which process this is.
pub(crate) fn note_this() {
    THIS.store(Pid::as_raw(Some(getpid())), Ordering::Relaxed);
}

/// In the child of a fork, by the process that was copied; none if no handler was told of the fork, and only the
/// present parent is known.
pub(crate) fn forked_from(parent: Option<Pid>) {
    note_this();
    PARENT.store(parent.or_else(getppid).map_or(UNKNOWN, |parent| Pid::as_raw(Some(parent))), Ordering::Relaxed);
}

/// Whether this process may have a pool and a thread: it was not forked, or the process that it was forked from is
/// gone, as that of a daemon. Of one in another namespace nobody can say whether it is gone.
pub(crate) fn may_have_a_pool() -> bool {
    match PARENT.load(Ordering::Relaxed) {
        STARTED => true,
        known => getppid().is_some_and(|parent| Pid::as_raw(Some(parent)) != known),
    }
}

/// What a process is to what the library knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// The one that it knows.
    Known,
    /// A copy that no handler was told of: none of the threads is here.
    Copy,
    /// A child that borrows the memory (`vfork`), and all that is known with it.
    Borrower,
}

/// Which of these this process is. Before the first pool a copy counts as a borrower: there is nothing to leave.
pub(crate) fn who() -> Who {
    if Pid::as_raw(Some(getpid())) == THIS.load(Ordering::Relaxed) {
        return Who::Known;
    }
    if copies::is_unnoticed() { Who::Copy } else { Who::Borrower }
}
