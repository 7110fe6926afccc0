//! Where mappings end within a block. The child has inherited the whole block, and what lies behind the end is none of
//! the program's: nothing is to be found there. It is unmapped when the program first asks for it. Few programs ever
//! do, and each such end takes a system call, and a mapping.

use std::ffi::c_void;
use std::ops::Range;

use rustix::mm::munmap;

use super::marks;
use crate::HUGE_PAGE;
use crate::proc::mappings;
use crate::sandbox::withdrawn;

/// In the child that has inherited them.
pub(in crate::modes) fn note(ends: impl Iterator<Item = usize>) {
    ends.for_each(marks::note_end);
}

/// Unmaps what lies behind ends, as far as a range touches it. Where nobody can be asked whether that is inherited
/// still, it stays: something of the program's may have come in its place.
pub(in crate::modes) fn cut(range: &Range<usize>) {
    if withdrawn::is_withdrawn() {
        // It was done before.
        return;
    }
    let addresses = marks::addresses();
    let range = range.start.max(addresses.start)..range.end.min(addresses.end);
    for block in (range.start / HUGE_PAGE * HUGE_PAGE..range.end).step_by(HUGE_PAGE) {
        let behind = marks::behind(block);
        if behind.start.max(range.start) >= behind.end.min(range.end) {
            continue;
        }
        marks::leave(&behind);
        let _ = mappings::inherited(&behind, |piece, _| {
            // SAFETY: the engine's file is mapped for the program alone, which has nothing there. If the kernel has no
            // mapping for that, something is found there as before.
            let _ = unsafe { munmap(piece.start as *mut c_void, piece.len()) };
        });
    }
}
