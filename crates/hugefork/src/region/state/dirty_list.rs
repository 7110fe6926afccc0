//! What a region knows from its last reset, so that the next one costs no more than what was written since.
//!
//! | known | for |
//! |---|---|
//! | private pages that no set tells of, and the process's faults | no look at page tables while those stand still |
//! | for how many resets a page was not written to | pages that are not written any more go back to the kernel |
//! | blocks of the region's own at the last resets | such a block stays, and gets the old bytes |

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::mem::{EngineVec, Own};
use crate::sys::{MOST_RUNS, PageRun};

/// There is room for these from the first reset on.
const FIRST_ROOM_PAGES: usize = 512;

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
    /// The pages before the last look.
    before: EngineVec<Page>,
    /// How many faults the process had when `pages` were all there were.
    pub(in crate::region) seen_at: Option<u64>,
    pub(in crate::region) runs: EngineVec<PageRun>,
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
            before: EngineVec::new_in(Own),
            seen_at: None,
            runs: EngineVec::new_in(Own),
            wished: FIRST_ROOM_PAGES,
            own: EngineVec::new_in(Own),
            parked: EngineVec::new_in(Own),
            told: EngineVec::new_in(Own),
            are_told: false,
        }
    }
}

/// One private page: `[ number in the region : 56 | idle : 8 ]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::region) struct Page(u64);

impl Page {
    pub(in crate::region) fn new(number: usize, idle: u8) -> Page {
        Page((number as u64) << 8 | u64::from(idle))
    }

    pub(in crate::region) fn number(self) -> usize {
        (self.0 >> 8) as usize
    }

    /// For how many resets it was not written to.
    pub(in crate::region) fn idle(self) -> u8 {
        self.0 as u8
    }
}

/// There is no room for all pages. They are more than twice this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::region) struct NoRoom(pub(in crate::region) usize);

impl NoRoom {
    /// Room that may be enough.
    pub(in crate::region) fn wanted_pages(self) -> usize {
        2 * self.0.max(FIRST_ROOM_PAGES)
    }
}

impl DirtyList {
    /// Makes room for `pages` pages at least, in a region of `blocks` blocks. Allocates.
    pub(in crate::region) fn prepare(&mut self, pages: usize, blocks: usize) {
        let pages = pages.max(self.wished);
        for list in [&mut self.pages, &mut self.before] {
            if list.capacity() < pages {
                list.reserve(pages - list.len());
            }
        }
        self.runs.resize(MOST_RUNS, PageRun::default());
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

    /// Has the next reset make room for so many pages, and some more.
    pub(in crate::region) fn wish_for(&mut self, pages: usize) {
        self.wished = NoRoom(pages).wanted_pages();
    }

    /// Begins a look: there are no pages, until they are [found](DirtyList::find).
    pub(in crate::region) fn begin(&mut self) {
        self.seen_at = None;
        std::mem::swap(&mut self.pages, &mut self.before);
        self.pages.clear();
    }

    /// Notes pages that were found, in order. The kernel may tell of some a second time, where it has stopped and
    /// begins again. `last` is where the search for the pages of before has come to.
    pub(in crate::region) fn find(&mut self, numbers: core::ops::Range<usize>, last: &mut usize) -> Result<(), NoRoom> {
        let first = self.pages.last().map_or(0, |page| page.number() + 1);
        for number in numbers.start.max(first)..numbers.end {
            if self.pages.len() == self.pages.capacity().min(self.before.capacity()) {
                return Err(NoRoom(self.pages.len()));
            }
            while self.before.get(*last).is_some_and(|page| page.number() < number) {
                *last += 1;
            }
            let idle = self.before.get(*last).filter(|page| page.number() == number).map_or(0, |page| page.idle());
            self.pages.push(Page::new(number, idle));
        }
        Ok(())
    }

    /// Bytes that this takes.
    pub(crate) fn bytes(&self) -> usize {
        let pages = self.pages.capacity() + self.before.capacity();
        pages * size_of::<Page>()
            + self.runs.capacity() * size_of::<PageRun>()
            + self.own.capacity()
            + self.parked.capacity()
            + self.told.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_found_again_keeps_its_age_and_a_full_list_says_so() {
        let mut known = DirtyList::default();
        known.prepare(4, 1);
        known.begin();
        assert_eq!(known.find(3..7, &mut 0), Ok(()));
        known.pages[1] = Page::new(4, 5);
        known.begin();
        let mut last = 0;
        assert_eq!([2..3, 2..3, 4..5, 4..5, 9..10].map(|found| known.find(found, &mut last)), [Ok(()); 5]);
        let pages: Vec<_> = known.pages.iter().map(|page| (page.number(), page.idle())).collect();
        assert_eq!(pages, [(2, 0), (4, 5), (9, 0)]);
        let room = known.pages.capacity().min(known.before.capacity());
        assert_eq!(known.find(10..10 + room, &mut last), Err(NoRoom(room)));
        assert_eq!(known.pages.len(), room);
    }
}
