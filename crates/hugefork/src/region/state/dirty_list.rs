//! What a region knows from its last reset, so that the next one costs no more than what was written since.
//!
//! | known | for |
//! |---|---|
//! | private pages that no set tells of, and the process's faults | no look at page tables while those stand still |
//! | how many of these were written again | pages are kept only where most are, and else dropped all at once |
//! | blocks of the region's own at the last resets | such a block stays, and gets the old bytes |

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::mem::{EngineVec, Own};

/// There is room for these from the first reset on.
const FIRST_ROOM_PAGES: usize = 512;

/// Kept pages are dropped after so many resets in a row at which most were not written again. A program that does one
/// thing and another by turns keeps those of both.
const MAX_IDLE_RESETS: u8 = 2;

/// Where keeping pages does not pay, it is tried once in so many resets, so that a try costs little of them all.
const MAX_RESETS_BETWEEN_TRIES: u32 = 63;

/// Guarded by the lock that keeps snapshots and resets apart.
#[derive(Debug, Default)]
pub(crate) struct LockedDirtyList(Mutex<DirtyList>);

impl LockedDirtyList {
    pub(in crate::region) fn lock(&self) -> MutexGuard<'_, DirtyList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The private pages that a reset looks at, and what else it knows from the last one.
#[derive(Debug)]
pub(in crate::region) struct DirtyList {
    /// The private pages, in order. Where a set tells what is private, at least those without a mark.
    pub(in crate::region) pages: EngineVec<Page>,
    /// The pages that the last look has found beyond those, for which there was no room.
    unlisted: usize,
    /// So many pages were kept at the last reset.
    kept: usize,
    /// So many pages of the list got marks, and so are found no more.
    marked: usize,
    /// Resets in a row at which most of the kept pages were not written again.
    idle: u8,
    /// Resets for which all pages are dropped without a look, before keeping them is tried again.
    pub(in crate::region) until_try: u32,
    /// The same, after the next try that fails.
    after_failed_try: u32,
    /// How many faults the process had when `pages` were all there were.
    pub(in crate::region) seen_at: Option<u64>,
    /// For so many pages there is to be room at the next reset.
    wished: usize,
    /// For each block: 0, or one more than the number of resets in a row at which it was the region's own and not
    /// written to.
    pub(in crate::region) own: EngineVec<u8>,
    /// For each block: whether it is parked while writers are held.
    pub(in crate::region) parked: EngineVec<bool>,
    /// For each block: whether its set (captured.rs) tells what is private there, but for pages without a mark.
    pub(in crate::region) told: EngineVec<bool>,
    /// Whether any is.
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
            own: EngineVec::new_in(Own),
            parked: EngineVec::new_in(Own),
            told: EngineVec::new_in(Own),
            are_told: false,
        }
    }
}

/// One private page.
#[derive(Clone, Copy, Debug)]
pub(in crate::region) struct Page {
    /// Its number in the region.
    pub(in crate::region) number: usize,
    /// Whether it was written since the last reset, or the snapshot has it itself over the block.
    pub(in crate::region) is_wanted: bool,
}

impl DirtyList {
    /// Makes room for what is wished for, in a region of `blocks` blocks. Allocates.
    pub(in crate::region) fn prepare(&mut self, blocks: usize) {
        if self.pages.capacity() < self.wished {
            self.pages.reserve(self.wished - self.pages.len());
        }
        self.own.resize(blocks, 0);
        self.parked.resize(blocks, false);
        self.told.resize(blocks, false);
    }

    /// Has no set tell anything. The list lacks what sets told, so page tables are looked at anew.
    pub(in crate::region) fn tell_nothing(&mut self) {
        if std::mem::take(&mut self.are_told) {
            self.told.fill(false);
            self.seen_at = None;
        }
    }

    /// Begins a look: there are no pages, until they are [found](DirtyList::find).
    pub(in crate::region) fn begin(&mut self) {
        (self.seen_at, self.unlisted) = (None, 0);
        self.pages.clear();
    }

    /// Notes pages that were found, in order. The kernel may tell of some a second time, where it has stopped and
    /// begins again.
    pub(in crate::region) fn find(&mut self, numbers: Range<usize>) {
        let first = self.pages.last().map_or(0, |last| last.number + 1);
        let numbers = numbers.start.max(first)..numbers.end;
        let room = numbers.len().min(self.pages.capacity() - self.pages.len());
        self.pages.extend(numbers.clone().take(room).map(|number| Page { number, is_wanted: false }));
        self.unlisted += numbers.len() - room;
    }

    /// Whether the last look has found more pages than there was room for. The next reset has room for twice as many.
    pub(in crate::region) fn lacks_room(&mut self) -> bool {
        self.wished = self.wished.max(2 * (self.pages.len() + self.unlisted));
        self.unlisted > 0
    }

    /// Whether this reset drops all pages without a look.
    pub(in crate::region) fn skips_look(&mut self) -> bool {
        let skips = self.until_try > 0;
        self.until_try = self.until_try.saturating_sub(1);
        skips
    }

    /// Notes that the pages have been put back, and whether they are worth keeping.
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

    /// Whether no page is kept yet, and the look has found some that need not be put back.
    pub(in crate::region) fn has_new_unwanted(&self) -> bool {
        self.kept == 0 && self.pages.iter().any(|page| !page.is_wanted)
    }

    /// Takes the pages that have marks by now off the list. True once these are more than `most`, in all calls since
    /// it was true last.
    pub(in crate::region) fn forget_marked(&mut self, block_of: impl Fn(usize) -> usize, most: usize) -> bool {
        let count = self.pages.len();
        self.pages.retain(|page| !self.told[block_of(page.number)]);
        self.marked += count - self.pages.len();
        (self.idle, self.kept) = (0, self.pages.len());
        let are_many = self.marked > most;
        if are_many {
            self.marked = 0;
        }
        are_many
    }

    /// Notes that pages were dropped, where it did not pay to keep them.
    pub(in crate::region) fn note_drop(&mut self) {
        if self.kept > 0 {
            self.until_try = self.after_failed_try;
            self.after_failed_try = MAX_RESETS_BETWEEN_TRIES.min(2 * self.after_failed_try + 1);
        }
        (self.idle, self.kept) = (0, self.pages.len());
    }

    /// Bytes that this takes.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Page>() + self.own.capacity() + self.parked.capacity() + self.told.capacity()
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

    /// One reset after a look that found `found` pages beyond the kept ones, of which `again` were written again. True
    /// if the pages are dropped.
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
        // The same each time, and then others by turns with them.
        assert!(!reset(&mut known, 40, 0));
        assert!((0..10).all(|_| !reset(&mut known, 0, 40)));
        assert!((0..10).all(|nth| !reset(&mut known, 0, if nth % 2 == 0 { 3 } else { 40 })));
        // Others each time.
        let dropped = (0..200).filter(|_| reset(&mut known, 10, 0)).count();
        assert!(dropped > 170, "{dropped}");
        assert!((0..=MAX_RESETS_BETWEEN_TRIES).any(|_| !reset(&mut known, 40, 0)));
        // The same again.
        assert!((0..10).all(|_| !reset(&mut known, 0, 40)));
        assert!((0..2).any(|_| reset(&mut known, 0, 0)) && !reset(&mut known, 40, 0), "the next is a try at once");
    }
}
