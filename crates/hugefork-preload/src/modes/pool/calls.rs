//! The program's calls about memory: `mmap`, `munmap`, `madvise` and so on, done to the engine's memory.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use hugefork_program::{ProgramMemory, Zeros};

use super::super::types::{Emptied, Mapping, Wish};
use super::super::{child, collapse};
use super::engine::{
    MEMORY, ask, begin, unmap_later, unmap_plain, with, with_descriptors, with_unless_forking, work_through,
};
use super::state::{END, IS_OVER, IS_SHORT, ROLE, Role, START, role};
use super::zeros;
use crate::descriptors::Kept;
use crate::fork::origin;
use crate::proc::{mappings, shortage};
use crate::sandbox::withdrawn;
use crate::stats::own as stats;
use crate::stats::own::Word;
use crate::threads::lock::Tried;
use crate::threads::signals;
use crate::{BASE_PAGE, HUGE_PAGE, config};

/// A program that has never mapped so much in all gets no pool: it copies few page tables, and a pool takes a
/// millisecond to set up.
const WORTH_A_POOL: usize = 8 << 20;

/// What the program has mapped that the pool could have given.
static WANTED: AtomicUsize = AtomicUsize::new(0);

/// Pieces that are smaller share no block: taking one of them away has the kernel take the block over.
const LEAST: usize = HUGE_PAGE / 2;

/// The first part of a range at which something is mapped everywhere, for all that the program knows. In a child, all
/// of it: the kernel knows, from now on.
pub(crate) fn first_mapped(range: &Range<usize>) -> Option<Range<usize>> {
    let found = match role() {
        Role::Owner => ask(|engine| engine.first_mapped(range)),
        Role::Child => {
            child::ends::cut(range);
            None
        }
        Role::Without => None,
    };
    found.unwrap_or_else(|| Some(range.clone()))
}

/// Gives the program memory of the pool.
pub(in crate::modes) fn map(wish: &Wish) -> Option<usize> {
    let least = if config::takes_small() { 1 } else { config::min_size().max(LEAST) };
    let is_wanted = wish.len >= least
        && wish.hint == 0
        && wish.rights == libc::PROT_READ | libc::PROT_WRITE
        && wish.flags & !(libc::MAP_NORESERVE | libc::MAP_POPULATE | libc::MAP_ANONYMOUS) == libc::MAP_PRIVATE;
    if !is_wanted || role() != Role::Owner || IS_OVER.load(Ordering::Relaxed) || IS_SHORT.load(Ordering::Relaxed) {
        return None;
    }
    if wish.flags & libc::MAP_ANONYMOUS == 0 && !zeros::are_mapped(wish.file, wish.offset, wish.len) {
        return None;
    }
    let wanted = WANTED.fetch_add(wish.len, Ordering::Relaxed).saturating_add(wish.len);
    if wanted < WORTH_A_POOL && !config::takes_small() {
        return None;
    }
    if shortage::is_limited() {
        // Somebody else may have set them.
        give_up();
        return None;
    }
    let mapped = with_unless_forking(|memory| {
        if IS_OVER.load(Ordering::Relaxed) {
            // Since this thread has waited.
            return None;
        }
        if memory.engine.is_none() && role() == Role::Owner && origin::may_have_threads() {
            begin(memory);
        }
        let engine = memory.engine.as_mut()?;
        if wish.len < HUGE_PAGE { map_small(engine, &mut memory.small_end, wish.len) } else { engine.map(wish.len) }
    });
    let Tried::Done(Some(start)) = mapped else { return None };
    if wish.flags & libc::MAP_POPULATE != 0 {
        // As the kernel: what fails is left to the first touch.
        // SAFETY: new memory, which keeps its contents.
        let _ = unsafe { rustix::mm::madvise(start as *mut c_void, wish.len, rustix::mm::Advice::LinuxPopulateWrite) };
    }
    collapse::note_big(wish.len);
    stats::add(Word::PoolMappings, 1);
    stats::publish();
    Some(start)
}

/// Gives memory behind the last that was small, if its block has room for that: two of 1 MiB, such as CPython maps for
/// its objects, are a huge page.
fn map_small(engine: &mut ProgramMemory, end: &mut usize, len: usize) -> Option<usize> {
    let last = end.saturating_sub(BASE_PAGE)..*end;
    let new_end = end.saturating_add(len.next_multiple_of(BASE_PAGE));
    let start =
        if engine.has_all(last.clone()) && engine.grow_in_place(last, new_end) { *end } else { engine.map(len)? };
    *end = start + len.next_multiple_of(BASE_PAGE);
    Some(start)
}

/// What the kernel has mapped.
pub(in crate::modes) fn mapped(mapping: &Mapping) {
    if !IS_SHORT.load(Ordering::Relaxed) {
        collapse::mapped(mapping);
    }
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
    leave_if_inherited(range, true);
    role() == Role::Owner && work_through(range, work, unmap_later, plain) && !is_plain.get()
}

