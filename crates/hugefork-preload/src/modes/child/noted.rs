//! What the child drops of what it has inherited, where nobody can be asked what that is: no call may be made any more
//! (`sandbox`), or there is no `/proc`, or no descriptor free.
//!
//! Each inherited block is marked: as *whole*, if all that the program has of it is inherited, can be written, and
//! nothing was done about it but that it was dropped; or else as *odd*. All are whole after the fork, and what is done
//! about a block in other ways makes it odd. A whole block becomes anonymous memory when all of it is dropped, and is
//! written with zeros where a part is. That takes what `malloc` needs anyhow. Of an odd one nothing can be dropped: the
//! program is told so, and what is there stays.

use std::ffi::c_void;
use std::ops::Range;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use super::empty::is_locked;
use super::ends;
use super::marks;
use crate::HUGE_PAGE;
use crate::proc::mappings;

/// Marks what a child has inherited: all of these ranges.
pub(in crate::modes) fn begin(inherited: impl Iterator<Item = Range<usize>>) {
    inherited.for_each(|range| blocks(&range).for_each(marks::note_whole));
}

/// Marks anew what is inherited, as the kernel says, before nobody may be asked any more.
pub(in crate::modes) fn withdraw() {
    let addresses = marks::addresses();
    ends::cut(&addresses);
    // Whoever has no descriptor left cannot say.
    let mut known = None;
    let told = mappings::inherited(&addresses, |piece, rights| {
        if known.is_none() {
            blocks(&addresses).for_each(marks::note_gone);
        }
        let may_be_dropped = rights == ProtFlags::READ | ProtFlags::WRITE && !is_locked(&piece);
        for block in blocks(&piece) {
            let is_whole = may_be_dropped && has_all(&piece, block);
            if is_whole { marks::note_whole(block) } else { marks::note_odd(block) }
        }
        known = Some(piece.end);
    });
    match (told, known) {
        (Ok(()), None) => blocks(&addresses).for_each(marks::note_gone),
        (Err(_), Some(known)) => blocks(&(known..addresses.end)).for_each(marks::note_odd),
        // All is marked; or what was noted so far holds.
        (Ok(()), Some(_)) | (Err(_), None) => {}
    }
}

/// Whether something of a range may be inherited.
pub(in crate::modes) fn has(range: &Range<usize>) -> bool {
    blocks(range).any(|block| marks::is_whole(block) || marks::is_odd(block))
}

/// The same, and nothing of it lies behind an end, where a copy would find nothing.
pub(in crate::modes) fn may_be_copied(range: &Range<usize>) -> bool {
    let is_behind = |block: usize| has(&(block..block + 1)) && marks::behind(block).start < range.end;
    has(range) && !blocks(range).filter(|&block| marks::behind(block).start < block + HUGE_PAGE).any(is_behind)
}

/// The program does something else about a range, or maps something over it.
pub(in crate::modes) fn leave(range: &Range<usize>, is_gone: bool) {
    // Behind its end, the program has nothing of a block.
    for block in blocks(range).filter(|&block| range.start < marks::behind(block).start) {
        if is_gone && has_all(range, block) {
            marks::note_gone(block);
        } else if marks::is_whole(block) {
            marks::note_odd(block);
        }
    }
}

/// As [`super::empty`].
pub(in crate::modes) fn empty(range: &Range<usize>, plain: impl Fn(Range<usize>) -> bool) -> bool {
    blocks(range).all(|block| {
        let part = range.start.max(block)..range.end.min(block + HUGE_PAGE);
        if marks::is_odd(block) {
            return false;
        }
        if !marks::is_whole(block) {
            return plain(part);
        }
        // Behind its end, the block is none of the program's.
        let end = marks::behind(block).start;
        let (own, behind) = (part.start..part.end.min(end), part.start.max(end)..part.end);
        if own == (block..end) && replace(&own) {
            marks::note_gone(block);
        } else if !own.is_empty() {
            // SAFETY: the program's own memory, which it can write, and drops.
            unsafe { (own.start as *mut u8).write_bytes(0, own.len()) };
        }
        behind.is_empty() || plain(behind)
    })
}

/// Whether all that the program has of a block lies in a range.
fn has_all(range: &Range<usize>, block: usize) -> bool {
    range.start <= block && marks::behind(block).start <= range.end
}

fn blocks(range: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
    (range.start / HUGE_PAGE * HUGE_PAGE..range.end).step_by(HUGE_PAGE)
}

/// Shows anonymous memory in place of a block. False if the kernel refuses.
fn replace(block: &Range<usize>) -> bool {
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
    // SAFETY: the program's own memory, which it drops.
    unsafe { mmap_anonymous(block.start as *mut c_void, block.len(), rights, flags) }.is_ok()
}
