//! Mappings that end within a block. The child inherits the whole block, but the bytes after the
//! mapping's end do not belong to the program and should be unmapped. The library unmaps them at
//! the first call that concerns them, because few programs make one, and each such end costs a
//! system call and a mapping.

use std::ffi::c_void;
use std::ops::Range;

use rustix::mm::munmap;

use super::engine::MEMORY;
use crate::proc::mappings;

/// Unmaps the unused ends of inherited blocks within a range. If the kernel cannot confirm that an end is still the
/// inherited mapping, it is not unmapped: the program may have mapped something else there.
pub(super) fn cut(range: &Range<usize>) {
    MEMORY.with(|memory| {
        for behind in memory.inherited.iter().flat_map(|inherited| inherited.behind_ends(range)) {
            let _ = mappings::inherited(&behind, |piece, _| {
                // SAFETY: a private mapping of the engine's file in a part that the program does not use. If the kernel
                // refuses for lack of mappings, the bytes remain accessible.
                let _ = unsafe { munmap(piece.start as *mut c_void, piece.len()) };
            });
        }
    });
}
