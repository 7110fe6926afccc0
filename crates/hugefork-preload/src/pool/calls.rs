//! The program's calls about memory: `mmap`, `munmap`, `madvise` and so on, done to the engine's memory.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::Ordering;

use hugefork_program::{ProgramMemory, Zeros};

use super::ends::cut;
use super::engine::{
    MEMORY, Memory, ask, begin, close_descriptors, on_own_stack, unmap_later, unmap_plain, unmap_what_was_left, with,
    with_unless_forking, work_through,
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

/// Mappings from here on lie in the pool: those that may have a huge page. They take base pages until all of a block is
/// there, so many small ones take what they would without the pool.
const BIG: usize = HUGE_PAGE;

/// A mapping that the program asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) hint: usize,
    pub(crate) len: usize,
    pub(crate) rights: c_int,
    pub(crate) flags: c_int,
}

/// The first part of a range at which something is mapped everywhere, for all that the program knows. In a child, all
/// of it: the kernel knows, from now on.
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

/// The program wants memory. Its address, if it is not the kernel who is to give it.
pub(crate) fn map(wish: &Wish) -> Option<usize> {
    let least = if switch::takes_small() { 1 } else { BIG };
    let is_wanted = wish.len >= least
        && wish.hint == 0
        && wish.rights == libc::PROT_READ | libc::PROT_WRITE
        && wish.flags & !(libc::MAP_NORESERVE | libc::MAP_POPULATE) == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if !is_wanted || role() != Role::Owner {
        return None;
    }
    // Somebody else may have set limits.
    if limits::is_limited() {
        return None;
    }
    let mapped = with_unless_forking(|memory| {
        // It may have changed since this thread has waited.
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
        // As the kernel: what fails is left to the first touch.
        // SAFETY: new memory, which keeps its contents.
        let _ = unsafe { rustix::mm::madvise(start as *mut c_void, wish.len, rustix::mm::Advice::LinuxPopulateWrite) };
    }
    Some(start)
}

/// The program unmaps something near the engine's memory. True if all is done; else the kernel is to do it.
pub(crate) fn unmap(range: &Range<usize>) -> bool {
    let (plain, is_plain) = (|others: Range<usize>| unmap_plain(&others), Cell::new(false));
    let work = |engine: &mut ProgramMemory, range: Range<usize>| {
        // In one call, so that it is all or nothing where the kernel refuses.
        is_plain.set(!engine.has(range.clone()) && engine.first_mapped(&range).as_ref() == Some(&range));
        if !is_plain.get() {
            engine.unmap(range, plain);
        }
    };
    role() == Role::Owner && work_through(range, work, unmap_later, plain) && !is_plain.get()
}

/// The program maps something at an address of its own choice. What was there is gone. False if nothing may be mapped
/// there.
pub(crate) fn make_way(range: &Range<usize>) -> bool {
    if role() != Role::Owner {
        return true;
    }
    with(|engine| engine.make_way(range.clone())).unwrap_or(true)
}

/// The kernel has mapped something where way was made, or a range was taken, or has refused.
pub(crate) fn settle(range: &Range<usize>, is_mapped: bool) {
    if role() == Role::Owner {
        with(|engine| engine.settle(range.clone(), is_mapped));
    }
}

/// Leaves a range to the kernel, as [`make_way`], if nothing is mapped there, for all that the program knows. Whether
/// that is so. In a child, the kernel knows.
pub(crate) fn take_if_free(range: &Range<usize>) -> bool {
    if role() == Role::Child {
        cut(range);
    }
    let take = |engine: &mut ProgramMemory| engine.is_free(range.clone()) && engine.make_way(range.clone());
    role() == Role::Owner && with(take).unwrap_or(false)
}

/// The program drops contents, and `plain` has the kernel do so: false if that does not go on.
pub(crate) fn empty(range: &Range<usize>, locks: Locks, plain: impl Fn(Range<usize>) -> bool) -> Emptied {
    match role() {
        Role::Owner => empty_own(range, plain),
        Role::Child => child::empty(range, locks, plain),
        Role::Without => Emptied::Plain,
    }
}

/// Piece by piece, since the kernel may refuse its own.
fn empty_own(range: &Range<usize>, plain: impl Fn(Range<usize>) -> bool) -> Emptied {
    let fill = |piece: Range<usize>| {
        // SAFETY: the program's own memory, which is writable and to read as zeros.
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

/// The program wants something of a range that only the kernel has. False if it is not the kernel's even now.
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

/// As [`hand_over`], of what only anonymous memory is fit for: in a child, what is inherited becomes that.
pub(crate) fn make_own(range: &Range<usize>, zeros: Zeros) -> bool {
    let is_handed_over = hand_over_with(range, zeros);
    is_handed_over && (role() != Role::Child || make_inherited_own(range))
}

/// What is to be done about a mapping that changes its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resized {
    /// It has.
    InPlace,
    /// It is to be copied.
    ByCopy,
    /// The kernel does it.
    Plain,
}

/// The program changes the length of a mapping near the engine's memory.
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
        // Where nobody can say what is inherited, a copy is right in any case.
        Role::Child if len > old.len() && mappings::is_own(old).unwrap_or((true, true)) == (true, true) => {
            Resized::ByCopy
        }
        Role::Child | Role::Without => Resized::Plain,
    }
}

/// Whether the rights that the program asks for are there already: memory of the engine can be read and written.
pub(crate) fn has_rights(range: &Range<usize>, rights: c_int) -> bool {
    rights == libc::PROT_READ | libc::PROT_WRITE && role() == Role::Owner && is_all_ours(range)
}

/// Whether advice that changes no contents may be left out, since all of it is the engine's.
pub(crate) fn is_all_ours(range: &Range<usize>) -> bool {
    role() == Role::Owner && ask(|engine| engine.has_all(range.clone())).unwrap_or(false)
}

/// Hands everything over, and gives back all that the engine has beside: there is no pool any more. In a child, what is
/// inherited becomes its own. False if there is no memory for that, and some of it is as before.
pub(crate) fn give_up(zeros: Zeros) -> bool {
    let all = START.load(Ordering::Acquire)..END.load(Ordering::Acquire);
    match role() {
        _ if all.is_empty() => return true,
        Role::Owner => {}
        Role::Child => return make_inherited_own(&all),
        Role::Without => return true,
    }
    let mask = signals::block();
    let left = MEMORY.with(|memory| on_own_stack(memory, |memory| leave(memory, zeros)));
    mask.restore();
    left.unwrap_or(false)
}

/// The same in possession of the engine.
pub(super) fn leave(memory: &mut Memory, zeros: Zeros) -> bool {
    let Some(engine) = &mut memory.engine else { return true };
    unmap_what_was_left(engine);
    engine.reopen();
    engine.hand_over(engine.addresses(), zeros);
    if !engine.leave() {
        return false;
    }
    close_descriptors(engine);
    ROLE.store(Role::Without as u8, Ordering::Release);
    END.store(0, Ordering::Release);
    START.store(0, Ordering::Release);
    // What children hold goes with the last of them.
    std::mem::forget(memory.engine.take());
    true
}

fn make_inherited_own(range: &Range<usize>) -> bool {
    cut(range);
    child::make_own(range)
}
