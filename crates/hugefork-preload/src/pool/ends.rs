//! Where mappings end within a block. The child has inherited the whole block, and what lies behind the end is none of
//! the program's: nothing is to be found there. It is unmapped when the program first asks for it. Few programs ever
//! do, and each such end takes a system call, and a mapping.

use std::ffi::c_void;
use std::ops::Range;

use rustix::mm::munmap;

use super::engine::MEMORY;
use crate::proc::mappings;

/// Unmaps what lies behind ends, as far as a range touches it. Where nobody can be asked whether that is inherited
/// still, it stays: something of the program's may have come in its place.
pub(super) fn cut(range: &Range<usize>) {
    MEMORY.with(|memory| {
        for behind in memory.inherited.iter().flat_map(|inherited| inherited.behind_ends(range)) {
            let _ = mappings::inherited(&behind, |piece, _| {
                // SAFETY: the engine's file is mapped for the program alone, which has nothing there. If the kernel has
                // no mapping for that, something is found there as before.
                let _ = unsafe { munmap(piece.start as *mut c_void, piece.len()) };
            });
        }
    });
}
