//! Withdrawal: before the program does something that is incompatible with a pool, all memory
//! becomes the kernel's, the worker exits, the engine releases its addresses and descriptors, and
//! the library does nothing more for the life of the process.
//!
//! | before | reason |
//! |---|---|
//! | a filter of system calls | the filter may kill the process for any call that it does not list |
//! | `setuid` and its like, `unshare`, `setns`, `chroot`, `landlock` | libc knows of no worker |
//! | a limit of memory | the pool has more addresses than the program uses, and its memory is a file's |
//! | a call that pins, locks or watches pages | the pool moves the contents of an address to other pages |
//! | a call of memory by `syscall`, at the pool's addresses | the library emulates only the functions, not raw calls |
//! | a fork without room for the worker's thread | memory held by children would never be released |
//!
//! A forked child has no thread and no pool. Its inherited memory becomes its own only before it
//! installs a filter, or moves to a place where `/proc` may be missing.

use crate::fork::STATE;
use crate::fork::origin::{self, Relation};
use crate::interposed::kernel::quietly;
use crate::pool::{self, Zeros};
use crate::threads::worker;
use crate::{fork, switch};

/// Withdraws; `zeros` says whether pages of zeros are copied when memory becomes the kernel's. Returns false if memory
/// is short; then the program's call must not be made.
pub(crate) fn withdraw(zeros: Zeros) -> bool {
    if !switch::is_on() {
        return true;
    }
    quietly(|| {
        match origin::identify() {
            Relation::Known => {}
            Relation::Copy => fork::notice_copy(),
            // The memory belongs to the parent, which continues to use it.
            Relation::Borrower => return true,
        }
        worker::send_away();
        let is_done = pool::give_up(zeros);
        if is_done {
            // Under this lock no thread is in the middle of a fork, whose handlers would make calls later.
            STATE.with(|_| switch::set(switch::OFF));
        } else {
            worker::let_back();
        }
        is_done
    })
}

/// Withdraws if this process has a pool. Without a pool the program's call is harmless.
pub(crate) fn leave_a_pool() {
    if pool::is_owner() {
        withdraw(Zeros::Copied);
    }
}

/// Withdraws in a child, too: without `/proc`, the library could not find the inherited memory.
pub(crate) fn leave_for_a_place() {
    if pool::is_owner() || pool::is_child() {
        withdraw(Zeros::Copied);
    }
}

/// Withdraws, unless this is a child, whose memory does not move.
pub(crate) fn leave_unless_child() {
    if !pool::is_child() {
        withdraw(Zeros::Copied);
    }
}
