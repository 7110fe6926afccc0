//! Lists where the bytes of a snapshot lie in the pool's memory, and copies them out.
//!
//! ```text
//!   snapshot   block 7, pages 3 and 90 in slots 5210 and 5211
//!   extents    pages 0 … 2 of block 7 │ slot 5210 │ pages 4 … 89 of block 7 │ slot 5211 │ pages 91 … of block 7
//! ```

use super::core::SnapshotCore;
use super::read::Destination;
use crate::mem::EngineVec;
use crate::ranges::runs;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::sys::linux::children::Piece;
use crate::sys::racing::ZERO_PAGE;
use crate::types::error::RegionError;
use crate::types::extents::{Extent, Extents};
use crate::units::{BASE_PAGE, EntryIndex, HUGE_PAGE};

impl<S: Sys> SnapshotCore<S> {
    /// The extents of its bytes, in pages of `page` bytes. The snapshot must be irrevocable and the caller its only
    /// user.
    pub(crate) fn extents(&self, page: usize) -> Extents {
        let (size, mut extents) = (self.pool().block_size, Extents::new(self.len(), page));
        for (index, entry) in self.entries.iter().enumerate() {
            let Some(block) = entry.block() else { continue };
            let (start, below) = (size.len_of(index), self.pool().offset(block));
            let of_block = |from: usize, to: usize| Extent::new(start + from, below + from, to - from);
            let set = self.pages_at(EntryIndex(index)).filter(|_| !seeded!("export-names-no-pages"));
            debug_assert!(set.is_none() || page == BASE_PAGE, "pages of hugetlb are not held singly");
            let mut listed = 0;
            for (at, slot) in set.iter().flat_map(|set| set.places()) {
                extents.push(of_block(listed, at));
                extents.push(Extent::new(start + at, slot, BASE_PAGE));
                listed = at + BASE_PAGE;
            }
            extents.push(of_block(listed, size.bytes()));
        }
        extents
    }

    /// As [`SnapshotCore::extents`], but lists the blocks as a whole, and apart from them the pages over them.
    pub(crate) fn list_places(&self, blocks: &mut EngineVec<Piece>, pages: &mut EngineVec<Piece>) {
        let add = |list: &mut EngineVec<Piece>, offset: usize, file_offset: usize, len: usize| match list.last_mut() {
            Some(last) if (last.offset + last.len, last.file_offset + last.len) == (offset, file_offset) => {
                last.len += len
            }
            Some(_) | None => list.push(Piece { offset, file_offset, len }),
        };
        let size = self.pool().block_size;
        for (index, entry) in self.entries.iter().enumerate() {
            let Some(block) = entry.block() else { continue };
            let start = size.len_of(index);
            add(blocks, start, self.pool().offset(block), size.bytes());
            let set = self.pages_at(EntryIndex(index));
            set.iter().flat_map(|set| set.places()).for_each(|(at, slot)| add(pages, start + at, slot, BASE_PAGE));
        }
    }

    /// Hands each run of pages that are not zeros to `write`, with its offset. Returns the stretches that have such
    /// pages; a stretch is 2 MiB, or a block if that is smaller. Calls `progress` after each stretch with the number of
    /// bytes done, zeros included.
    pub(crate) fn copy_to(
        &self,
        mut write: impl FnMut(&[u8], usize) -> Result<(), RegionError>,
        mut progress: impl FnMut(usize),
    ) -> Result<Extents, RegionError> {
        let mut extents = Extents::new(self.len(), BASE_PAGE);
        let len = self.pool().block_size.bytes().min(HUGE_PAGE);
        for start in (0..self.len()).step_by(len) {
            // The list grows only after the block is released: a heap inside a region may need that very block to grow
            // it.
            if self.copy_some(start, len, &mut write)? {
                extents.push(Extent::new(start, start, len));
            }
            progress(start + len);
        }
        Ok(extents)
    }

    /// As [`SnapshotCore::copy_to`], for `len` bytes of one block. True if any of them are not zeros.
    fn copy_some(
        &self,
        start: usize,
        len: usize,
        write: &mut impl FnMut(&[u8], usize) -> Result<(), RegionError>,
    ) -> Result<bool, RegionError> {
        let (size, index) = (self.pool().block_size, EntryIndex(self.pool().block_size.count(start)));
        if self.pages_at(index).is_some() {
            let mut bytes = vec![0; len];
            self.read(start, &mut bytes, Destination::Region)?;
            return write_some(&bytes, start, write);
        }
        let _signals = SignalsBlocked::new();
        match self.hold(index)? {
            Some(block) => write_some(&block.below()[size.within(start)..size.within(start) + len], start, write),
            None => Ok(false),
        }
    }
}

/// Hands each run of pages that are not zeros to `write`. `bytes` begin at `start` of the snapshot. True if there was a
/// run.
fn write_some(
    bytes: &[u8],
    start: usize,
    write: &mut impl FnMut(&[u8], usize) -> Result<(), RegionError>,
) -> Result<bool, RegionError> {
    let (pages, _) = bytes.as_chunks::<BASE_PAGE>();
    let mut any = false;
    for run in runs(0..pages.len(), |page| pages[page] != ZERO_PAGE) {
        write(pages[run.clone()].as_flattened(), start + run.start * BASE_PAGE)?;
        any = true;
    }
    Ok(any)
}
