//! The library steps aside: before the program does what does not go with a pool, all memory becomes the kernel's, the
//! worker leaves, the engine gives back its addresses and its descriptors, and nothing more is done for the life of the
//! process.
//!
//! | before | why |
//! |---|---|
//! | a filter of system calls | the filter may kill the process for any call that it does not list |
//! | `setuid` and its like, `unshare`, `setns`, `chroot`, `landlock` | libc knows of no worker |
//! | a limit of memory | the pool has more addresses than the program uses, and its memory is a file's |
//! | pages are pinned, locked or watched, by whatever call | the pool moves what lies at an address to other pages |
//! | a call of memory by `syscall`, at the pool's addresses | nobody wants to be stood in for there |
//! | no room for the worker's thread | what children held would never come back |
//!
//! A child of a fork has no thread and no pool. Only before it filters its calls, or moves to where there may be no
//! `/proc`, what it has inherited becomes its own.

use crate::fork::STATE;
use crate::fork::origin::{self, Who};
use crate::interposed::kernel::quietly;
use crate::pool::{self, Zeros};
use crate::threads::worker;
use crate::{fork, switch};

/// Steps withdrawal, and leaves pages of zeros out or not where memory becomes the kernel's. False if memory is short:
/// then the program's call is not to be made.
pub(crate) fn withdraw(zeros: Zeros) -> bool {
    if !switch::is_on() {
        return true;
    }
    quietly(|| {
        match origin::who() {
            Who::Known => {}
            Who::Copy => fork::notice_copy(),
            // The memory is its parent's, who goes on.
            Who::Borrower => return true,
        }
        worker::send_away();
        let is_done = pool::give_up(zeros);
        if is_done {
            // Nobody is in the middle of a fork then: its handlers would make calls after it.
            STATE.with(|_| switch::set(switch::OFF));
        } else {
            worker::let_back();
        }
        is_done
    })
}

/// Steps aside if there is a pool in this process: without one, the program may do what it likes.
pub(crate) fn leave_a_pool() {
    if pool::is_owner() {
        withdraw(Zeros::Copied);
    }
}

/// The same in a child, too: where there is no `/proc`, nobody can say what is inherited.
pub(crate) fn leave_for_a_place() {
    if pool::is_owner() || pool::is_child() {
        withdraw(Zeros::Copied);
    }
}

/// Steps aside for good, unless this is a child, whose memory stays where it is.
pub(crate) fn leave_unless_child() {
    if !pool::is_child() {
        withdraw(Zeros::Copied);
    }
}
