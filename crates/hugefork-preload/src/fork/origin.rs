//! Which process this is: the one that the library knows, and whether the process that it was forked from still lives.

use std::sync::atomic::{AtomicI32, Ordering};

use rustix::process::{Pid, getpid, getppid};
use syscalls::{Sysno, syscall};

use crate::config;
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

/// Whether the process that this one was forked from is there, and shares memory with it. Of one in another namespace
/// nobody can say whether it is gone.
pub(crate) fn has_parent() -> bool {
    match PARENT.load(Ordering::Relaxed) {
        STARTED => false,
        known => getppid().is_none_or(|parent| Pid::as_raw(Some(parent)) == known),
    }
}

/// Whether this process may have threads of the library's.
pub(crate) fn may_have_threads() -> bool {
    config::helps_children() || !has_parent()
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

/// Which of these this process is.
pub(crate) fn who() -> Who {
    let this = Pid::as_raw(Some(getpid()));
    if this == THIS.load(Ordering::Relaxed) {
        return Who::Known;
    }
    if copies::is_unnoticed() || !copies::are_watched() && !shares_memory(this) { Who::Copy } else { Who::Borrower }
}

/// Whether this process's memory is its parent's, too. So it is if nobody can say.
fn shares_memory(this: i32) -> bool {
    const KCMP_VM: usize = 1;
    let parent = Pid::as_raw(getppid());
    // SAFETY: only compares.
    unsafe { syscall!(Sysno::kcmp, this, parent, KCMP_VM, 0, 0) }.unwrap_or(0) == 0
}
