//! Reads a snapshot without a mapping: piece by piece through the direct map.
//!
//! A block is held only while a piece of it goes to the reader's stack. What is read may have to go to a region, whose
//! fault may want that very block back, and would wait for its own thread.

use std::mem::MaybeUninit;

use super::core::SnapshotCore;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::terms::error::RegionError;
use crate::units::EntryIndex;

/// So many bytes are read at once.
const PIECE: usize = 16 << 10;

impl<S: Sys> SnapshotCore<S> {
    /// Copies bytes out, through the direct map. `offset + to.len()` is at most [`SnapshotCore::len`].
    pub(crate) fn read(&self, mut offset: usize, mut to: &mut [u8]) -> Result<(), RegionError> {
        let size = self.pool().block_size;
        let mut piece = [const { MaybeUninit::uninit() }; PIECE];
        while !to.is_empty() {
            let start = size.within(offset);
            let (now, rest) = to.split_at_mut(to.len().min(size.bytes() - start).min(PIECE));
            let piece = &mut piece[..now.len()];
            match self.read_piece(EntryIndex(size.count(offset)), start, piece)? {
                Some(read) => now.copy_from_slice(read),
                None => now.fill(0),
            }
            offset += now.len();
            to = rest;
        }
        Ok(())
    }

    /// Copies the bytes of a block from `start` on to `piece`; `None` if they are zeros.
    fn read_piece<'a>(
        &self,
        index: EntryIndex,
        start: usize,
        piece: &'a mut [MaybeUninit<u8>],
    ) -> Result<Option<&'a [u8]>, RegionError> {
        let _signals = SignalsBlocked::new();
        let Some(block) = self.hold(index)? else { return Ok(None) };
        Ok(Some(piece.write_copy_of_slice(&block.bytes()[start..start + piece.len()])))
    }
}
