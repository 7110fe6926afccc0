//! What is done about the program's memory. `collapse` and `pool` are the modes, and `child` is what `pool` does in a
//! child; here is what happens to a program, and which mode is told of it.
//!
//! | happens | told by | may not |
//! |---|---|---|
//! | [`map`], [`unmap`] and so on | `interposed`, maybe in the program's `malloc` | allocate by it, start a thread |
//! | [`prepare`], [`parent`], [`in_child`] | `fork`, under the lock that all three share | the same |
//! | [`gone`], [`maintain`] | `worker` | use thread-locals |
//! | [`pass`], [`grown`], [`patience`] | the same, while no child lives | the same |

mod child;
mod collapse;
mod pool;
mod types;

use std::time::Duration;

pub(crate) use hugefork_program::Zeros;
pub(crate) use pool::{Held, Resized, gone};
// About ranges that are not plain.
pub(crate) use pool::{
    behind, empty, first_locked, first_mapped, hand_over, has_rights, is_all_ours, keep_flags, make_own, make_way,
    resize, settle, take_if_free, unmap,
};
pub(crate) use types::{Emptied, Growth, Maintained, Mapping, Wish};

use crate::config;
use crate::environment::Mode;
use crate::sandbox::withdrawn;

/// The program wants memory. Its address, if it is not the kernel who is to give it.
pub(crate) fn map(wish: &Wish) -> Option<usize> {
    match config::mode() {
        Some(Mode::Pool) => pool::map(wish),
        Some(Mode::Collapse) | None => None,
    }
}

/// Whether the worker is to look after what [`map`] gives.
pub(crate) fn wants_worker() -> bool {
    config::mode() == Some(Mode::Pool) && pool::wants_worker()
}

/// The kernel has mapped something for the program.
pub(crate) fn mapped(mapping: &Mapping) {
    if withdrawn::is_withdrawn() {
        return;
    }
    match config::mode() {
        Some(Mode::Collapse) => collapse::mapped(mapping),
        Some(Mode::Pool) => pool::mapped(mapping),
        None => {}
    }
}

/// Whether the kernel alone knows what lies in a range: most calls are about such.
pub(crate) fn is_plain(start: usize, len: usize) -> bool {
    config::mode() != Some(Mode::Pool) || !pool::is_near(start, len)
}

/// A fork is about to copy the process. False if it is not worth to be followed; [`parent`] or [`in_child`] come then
/// too.
pub(crate) fn prepare() -> bool {
    match config::mode() {
        Some(Mode::Collapse) => collapse::is_worth_following(),
        Some(Mode::Pool) => pool::prepare(),
        None => false,
    }
}

/// A fork has copied the process; this is the one that forked. Gives what its descendants hold.
pub(crate) fn parent() -> Held {
    match config::mode() {
        Some(Mode::Pool) => pool::parent(),
        // The pages are the kernel's.
        Some(Mode::Collapse) | None => Held::nothing(),
    }
}

/// The same in the copy, which has this thread alone.
pub(crate) fn in_child() {
    match config::mode() {
        Some(Mode::Pool) => pool::in_child(),
        Some(Mode::Collapse) | None => {}
    }
}

/// The same, when all that the handlers guard is free again: starts what helps the child, if anything does.
/// It asks `is_orphan` whether the parent is gone.
pub(crate) fn help(is_orphan: fn() -> bool) {
    match config::mode() {
        Some(Mode::Pool) => pool::help(is_orphan),
        Some(Mode::Collapse) | None => {}
    }
}

/// Waits until what helps this child has left, which was sent away.
pub(crate) fn wait_for_help_to_leave() {
    child::wait_until_gone();
}

/// The process may make no calls of its own any more. False if something would be lost.
pub(crate) fn withdraw() -> bool {
    match config::mode() {
        Some(Mode::Pool) => pool::withdraw(),
        Some(Mode::Collapse) | None => true,
    }
}

/// This is a copy of the process that no handler was told of.
pub(crate) fn in_unnoticed_copy() {
    match config::mode() {
        Some(Mode::Pool) => pool::in_unnoticed_copy(),
        Some(Mode::Collapse) | None => {}
    }
}

/// Whether [`maintain`] may look at thread-local data, if only as libc's functions do.
pub(crate) fn need_thread_local_data() -> bool {
    config::mode() == Some(Mode::Pool)
}

/// Looks after memory that the program has filled. For the worker, while no child lives.
pub(crate) fn grown() -> Growth {
    match config::mode() {
        Some(Mode::Pool) => pool::grown(),
        // The kernel makes huge pages at the first touch.
        Some(Mode::Collapse) | None => Growth::OfNoConcern,
    }
}

/// For how long the worker stays where it looks after memory that grows, and finds nothing to do. What it keeps for the
/// next child is kept as long.
pub(crate) fn patience() -> Duration {
    match config::mode() {
        Some(Mode::Pool) => pool::patience(),
        Some(Mode::Collapse) | None => Duration::ZERO,
    }
}

/// Nothing has happened for long, and the worker is about to leave.
pub(crate) fn trim() {
    match config::mode() {
        Some(Mode::Pool) => pool::trim(),
        Some(Mode::Collapse) | None => {}
    }
}

/// The program is about to do what the memory of mode `pool` is not fit for: devices write to its pages past their
/// addresses, or all of it is locked. All memory is the kernel's from now on.
pub(crate) fn leave_it_all_to_the_kernel() {
    match config::mode() {
        Some(Mode::Pool) => _ = pool::leave_it_all_to_the_kernel(),
        Some(Mode::Collapse) | None => {}
    }
}

/// The program is about to limit what it may have. What the mode has beside what the program knows of would count, or
/// does not count and would have to: all memory is the kernel's from now on, and nothing else is there.
pub(crate) fn heed_limits() {
    match config::mode() {
        Some(Mode::Pool) => pool::give_up(),
        Some(Mode::Collapse) | None => {}
    }
}

/// Does what is to be done also while descendants live, for some milliseconds at most.
pub(crate) fn maintain() -> Maintained {
    match config::mode() {
        Some(Mode::Pool) => pool::maintain(),
        Some(Mode::Collapse) | None => Maintained::All,
    }
}

/// Nobody shares the program's memory any more. False if it was broken off, since a descendant is there again.
pub(crate) fn pass(is_shared: &mut dyn FnMut() -> bool) -> bool {
    match config::mode() {
        Some(Mode::Collapse) => collapse::pass(is_shared),
        // What is the kernel's, mode `pool` looks after in the same way.
        Some(Mode::Pool) => pool::pass(is_shared) && collapse::pass(is_shared),
        None => true,
    }
}
