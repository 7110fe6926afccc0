//! What is done about the program's memory. Each mode is a file; here is what happens to a program, and which mode is
//! told of it.
//!
//! | happens | told by | may not |
//! |---|---|---|
//! | [`mapped`] | `entry`, in the program's thread, maybe in the middle of its `malloc` | allocate, start a thread |
//! | [`prepare`], [`parent`], [`child`] | `fork`, under the lock that all three share | the same |
//! | [`pass`] | `worker`, in its thread, once no descendant lives | touch thread-local data |

mod collapse;

use crate::config;
use crate::environment::Mode;

/// A mapping that the kernel has just made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) rights: libc::c_int,
    pub(crate) flags: libc::c_int,
}

/// The program has mapped something.
pub(crate) fn mapped(mapping: &Mapping) {
    match config::mode() {
        Some(Mode::Collapse) => collapse::mapped(mapping),
        None => {}
    }
}

/// A fork is about to copy the process. False if it is not worth to be followed.
pub(crate) fn prepare() -> bool {
    match config::mode() {
        Some(Mode::Collapse) => collapse::is_worth_following(),
        None => false,
    }
}

/// A fork that is followed has copied the process; this is the one that forked.
pub(crate) fn parent() {
    match config::mode() {
        // The pages are the kernel's.
        Some(Mode::Collapse) | None => {}
    }
}

/// The same in the copy, which has this thread alone.
pub(crate) fn child() {
    match config::mode() {
        Some(Mode::Collapse) | None => {}
    }
}

/// Nobody shares the program's memory any more. False if it was broken off, since a descendant is there again.
pub(crate) fn pass(is_shared: &mut dyn FnMut() -> bool) -> bool {
    match config::mode() {
        Some(Mode::Collapse) => collapse::pass(is_shared),
        None => true,
    }
}
