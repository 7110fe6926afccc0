//! The knowledge that a region keeps from its last reset, so that the next one costs no more than what was written
//! since.
//!
//! | kept from the last reset | use in the next one |
//! |---|---|
//! | the private pages that no set lists, and the fault count | no scan of page tables while the count stands still |
//! | how many of these pages were written again | the reset keeps the pages if most were, and else drops all at once |
//! | which blocks were the region's own | the reset copies the old bytes into such a block instead of exchanging it |

use std::ops::Range;

use crate::mem::{EngineVec, Own};

/// The number of pages that the list has room for from the first reset on.
const FIRST_ROOM_PAGES: usize = 512;

/// Kept pages are dropped after this many resets in a row at which the program had not written most of them again. With
/// two, a program that alternates between two tasks keeps the pages of both.
const MAX_IDLE_RESETS: u8 = 2;

/// The most resets between two tries to keep pages, where that does not pay: so rare that tries cost little over all
/// resets.
const MAX_RESETS_BETWEEN_TRIES: u32 = 63;

/// The private pages that a reset has to put back, and what else the region keeps from its last reset.
#[derive(Debug)]
pub(in crate::region) struct DirtyList {
    /// The private pages, in ascending order. Over blocks that are `told`, only pages without a mark need to be here.
    pub(in crate::region) pages: EngineVec<Page>,
    /// The number of pages that the last scan found and for which `pages` had no room.
    unlisted: usize,
    /// The number of pages that the last reset kept.
    kept: usize,
    /// The number of pages that left the list because they got marks, so that later scans do not find them.
    marked: usize,
    /// The number of resets in a row at which most of the kept pages had not been written again.
    idle: u8,
    /// The number of resets that still drop all pages without a scan, before the next try to keep pages.
    pub(in crate::region) until_try: u32,
    /// The value that `until_try` gets after the next try that fails.
    after_failed_try: u32,
    /// The process's fault count when `pages` was complete, if it is. No page has become private while the count is the
    /// same.
    pub(in crate::region) seen_at: Option<u64>,
    /// The number of pages that the list is to have room for at the next reset.
    wished: usize,
    pub(in crate::region) blocks: EngineVec<BlockNote>,
    /// Whether any block is `told`.
    pub(in crate::region) are_told: bool,
}

impl Default for DirtyList {
    fn default() -> DirtyList {
        DirtyList {
            pages: EngineVec::new_in(Own),
            unlisted: 0,
            kept: 0,
            marked: 0,
            idle: 0,
            until_try: 0,
            after_failed_try: 0,
            seen_at: None,
            wished: FIRST_ROOM_PAGES,
            blocks: EngineVec::new_in(Own),
            are_told: false,
        }
    }
}

/// The notes on one block.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::region) struct BlockNote {
    /// 0, or one more than the number of resets in a row that found the block the region's own and not written to.
    pub(in crate::region) own: u8,
    /// Whether it is parked while the reset keeps writers off.
    pub(in crate::region) is_parked: bool,
    /// Whether its set (pool/captured.rs) says what all its private pages with a mark have, so that a scan has to find
    /// only the pages without one.
    pub(in crate::region) is_told: bool,
}

/// One private page.
#[derive(Clone, Copy, Debug)]
pub(in crate::region) struct Page {
    /// Its number in the region.
    pub(in crate::region) number: usize,
    /// Whether the page was written since the last reset, or the snapshot has a page of its own there.
    pub(in crate::region) is_wanted: bool,
}

impl DirtyList {
    /// Makes room for `wished` pages and for `blocks` blocks. Allocates.
    pub(in crate::region) fn prepare(&mut self, blocks: usize) {
        if self.pages.capacity() < self.wished {
            self.pages.reserve(self.wished - self.pages.len());
        }
        self.blocks.resize(blocks, BlockNote::default());
    }

    /// Makes no block `told`. The list lacks the pages that sets told of, so the next reset scans page tables again.
    pub(in crate::region) fn tell_nothing(&mut self) {
        if std::mem::take(&mut self.are_told) {
            self.blocks.iter_mut().for_each(|block| block.is_told = false);
            self.seen_at = None;
        }
    }

    /// Empties the list before a scan, which adds the pages that it [finds](DirtyList::find).
    pub(in crate::region) fn begin(&mut self) {
        (self.seen_at, self.unlisted) = (None, 0);
        self.pages.clear();
    }

    /// Adds pages that a scan found, in ascending order. The kernel may report some pages twice, at the end of one call
    /// and the beginning of the next.
    pub(in crate::region) fn find(&mut self, numbers: Range<usize>) {
        let first = self.pages.last().map_or(0, |last| last.number + 1);
        let numbers = numbers.start.max(first)..numbers.end;
        let room = numbers.len().min(self.pages.capacity() - self.pages.len());
        self.pages.extend(numbers.clone().take(room).map(|number| Page { number, is_wanted: false }));
        self.unlisted += numbers.len() - room;
    }

