//! Reads a snapshot without mapping it: copies piece by piece from the direct map, and holds the block meanwhile.
//!
//! The destination may lie in a region, and a fault there may want that very block back: it would wait for its own
//! thread. So bytes for a region are first copied to the stack, and the block is released before they go to the region.

use super::core::SnapshotCore;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::sys::racing::copy_out;
use crate::types::error::RegionError;
use crate::units::EntryIndex;

/// The kind of memory that a read copies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A region's memory, or memory that may be one's.
    Region,
    /// Memory whose page faults the kernel resolves.
    Elsewhere,
}

/// Bytes copied while the block is held. A thread that wants the block back waits that long.
const HELD_AT_ONCE_BYTES: usize = 256 << 10;

const OVER_STACK_AT_ONCE_BYTES: usize = 8 << 10;

impl<S: Sys> SnapshotCore<S> {
    /// Copies bytes out, through the direct map. `offset + to.len()` is at most [`SnapshotCore::len`].
    pub(crate) fn read(&self, mut offset: usize, mut to: &mut [u8], kind: Destination) -> Result<(), RegionError> {
        let most = if kind == Destination::Region { OVER_STACK_AT_ONCE_BYTES } else { HELD_AT_ONCE_BYTES };
        let size = self.pool().block_size;
        while !to.is_empty() {
            let (piece, rest) = to.split_at_mut(most.min(size.bytes() - size.within(offset)).min(to.len()));
            match kind {
                Destination::Region => self.read_over_stack(offset, piece)?,
                Destination::Elsewhere => self.read_piece(offset, piece)?,
            }
            (offset, to) = (offset + piece.len(), rest);
        }
        Ok(())
    }

    #[inline(never)] // Keeps the buffer out of the caller's stack frame.
    fn read_over_stack(&self, offset: usize, to: &mut [u8]) -> Result<(), RegionError> {
        let mut bytes = [0; OVER_STACK_AT_ONCE_BYTES];
        self.read_piece(offset, &mut bytes[..to.len()])?;
        to.copy_from_slice(&bytes[..to.len()]);
        Ok(())
    }

    /// Copies bytes that lie in one block.
    fn read_piece(&self, offset: usize, to: &mut [u8]) -> Result<(), RegionError> {
        let size = self.pool().block_size;
        let _signals = SignalsBlocked::new();
        match self.hold(EntryIndex(size.count(offset)))? {
            Some(block) => {
                let from = &block.below()[size.within(offset)..size.within(offset) + to.len()];
                // `copy_out` goes word by word: a third faster than `memcpy`, which uses `rep movsb` for pieces of
                // 64 KiB.
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
