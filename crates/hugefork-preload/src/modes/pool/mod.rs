//! Mode `pool`: big anonymous memory lies on the blocks of an engine's pool, and a fork copies no page tables of it.
//!
//! ```text
//! mmap ─▶ map ── big, plain, anywhere ─▶ the engine's ProgramMemory          else ─▶ the kernel, as in `collapse`
//! munmap, madvise, mremap, mprotect … ── whole blocks ─▶ the engine ── parts ─▶ handed over, then the kernel
//! prepare ─▶ everything is shown privately ── fork ─▶ parent: what the child holds, until it is gone
//!                                                 └─▶ child: plain private memory; see `heir` below
//! worker ─▶ tend: promotes what is written densely, folds what nobody shares any more; pass: makes huge pages of it
//! ```
//! What the engine cannot do, the kernel does: memory of another kind, or where the engine has no more, or where it
//! cannot work at all, is the kernel's from the start; blocks of which the program wants something that only the kernel
//! has (other rights, parts unmapped, locks) are handed over to it, with their contents, and counted.
//!
//! # Heirs
//! The child of a fork has private mappings of the pool's file where the program's memory was. The kernel does the same
//! for them as for anonymous ones, with two exceptions: what is dropped (`MADV_DONTNEED`) would show the file again, so
//! zeros are shown instead; and a mapping that grows would show what follows in the file, so it is copied.
//! What an heir has mapped since, the kernel alone knows: it is asked each time.
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
mod engine;
mod forks;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

pub(crate) use calls::Resized;
pub(super) use calls::{
    empty, first_mapped, hand_over, has_rights, is_all_ours, make_way, map, mapped, resize, settle, take_if_free, unmap,
};
pub(super) use care::{gone, grown, pass, tend, trim, wants_worker};
pub(crate) use engine::Held;
pub(super) use forks::{child, help, help_no_more, in_unnoticed_copy, parent, prepare};

use super::heir;
use crate::copies;
use crate::stats::own as stats;
use crate::stats::own::Word;

/// What this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Role {
    /// It may have a pool, and nothing came before.
    Owner = 0,
    /// It was forked from one that has.
    Heir = 1,
    /// The engine cannot work here.
    Without = 2,
}

static ROLE: AtomicU8 = AtomicU8::new(Role::Owner as u8);

fn role() -> Role {
    if copies::is_unnoticed() {
        // What the engine did here would befall the process that this one is a copy of. If it was copied in the middle
        // of a fork, `child` is about to make an heir of it: another library's handler came first.
        return if IS_FORKING.load(Ordering::Acquire) { Role::Heir } else { Role::Without };
    }
    match ROLE.load(Ordering::Acquire) {
        0 => Role::Owner,
        1 => Role::Heir,
        _ => Role::Without,
    }
}

/// The addresses that are the engine's: none before it has any.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// Whether no more is given to the program.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Whether memory is short while children share some. New memory is the kernel's then, in base pages: what a block is
/// held for takes all of it, though a child needs few of its pages.
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// Whether huge pages come only by asking for each.
static NEEDS_COLLAPSE: AtomicBool = AtomicBool::new(false);

/// Whether a thread forks just now.
static IS_FORKING: AtomicBool = AtomicBool::new(false);

/// Whether a range of addresses is, at least in part, where the engine's memory lies.
pub(in crate::modes) fn is_near(start: usize, len: usize) -> bool {
    let (from, to) = (START.load(Ordering::Acquire), END.load(Ordering::Acquire));
    start < to && start.saturating_add(len) > from
}

/// The part of a range that lies behind the engine's addresses.
pub(in crate::modes) fn behind(range: &Range<usize>) -> Option<Range<usize>> {
    let end = END.load(Ordering::Acquire).max(range.start);
    (end < range.end).then_some(end..range.end)
}

/// Hands everything over, and gives no more.
pub(in crate::modes) fn leave_it_all_to_the_kernel() {
    if role() == Role::Heir {
        heir::leave_all();
    }
    if role() != Role::Owner || IS_OVER.swap(true, Ordering::Relaxed) {
        return;
    }
    stats::add(Word::PoolLeft, 1);
    let (start, end) = (START.load(Ordering::Acquire), END.load(Ordering::Acquire));
    if start < end {
        hand_over(&(start..end));
    }
}
