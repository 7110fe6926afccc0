//! The pool: big anonymous memory lies in blocks of an engine, and a fork copies no page tables of
//! it.
//!
//! ```text
//! mmap ─▶ map ── big, plain, anywhere ─▶ the engine's ProgramMemory                      else ─▶ the kernel
//! munmap, madvise, mremap, mprotect … ── whole blocks ─▶ the engine ── parts ─▶ handed over, then the kernel
//! prepare ─▶ map everything privately ── fork ─▶ parent: records the child's holdings until it ends
//!                                            └─▶ child: plain private memory; see Children
//! worker ─▶ maintain: writes back pages that are no longer shared
//!        ─▶ collapse_what_is_full: makes huge pages
//! ```
//! The kernel serves all requests that the engine cannot: other kinds of memory, memory beyond the
//! engine's, and everything if the engine cannot work. If the program wants a feature of the kernel
//! for a block (other protection, partial unmapping, locks), the block is handed over to the kernel
//! with its contents.
//!
//! # Children
//! The child of a fork has private mappings of the pool's file in place of the program's memory.
//! The kernel treats them like anonymous memory, with two exceptions. Dropped pages
//! (`MADV_DONTNEED`) would show the file again, so the library shows zeros instead. And a mapping
//! that grows would show the next bytes of the file, so the library copies it. The library does not
//! record the child's later mappings; it asks the kernel each time.
//!
//! # While another thread forks
//! A deadlock must be avoided: an allocator holds a lock while its thread maps or drops memory, and
//! the fork's handler waits for the same lock. The library's handler is called after all other
//! handlers (`fork::follow`), so the forking thread normally has such locks already. But libc takes
//! some of its own locks after all handlers, and some handlers are registered without the library's
//! knowledge. So `mmap`, `munmap` and `madvise` do not wait for a fork: new memory comes from the
//! kernel, dropped memory is filled with zeros, and unmapping is deferred. The lock sends away
//! threads that began to wait before the fork. Operations that need the kernel's features do wait:
//! other protection, locks, `MAP_FIXED`.

mod calls;
mod care;
mod dumps;
mod ends;
mod engine;
mod forks;
mod stack;
mod state;

pub(crate) use calls::{
    Emptied, Locks, Resized, Wish, empty, finish_way, first_mapped, give_up, hand_over, has_rights, is_all_ours,
    make_own, make_way, map, resize, take_if_free, unmap,
};
pub(crate) use care::{
    Maintained, collapse_what_is_full, ends, has_descendants, has_grown, maintain, release, trim, wake,
};
pub(crate) use engine::keep_own_descriptors;
pub(crate) use forks::{in_child, in_unnoticed_copy, parent, prepare};
pub(crate) use hugefork_program::Zeros;
pub(crate) use state::{behind, is_child, is_owner, is_plain};