    /// Whether the last scan found more pages than there was room for. The next reset has room for twice as many as
    /// were found.
    pub(in crate::region) fn lacks_room(&mut self) -> bool {
        self.wished = self.wished.max(2 * (self.pages.len() + self.unlisted));
        self.unlisted > 0
    }

    /// Whether this reset drops all pages without a scan. Counts the reset.
    pub(in crate::region) fn skips_look(&mut self) -> bool {
        let skips = self.until_try > 0;
        self.until_try = self.until_try.saturating_sub(1);
        skips
    }

    /// Notes that a reset has put the pages back. True if they are worth keeping.
    pub(in crate::region) fn are_kept(&mut self) -> bool {
        let new = self.pages.len().saturating_sub(self.kept);
        let again = self.pages.iter().filter(|page| page.is_wanted).count().saturating_sub(new);
        if 2 * again < self.kept {
            self.idle += 1;
        } else if self.kept > 0 {
            (self.idle, self.after_failed_try) = (0, 0);
        }
        self.kept = self.pages.len();
        self.idle < MAX_IDLE_RESETS
    }

    /// Whether the last reset kept no page, and this one's scan has found pages that need not be put back.
    pub(in crate::region) fn has_new_unwanted(&self) -> bool {
        self.kept == 0 && self.pages.iter().any(|page| !page.is_wanted)
    }

    /// Removes the pages that have marks by now from the list. True if these are more than `most` pages, summed over
    /// all calls since the last call that returned true.
    pub(in crate::region) fn forget_marked(&mut self, block_of: impl Fn(usize) -> usize, most: usize) -> bool {
        let count = self.pages.len();
        self.pages.retain(|page| !self.blocks[block_of(page.number)].is_told);
        self.marked += count - self.pages.len();
        (self.idle, self.kept) = (0, self.pages.len());
        let are_many = self.marked > most;
        if are_many {
            self.marked = 0;
        }
        are_many
    }

    /// Notes that a reset dropped the pages because it did not pay to keep them.
    pub(in crate::region) fn note_drop(&mut self) {
        if self.kept > 0 {
            self.until_try = self.after_failed_try;
            self.after_failed_try = MAX_RESETS_BETWEEN_TRIES.min(2 * self.after_failed_try + 1);
        }
        (self.idle, self.kept) = (0, self.pages.len());
    }

    /// The bytes of memory that the list takes.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Page>() + self.blocks.capacity() * size_of::<BlockNote>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_found_again_is_there_once_and_a_full_list_says_so() {
        let mut known = DirtyList::default();
        known.prepare(1);
        known.begin();
        [2..3, 2..3, 4..5, 4..6, 9..10].into_iter().for_each(|found| known.find(found));
        assert!(known.pages.iter().map(|page| page.number).eq([2, 4, 5, 9]) && !known.lacks_room());
        let room = known.pages.capacity();
        known.find(10..10 + room);
        assert_eq!((known.pages.len(), known.lacks_room(), known.wished), (room, true, 2 * (room + 4)));
    }

    /// Simulates one reset, whose scan finds `found` new pages besides the kept ones, of which `again` were written
    /// again. True if the reset drops the pages.
    fn reset(known: &mut DirtyList, found: usize, again: usize) -> bool {
        if known.skips_look() {
            return true;
        }
        let pages = known.kept + found;
        known.begin();
        known.find(0..pages);
        known.pages.iter_mut().take(found + again).for_each(|page| page.is_wanted = true);
        let is_dropped = !known.are_kept();
        if is_dropped {
            known.pages.clear();
            known.note_drop();
        }
        is_dropped
    }

    #[test]
    fn pages_that_are_written_again_are_kept_and_others_soon_dropped_without_a_look() {
        let mut known = DirtyList { wished: 1 << 16, ..DirtyList::default() };
        known.prepare(1);
        // The program writes to the same pages each time, then to few and to all of them by turns.
        assert!(!reset(&mut known, 40, 0));
        assert!((0..10).all(|_| !reset(&mut known, 0, 40)));
        assert!((0..10).all(|nth| !reset(&mut known, 0, if nth % 2 == 0 { 3 } else { 40 })));
        // It writes to other pages each time.
        let dropped = (0..200).filter(|_| reset(&mut known, 10, 0)).count();
        assert!(dropped > 170, "{dropped}");
        assert!((0..=MAX_RESETS_BETWEEN_TRIES).any(|_| !reset(&mut known, 40, 0)));
        // It writes to the same pages again.
        assert!((0..10).all(|_| !reset(&mut known, 0, 40)));
        assert!((0..2).any(|_| reset(&mut known, 0, 0)) && !reset(&mut known, 40, 0), "the next is a try at once");
    }
}
