//! What a child does about memory that it has inherited from a program in mode `pool`, and writes.
//!
//! It has private mappings of the pool's file, of which the kernel copies each page at its first write. Blocks that are
//! written densely are *privatised*: they become plain anonymous memory of the child, in huge pages, with the same
//! contents. Or pages are *given back* that equal what was inherited. A thread of the child does that, beside those who
//! write, if it is asked for. What its parent holds for it: fork/liveness.
//!
//! ```text
//! marks       which blocks are left to the kernel, by the program's own calls or since they are privatised
//! helper      the thread, and what it is there for
//! waiting     how it waits, and when it leaves
//! grow        where is it written densely, and where does that go on?
//! privatise   makes blocks the child's own, while those who use them wait
//! share       gives back pages that are as they were inherited, by their `twins`
//! empty       what the child drops, which is to read as zeros
//! ends        what lies behind the ends of mappings, where nothing is to be found
//! own         what the child moves, or does such to as only anonymous memory is fit for
//! noted       the same where nobody can be asked what is inherited: behind a filter of system calls, without `/proc`
//! userfaults  has those wait who use what is not there yet
//! ```
//! Nothing is kept from whoever does not write densely: the thread sleeps, and looks at the number of page faults.

mod empty;
pub(super) mod ends;
mod grow;
mod helper;
mod marks;
pub(super) mod noted;
mod own;
mod privatise;
mod share;
mod twins;
mod userfaults;
mod waiting;

pub(super) use empty::{empty, first_locked, keep_flags};
pub(super) use helper::{help, in_child, wait_until_gone};
pub(super) use marks::{after_fork, before_fork, leave, leave_all, set_up};
pub(super) use own::make_own;
