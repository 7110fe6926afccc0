//! What the child drops of what it has inherited, once nothing may be asked of the kernel any more (`sandbox`).
//!
//! Before, each inherited block is marked: as *whole*, if all of it is inherited, can be written, and nothing was done
//! about it; or else as *odd*. From then on a whole block becomes anonymous memory when all of it is dropped, and is
//! written with zeros where a part is. That takes what `malloc` needs anyhow. What is done about a block in other ways
//! makes it odd, of which nothing can be dropped: the program is told so, and what is there stays.

use std::ffi::c_void;
use std::ops::Range;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use super::marks;
use crate::{HUGE_PAGE, mappings};

/// Marks what is inherited.
pub(in crate::modes) fn seal() {
    let addresses = marks::addresses();
    // Whoever has no descriptor left cannot say.
    let mut known = addresses.start;
    let told = mappings::inherited(&addresses, |piece, rights| {
        let is_writable = rights == ProtFlags::READ | ProtFlags::WRITE;
        for block in blocks(&piece) {
            let is_whole = is_writable && piece.start <= block && block + HUGE_PAGE <= piece.end;
            if is_whole { marks::note_whole(block) } else { marks::note_odd(block) }
        }
        known = piece.end;
    });
    if told.is_err() {
        blocks(&(known..addresses.end)).for_each(marks::note_odd);
    }
}

/// Whether something of a range may be inherited.
pub(in crate::modes) fn has(range: &Range<usize>) -> bool {
    blocks(range).any(|block| marks::is_whole(block) || marks::is_odd(block))
}

/// The program does something else about a range, or maps something over it.
pub(in crate::modes) fn leave(range: &Range<usize>, is_gone: bool) {
    for block in blocks(range) {
        if is_gone && range.start <= block && block + HUGE_PAGE <= range.end {
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
        if part.len() == HUGE_PAGE && replace(&part) {
            marks::note_gone(block);
        } else {
            // SAFETY: the program's own memory, which it can write, and drops.
            unsafe { (part.start as *mut u8).write_bytes(0, part.len()) };
        }
        true
    })
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
