//! Reads a snapshot without a mapping: piece by piece through the direct map. The block is held meanwhile.
//!
//! What is read may have to go to a region, and the fault there may want that very block back: it would wait for its
//! own thread. So on its way there it is put down on the stack.

use super::core::SnapshotCore;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::sys::racing::copy_out;
use crate::types::error::RegionError;
use crate::units::EntryIndex;

/// Where what is read goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Memory of a region, or what may be that.
    Region,
    /// Memory whose page faults the kernel resolves.
    Elsewhere,
}

/// Whoever wants the block back waits while so much is copied.
const HELD_AT_ONCE_BYTES: usize = 256 << 10;

const OVER_STACK_AT_ONCE_BYTES: usize = 8 << 10;

impl<S: Sys> SnapshotCore<S> {
    /// Copies bytes out, through the direct map. `offset + to.len()` is at most [`SnapshotCore::len`].
    pub(crate) fn read(&self, mut offset: usize, to: &mut [u8], kind: Destination) -> Result<(), RegionError> {
        let most = if kind == Destination::Region { OVER_STACK_AT_ONCE_BYTES } else { HELD_AT_ONCE_BYTES };
        for piece in to.chunks_mut(most.min(self.pool().block_size.bytes())) {
            // It may lie in two blocks.
            let (first, second) = piece.split_at_mut(piece.len().min(self.left_in_block(offset)));
            for piece in [first, second].into_iter().filter(|piece| !piece.is_empty()) {
                match kind {
                    Destination::Region => self.read_over_stack(offset, piece)?,
                    Destination::Elsewhere => self.read_piece(offset, piece)?,
                }
                offset += piece.len();
            }
        }
        Ok(())
    }

    fn left_in_block(&self, offset: usize) -> usize {
        self.pool().block_size.bytes() - self.pool().block_size.within(offset)
    }

    #[inline(never)] // Others need no room for that.
    fn read_over_stack(&self, offset: usize, to: &mut [u8]) -> Result<(), RegionError> {
        let mut bytes = [0; OVER_STACK_AT_ONCE_BYTES];
        self.read_piece(offset, &mut bytes[..to.len()])?;
        to.copy_from_slice(&bytes[..to.len()]);
        Ok(())
    }

    /// Copies bytes of one block.
    fn read_piece(&self, offset: usize, to: &mut [u8]) -> Result<(), RegionError> {
        let size = self.pool().block_size;
        let _signals = SignalsBlocked::new();
        match self.hold(EntryIndex(size.count(offset)))? {
            Some(block) => {
                let from = &block.below()[size.within(offset)..size.within(offset) + to.len()];
                // Word by word: a third faster than `memcpy`, in pieces of 64 KiB, where that is `rep movsb`.
                // SAFETY: `from` is a slice of `to.len()` bytes, which nobody writes to while the block is held.
                unsafe { copy_out(from.as_ptr(), to) };
                if let Some(pages) = block.pages() {
                    pages.copy_over(size.within(offset), to);
                }
            }
            None => to.fill(0),
        }
        Ok(())
    }
}
