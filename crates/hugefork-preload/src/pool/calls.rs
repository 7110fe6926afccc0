//! Carries out the program's memory calls (`mmap`, `munmap`, `madvise` and so on) on the engine's
//! memory.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::Ordering;

use hugefork_program::{ProgramMemory, Zeros};

use super::ends::cut;
use super::engine::{
    MEMORY, Memory, ask, begin, on_own_stack, unmap_later, unmap_plain, unmap_what_was_left, with, with_unless_forking,
    work_through,
};
use super::state::{END, ROLE, Role, START, role};
use crate::HUGE_PAGE;
use crate::child;
pub(crate) use crate::child::{Emptied, Locks};
use crate::fork::origin;
use crate::proc::{limits, mappings};
use crate::switch;
use crate::threads::lock::Tried;
use crate::threads::signals;

/// Minimum size of a mapping in the pool: it may contain a huge page. Blocks consist of base pages until they are full,
/// so many small mappings take no more memory than without the pool.
const BIG: usize = HUGE_PAGE;

/// A mapping request of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) hint: usize,
    pub(crate) len: usize,
    pub(crate) rights: c_int,
    pub(crate) flags: c_int,
}

/// The first part of a range that is mapped without gaps. In a child it is the whole range, and the kernel finds the
/// gaps.
pub(crate) fn first_mapped(range: &Range<usize>) -> Option<Range<usize>> {
    let found = match role() {
        Role::Owner => ask(|engine| engine.first_mapped(range)),
        Role::Child => {
            cut(range);
            None
        }
        Role::Without => None,
    };
    found.unwrap_or_else(|| Some(range.clone()))
}

/// Maps memory for the program; returns its address, or `None` if the kernel should map it.
pub(crate) fn map(wish: &Wish) -> Option<usize> {
    let least = if switch::takes_small() { 1 } else { BIG };
    let is_wanted = wish.len >= least
        && wish.hint == 0
        && wish.rights == libc::PROT_READ | libc::PROT_WRITE
        && wish.flags & !(libc::MAP_NORESERVE | libc::MAP_POPULATE) == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if !is_wanted || role() != Role::Owner {
        return None;
    }
    // Another process may have set limits.
    if limits::is_limited() {
        return None;
    }
    let mapped = with_unless_forking(|memory| {
        // The role may have changed while this thread waited.
        if role() != Role::Owner {
            return None;
        }
        if memory.engine.is_none() && origin::may_have_a_pool() {
            begin(memory);
        }
        memory.engine.as_mut()?.map(wish.len)
    });
    let Tried::Done(Some(start)) = mapped else { return None };
    if wish.flags & libc::MAP_POPULATE != 0 {
        // Like the kernel: pages that cannot be populated are left to the first access. SAFETY: new memory; populating
        // preserves its contents.
        let _ = unsafe { rustix::mm::madvise(start as *mut c_void, wish.len, rustix::mm::Advice::LinuxPopulateWrite) };
    }
    Some(start)
}

/// Unmaps a range near the engine's memory. Returns true if that is done; otherwise the kernel should do it.
pub(crate) fn unmap(range: &Range<usize>) -> bool {
    let (plain, is_plain) = (|others: Range<usize>| unmap_plain(&others), Cell::new(false));
    let work = |engine: &mut ProgramMemory, range: Range<usize>| {
        // If the kernel may refuse, one call must cover the range, so that all or nothing is unmapped.
        is_plain.set(!engine.has(range.clone()) && engine.first_mapped(&range).as_ref() == Some(&range));
        if !is_plain.get() {
            engine.unmap(range, plain);
        }
    };
    role() == Role::Owner && work_through(range, work, unmap_later, plain) && !is_plain.get()
}

/// Clears a range for a mapping at an address of the program's choice. The old contents are lost. Returns false if
/// nothing may be mapped there.
pub(crate) fn make_way(range: &Range<usize>) -> bool {
    if role() != Role::Owner {
        return true;
    }
    with(|engine| engine.make_way(range.clone())).unwrap_or(true)
}

/// Ends `make_way` or `take_if_free`: notes whether the kernel has mapped something in the range, or has refused.
pub(crate) fn finish_way(range: &Range<usize>, is_mapped: bool) {
    if role() == Role::Owner {
        with(|engine| engine.finish_way(range.clone(), is_mapped));
    }
}

/// Like [`make_way`], if the range is unmapped as far as the program knows; returns whether it was. In a child the
/// kernel decides.
pub(crate) fn take_if_free(range: &Range<usize>) -> bool {
    if role() == Role::Child {
        cut(range);
    }
    let take = |engine: &mut ProgramMemory| engine.is_free(range.clone()) && engine.make_way(range.clone());
    role() == Role::Owner && with(take).unwrap_or(false)
}

/// Drops contents for the program. For the kernel's parts it calls `plain`, which returns false to stop.
pub(crate) fn empty(range: &Range<usize>, locks: Locks, plain: impl Fn(Range<usize>) -> bool) -> Emptied {
    match role() {
        Role::Owner => empty_own(range, plain),
        Role::Child => child::empty(range, locks, plain),
        Role::Without => Emptied::Plain,
    }
}