/// The program maps something at an address of its own choice. What was there is gone. False if nothing may be mapped
/// there.
pub(crate) fn make_way(range: &Range<usize>) -> bool {
    leave_if_inherited(range, true);
    if role() != Role::Owner {
        return true;
    }
    with_descriptors(|engine| engine.make_way(range.clone())).unwrap_or(true)
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
        child::ends::cut(range);
    }
    let take = |engine: &mut ProgramMemory| engine.is_free(range.clone()) && engine.make_way(range.clone());
    role() == Role::Owner && with(take).unwrap_or(false)
}

/// Where something begins in a range of which the kernel drops nothing, since the program has locked it; as far as the
/// kernel is not asked to drop it itself.
pub(crate) fn first_locked(range: &Range<usize>) -> Option<usize> {
    if role() == Role::Child { child::first_locked(range) } else { None }
}

/// The program drops contents, and `plain` has the kernel do so: false if that does not go on.
pub(crate) fn empty(range: &Range<usize>, plain: impl Fn(Range<usize>) -> bool) -> Emptied {
    match role() {
        Role::Owner => empty_own(range, plain),
        Role::Child if withdrawn::is_withdrawn() => done_or_refused(child::noted::empty(range, plain)),
        Role::Child => {
            child::leave(range);
            done_or_refused(child::empty(range, plain))
        }
        Role::Without => Emptied::Plain,
    }
}

fn done_or_refused(is_done: bool) -> Emptied {
    if is_done { Emptied::All } else { Emptied::Refused }
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

/// In a child: what the program does something about is the kernel's alone. The helper lets go of it for good.
fn leave_if_inherited(range: &Range<usize>, is_gone: bool) {
    if role() != Role::Child {
        return;
    }
    child::noted::leave(range, is_gone);
    if !withdrawn::is_withdrawn() {
        child::leave(range);
    }
}

/// The program wants something of a range that only the kernel has. False if it is not the kernel's even now.
pub(crate) fn hand_over(range: &Range<usize>) -> bool {
    hand_over_with(range, Zeros::Copied)
}

fn hand_over_with(range: &Range<usize>, zeros: Zeros) -> bool {
    leave_if_inherited(range, false);
    if role() != Role::Owner {
        return true;
    }
    let handed = with_descriptors(|engine| {
        engine.hand_over(range.clone(), zeros);
        stats::set(Word::PoolHandedOver, engine.counts().handed_over);
        !engine.has(range.clone())
    });
    handed.unwrap_or(true)
}

/// The program is about to give flags to a range: `madvise`, `mlock` and so on.
pub(crate) fn keep_flags() {
    if role() == Role::Child {
        child::keep_flags();
    }
}

/// As [`hand_over`], of what only anonymous memory is fit for: in a child, what is inherited becomes that.
pub(crate) fn make_own(range: &Range<usize>, zeros: Zeros) -> bool {
    let is_handed_over = hand_over_with(range, zeros);
    is_handed_over && (role() != Role::Child || child::make_own(range))
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
    leave_if_inherited(old, false);
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
        Role::Child if len > old.len() && is_partly_inherited(old) => Resized::ByCopy,
        Role::Child | Role::Without => Resized::Plain,
    }
}

fn is_partly_inherited(range: &Range<usize>) -> bool {
    // The first asks nobody where nobody may be asked.
    mappings::is_partly_inherited(range).unwrap_or_else(|_| child::noted::may_be_copied(range))
}

/// Whether the rights that the program asks for are there already: memory of the engine can be read and written.
pub(crate) fn has_rights(range: &Range<usize>, rights: c_int) -> bool {
    rights == libc::PROT_READ | libc::PROT_WRITE && role() == Role::Owner && is_all_ours(range)
}

/// Whether advice that changes no contents may be left out, since all of it is the engine's.
pub(crate) fn is_all_ours(range: &Range<usize>) -> bool {
    role() == Role::Owner && ask(|engine| engine.has_all(range.clone())).unwrap_or(false)
}

/// Hands everything over, and gives no more. False if some of it is the engine's even now.
pub(in crate::modes) fn leave_it_all_to_the_kernel() -> bool {
    if role() == Role::Child {
        child::leave_all();
    }
    if role() != Role::Owner {
        return true;
    }
    if !IS_OVER.swap(true, Ordering::Relaxed) {
        stats::add(Word::PoolLeft, 1);
    }
    let (start, end) = (START.load(Ordering::Acquire), END.load(Ordering::Acquire));
    start >= end || hand_over(&(start..end))
}

/// Hands everything over, and gives back all that the engine has beside: there is no pool any more. What the kernel
/// cannot take over stays, with the rest.
pub(in crate::modes) fn give_up() {
    if role() != Role::Owner || END.load(Ordering::Acquire) == 0 || !leave_it_all_to_the_kernel() {
        return;
    }
    let mask = signals::block();
    MEMORY.with(|memory| {
        if !memory.engine.as_mut().is_some_and(ProgramMemory::leave) {
            return;
        }
        ROLE.store(Role::Without as u8, Ordering::Release);
        END.store(0, Ordering::Release);
        START.store(0, Ordering::Release);
        memory.descriptors.drain(..).for_each(Kept::close);
        // What children hold goes with the last of them.
        std::mem::forget(memory.engine.take());
        [Word::PoolBytes, Word::PoolKept].into_iter().for_each(|word| stats::set(word, 0));
    });
    mask.restore();
}
