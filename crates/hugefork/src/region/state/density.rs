//! Which blocks are written to so densely that a copy of the block costs less than copies of its pages.
//!
//! What a block was like after the last snapshot says what it will be like after the next. A block is found to be dense
//! when it is written back, or promoted (maintain.rs). From then on the first write to it copies it as a whole. Nobody
//! sees how many pages are written then, so now and then it is tried anew.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::mem::{self, EngineBox};
use crate::units::{BASE_PAGE, BlockSize, EntryIndex};

/// A dense block is tried anew after so many snapshots.
const TRIED_AFTER_SNAPSHOTS: u32 = 32;

/// Once a block was dense.
const DENSE: u8 = 1;
/// The pages of a block were put back by a reset, and there were few.
const BY_PAGE: u8 = 2;

/// What is known of the blocks of one region.
#[derive(Debug)]
pub(crate) struct Density {
    /// [`DENSE`], [`BY_PAGE`] or 0 for each block.
    dense: EngineBox<[AtomicU8]>,
    snapshots: AtomicU32,
}

impl Density {
    /// `count` blocks, of which nothing is known. Nothing ever is of blocks of one page.
    pub(super) fn new(count: usize, size: BlockSize) -> Density {
        let count = if size.bytes() > BASE_PAGE { count } else { 0 };
        Density { dense: mem::zeroed(count), snapshots: AtomicU32::new(0) }
    }

    /// From so many pages on, a copy of the block costs less. A page costs 2.3 us at the write and 0.7 us when it is
    /// written back; a block costs 12 us and 110 us for 2 MiB (docs/design.md).
    pub(in crate::region) fn dense_pages(size: BlockSize) -> usize {
        4 + size.bytes() / (58 << 10)
    }

    /// From so many pages on, a block is promoted while it is written to. Fewer than [`Density::dense_pages`], because
    /// the copy is made beside the writer, and a block that has got so many pages soon will mostly get more.
    pub(crate) fn promoted_pages(size: BlockSize) -> usize {
        Density::dense_pages(size) * 3 / 5
    }

    /// With fewer pages, a block is never promoted.
    pub(in crate::region) fn never_promoted_pages(size: BlockSize) -> usize {
        Density::promoted_pages(size) / 4
    }

    /// If most blocks of a region have so many pages, all are written by block from then on. 5 000 random writes to
    /// 1 GiB make 10, and some blocks have more: the median of a sample of 16 is 11 or 12 now and then.
    pub(crate) fn dense_everywhere_pages(size: BlockSize) -> usize {
        (Density::dense_pages(size) * 2 / 5).max(2)
    }

    /// From so many pages on, the writer is to copy the block itself: nobody has come to promote it.
    pub(crate) fn left_to_writer_pages(size: BlockSize) -> usize {
        Density::dense_pages(size) * 5 / 2
    }

    /// Whether the block was dense.
    pub(in crate::region) fn is_dense(&self, index: EntryIndex) -> bool {
        self.dense.get(index.0).is_some_and(|dense| dense.load(Ordering::Relaxed) == DENSE)
    }

    /// Notes that a reset has put back the few pages of a block that were written: they will be written again, which
    /// costs nothing while they are private.
    pub(in crate::region) fn keep_by_page(&self, index: EntryIndex) {
        if let Some(dense) = self.dense.get(index.0) {
            dense.store(BY_PAGE, Ordering::Relaxed);
        }
    }

    /// Whether a block keeps its private pages, because resets put them back.
    pub(in crate::region) fn is_by_page(&self, index: EntryIndex) -> bool {
        self.dense.get(index.0).is_some_and(|dense| dense.load(Ordering::Relaxed) == BY_PAGE)
    }

    /// Notes that a block was dense, or was not.
    pub(in crate::region) fn note(&self, index: EntryIndex, is_dense: bool) {
        if let Some(dense) = self.dense.get(index.0) {
            dense.store(if is_dense { DENSE } else { 0 }, Ordering::Relaxed);
        }
    }

    /// A snapshot was taken: forgets some blocks, each after [`TRIED_AFTER_SNAPSHOTS`] snapshots.
    pub(in crate::region) fn forget_some(&self) {
        let first = self.snapshots.fetch_add(1, Ordering::Relaxed) % TRIED_AFTER_SNAPSHOTS;
        self.dense.iter().skip(first as usize).step_by(TRIED_AFTER_SNAPSHOTS as usize).for_each(|dense| {
            dense.store(0, Ordering::Relaxed);
        });
    }

    /// Forgets these blocks.
    pub(in crate::region) fn forget(&self, entries: Range<usize>) {
        let of = self.dense.get(entries).unwrap_or_default();
        of.iter().for_each(|dense| dense.store(0, Ordering::Relaxed));
    }

    /// Bytes that this takes.
    pub(crate) fn bytes(&self) -> usize {
        self.dense.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dense_block_is_remembered_and_tried_anew() {
        let density = Density::new(40, BlockSize::MIB_2);
        let all = || (0..40).filter(|&index| density.is_dense(EntryIndex(index))).count();
        assert_eq!(all(), 0);
        (0..40).for_each(|index| density.note(EntryIndex(index), true));
        density.note(EntryIndex(7), false);
        assert_eq!((all(), density.is_dense(EntryIndex(7))), (39, false));
        density.forget_some();
        assert!((36..39).contains(&all()), "some are tried anew");
        (1..TRIED_AFTER_SNAPSHOTS).for_each(|_| density.forget_some());
        assert_eq!(all(), 0, "each had its turn");
    }

    #[test]
    fn larger_blocks_take_more_pages() {
        let enough = [BlockSize::KIB_4, BlockSize::MIB_2, BlockSize::new(1 << 30).unwrap()].map(Density::dense_pages);
        assert!((4..6).contains(&enough[0]) && (32..64).contains(&enough[1]) && enough[2] > 16_000, "{enough:?}");
    }
}
