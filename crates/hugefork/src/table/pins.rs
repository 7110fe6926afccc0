//! Counts the pins of each block of a region, and of each of its pages.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::locked::Locked;
use crate::mem::{self, EngineBox};
use crate::ranges::runs;
use crate::units::EntryIndex;

/// Whether a block is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinned {
    Yes,
    No,
}

/// The pins of each block of a region and of each page: one byte for each count, allocated at the first pin.
///
/// A block stays where it is while one of its pages is pinned. Only the pinned pages stay writable all the time; the
/// others can be write-protected while the block is copied.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    counts: OnceLock<Counts>,
    /// Whether the kernel once refused to make pages beside pinned ones writable again.
    lacks_right: AtomicBool,
}

#[derive(Debug)]
struct Counts {
    blocks: EngineBox<[AtomicU8]>,
    /// The counts of `pages_of_a_block` pages for each block, one block after the other.
    pages: EngineBox<[AtomicU8]>,
    pages_of_a_block: usize,
}

impl Counts {
    fn pages_of(&self, index: EntryIndex) -> &[AtomicU8] {
        let first = index.0 * self.pages_of_a_block;
        &self.pages[first..first + self.pages_of_a_block]
    }
}

impl Pins {
    /// Makes room for the counts of `entries` entries. `pages_of_a_block` is the number of pages that can be
    /// write-protected one by one in each block, or 0 if only whole blocks can. Allocates, so the caller may hold no
    /// lock.
    pub(crate) fn prepare(&self, entries: usize, pages_of_a_block: usize) {
        self.counts.get_or_init(|| {
            let pages = mem::zeroed(entries * pages_of_a_block);
            Counts { blocks: mem::zeroed(entries), pages, pages_of_a_block }
        });
    }

    /// Whether any block was ever pinned.
    pub(crate) fn are_used(&self) -> bool {
        self.counts.get().is_some()
    }

    /// Whether the block at `index` is pinned.
    #[inline]
    pub(crate) fn has(&self, index: EntryIndex) -> bool {
        self.counts.get().is_some_and(|counts| counts.blocks[index.0].load(Ordering::Relaxed) > 0)
    }

    /// As [`Pins::has`], as a fact for transition.rs.
    #[inline]
    pub(crate) fn of(&self, index: EntryIndex) -> Pinned {
        if self.has(index) { Pinned::Yes } else { Pinned::No }
    }

    /// The runs of `entries` without a pin, in order. The caller holds a lock that keeps pins as they are.
    pub(crate) fn runs_between(&self, entries: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let unused = Some(entries.clone()).filter(|entries| !self.are_used() && !entries.is_empty());
        let used = if self.are_used() { entries } else { 0..0 };
        unused.into_iter().chain(runs(used, |index| !self.has(EntryIndex(index))))
    }

    /// The pinned entries of `entries`, in order. The caller holds a lock that keeps pins as they are.
    pub(crate) fn pinned(&self, entries: Range<usize>) -> impl Iterator<Item = EntryIndex> + '_ {
        let entries = if self.are_used() { entries } else { 0..0 };
        entries.map(EntryIndex).filter(|index| self.has(*index))
    }

    /// The runs of pages without a pin in a pinned block; none if pages cannot be write-protected one by one. The
    /// caller holds a lock that keeps pins as they are.
    pub(crate) fn pages_beside(&self, index: EntryIndex) -> impl Iterator<Item = Range<usize>> + '_ {
        let pages = self.counts.get().map_or(&[][..], |counts| counts.pages_of(index));
        runs(0..pages.len(), |page| pages[page].load(Ordering::Relaxed) == 0)
    }

    /// Bytes that the counts take.
    pub(crate) fn bytes(&self) -> usize {
        self.counts.get().map_or(0, |counts| counts.blocks.len() + counts.pages.len())
    }

    /// Pins these pages of a block. False if the block's count is at its maximum.
    pub(crate) fn add(&self, _locked: Locked<'_>, index: EntryIndex, pages: Range<usize>) -> bool {
        let Some(counts) = self.counts.get() else { return false };
        let block = &counts.blocks[index.0];
        let Some(more) = block.load(Ordering::Relaxed).checked_add(1) else { return false };
        block.store(more, Ordering::Relaxed);
        // No page has more pins than its block, so its count cannot overflow either.
        for page in counts.pages_of(index).get(pages).unwrap_or_default() {
            page.store(page.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        }
        true
    }

    /// Removes one pin from these pages of a block.
    pub(crate) fn remove(&self, _locked: Locked<'_>, index: EntryIndex, pages: Range<usize>) {
        let Some(counts) = self.counts.get() else { return };
        let pages = counts.pages_of(index).get(pages).unwrap_or_default();
        for count in pages.iter().chain([&counts.blocks[index.0]]) {
            count.store(count.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        }
    }

    /// Notes that pages beside pinned ones may lack the right to be written although their block is `Private`.
    #[cold]
    pub(crate) fn note_lack_of_right(&self) {
        self.lacks_right.store(true, Ordering::Relaxed);
    }

    /// Whether a `Private` block may have pages that are not writable.
    #[inline]
    pub(crate) fn may_lack_right(&self) -> bool {
        self.lacks_right.load(Ordering::Relaxed)
    }
}
