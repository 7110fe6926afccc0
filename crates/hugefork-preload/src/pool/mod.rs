//! The pool: big anonymous memory lies on the blocks of an engine's pool, and a fork copies no page tables of it.
//!
//! ```text
//! mmap ─▶ map ── big, plain, anywhere ─▶ the engine's ProgramMemory                      else ─▶ the kernel
//! munmap, madvise, mremap, mprotect … ── whole blocks ─▶ the engine ── parts ─▶ handed over, then the kernel
//! prepare ─▶ everything is shown privately ── fork ─▶ parent: what the child holds, until it is gone
//!                                                 └─▶ child: plain private memory; see Children
//! worker ─▶ maintain: writes back what nobody shares any more
//!        ─▶ collapse_what_is_full: makes huge pages
//! ```
//! What the engine cannot do, the kernel does: memory of another kind, or where the engine has no more, or where it
//! cannot work at all, is the kernel's from the start; blocks of which the program wants something that only the kernel
//! has (other rights, parts unmapped, locks) are handed over to it, with their contents.
//!
//! # Children
//! The child of a fork has private mappings of the pool's file where the program's memory was. The kernel does the same
//! for them as for anonymous ones, with two exceptions: what is dropped (`MADV_DONTNEED`) would show the file again, so
//! zeros are shown instead; and a mapping that grows would show what follows in the file, so it is copied.
//! What a child has mapped since, the kernel alone knows: it is asked each time.
//!
//! # While another thread forks
//! An allocator may hold a lock in whose possession another thread maps or drops memory, and wait for it in a handler
//! of the fork. The library's handler is called after those of all others (`fork::follow`), so who forks has
//! such locks already. But libc takes some of its own after all handlers, and not all handlers are registered where the
//! library sees it. So nobody waits for a fork in `mmap`, `munmap` and `madvise`: new memory is the kernel's then, what
//! is dropped is filled with zeros, and what is unmapped is unmapped later. Who has begun to wait before the fork is
//! sent away by the lock. What only the kernel can do waits: other rights, locks, `MAP_FIXED`.

mod calls;
mod care;
mod dumps;
mod ends;
mod engine;
mod forks;
mod stack;
mod state;

pub(crate) use calls::{
    Emptied, Locks, Resized, Wish, empty, first_mapped, give_up, hand_over, has_rights, is_all_ours, make_own,
    make_way, map, resize, settle, take_if_free, unmap,
};
pub(crate) use care::{Maintained, collapse_what_is_full, gone, has_grown, maintain, trim};
pub(crate) use engine::{Held, descriptors};
pub(crate) use forks::{in_child, in_unnoticed_copy, parent, prepare};
pub(crate) use hugefork_program::Zeros;
pub(crate) use state::{behind, is_child, is_owner, is_plain};