/// Works piece by piece, since the kernel may refuse its own pieces.
fn empty_own(range: &Range<usize>, plain: impl Fn(Range<usize>) -> bool) -> Emptied {
    let fill = |piece: Range<usize>| {
        // SAFETY: the program's own memory, which is writable and must read as zeros.
        unsafe { (piece.start as *mut u8).write_bytes(0, piece.len()) };
    };
    let handed_over = |piece: Range<usize>| _ = plain(piece);
    let mut rest = range.clone();
    loop {
        let Some(first) = ask(|engine| engine.first_piece(&rest)) else { return Emptied::Plain };
        let Some((piece, is_ours)) = first else { return Emptied::All };
        rest.start = piece.end;
        let is_done = if is_ours {
            work_through(&piece, |engine, piece| engine.empty(piece, handed_over), fill, handed_over)
        } else {
            plain(piece)
        };
        if !is_done {
            return Emptied::Refused;
        }
    }
}

/// Hands a range over, for a call that only the kernel can carry out. Returns false if the range is still the engine's.
pub(crate) fn hand_over(range: &Range<usize>) -> bool {
    hand_over_with(range, Zeros::Copied)
}

fn hand_over_with(range: &Range<usize>, zeros: Zeros) -> bool {
    if role() != Role::Owner {
        return true;
    }
    let handed = with(|engine| {
        engine.reopen();
        engine.hand_over(range.clone(), zeros);
        !engine.has(range.clone())
    });
    handed.unwrap_or(true)
}

/// Like [`hand_over`], for calls that need anonymous memory: in a child, inherited memory becomes anonymous.
pub(crate) fn make_own(range: &Range<usize>, zeros: Zeros) -> bool {
    let is_handed_over = hand_over_with(range, zeros);
    is_handed_over && (role() != Role::Child || make_inherited_own(range))
}

/// The next step for a mapping that changes its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resized {
    /// It is resized already.
    InPlace,
    /// It has to be copied.
    ByCopy,
    /// The kernel has to resize it.
    Plain,
}

/// Changes the length of a mapping near the engine's memory.
pub(crate) fn resize(old: &Range<usize>, len: usize) -> Resized {
    match role() {
        Role::Owner => with(|engine| {
            if !engine.has_all(old.clone()) {
                Resized::Plain
            } else if len < old.len() {
                engine.unmap(old.start + len..old.end, |others| unmap_plain(&others));
                Resized::InPlace
            } else if len == old.len() || engine.grow_in_place(old.clone(), old.start + len) {
                Resized::InPlace
            } else {
                Resized::ByCopy
            }
        })
        .unwrap_or(Resized::Plain),
        // If the inherited part cannot be determined, a copy is always correct.
        Role::Child if len > old.len() && mappings::is_own(old).unwrap_or((true, true)) == (true, true) => {
            Resized::ByCopy
        }
        Role::Child | Role::Without => Resized::Plain,
    }
}

/// Whether a range already has the requested protection: the engine's memory is readable and writable.
pub(crate) fn has_rights(range: &Range<usize>, rights: c_int) -> bool {
    rights == libc::PROT_READ | libc::PROT_WRITE && role() == Role::Owner && is_all_ours(range)
}

/// Whether all of a range is the engine's, so that advice without effect on contents can be ignored.
pub(crate) fn is_all_ours(range: &Range<usize>) -> bool {
    role() == Role::Owner && ask(|engine| engine.has_all(range.clone())).unwrap_or(false)
}

/// Hands everything over, and releases the engine's resources, so there is no pool any more. In a child, inherited
/// memory becomes its own. Returns false if memory is short; then some memory is unchanged.
pub(crate) fn give_up(zeros: Zeros) -> bool {
    let all = START.load(Ordering::Acquire)..END.load(Ordering::Acquire);
    match role() {
        _ if all.is_empty() => return true,
        Role::Owner => {}
        Role::Child => return make_inherited_own(&all),
        Role::Without => return true,
    }
    let left = signals::blocked(|| MEMORY.with(|memory| on_own_stack(memory, |memory| leave(memory, zeros))));
    left.unwrap_or(false)
}

/// Like [`give_up`], for a caller that has the engine's lock.
pub(super) fn leave(memory: &mut Memory, zeros: Zeros) -> bool {
    let Some(engine) = &mut memory.engine else { return true };
    unmap_what_was_left(engine);
    engine.reopen();
    engine.hand_over(engine.addresses(), zeros);
    if !engine.leave() {
        return false;
    }
    memory.close_descriptors();
    ROLE.store(Role::Without as u8, Ordering::Release);
    END.store(0, Ordering::Release);
    START.store(0, Ordering::Release);
    // A fork may be about to come, whose child needs no mark.
    memory.forks = None;
    // The memory that children hold is freed when the last of them ends.
    memory.forget();
    true
}

fn make_inherited_own(range: &Range<usize>) -> bool {
    cut(range);
    child::make_own(range)
}
