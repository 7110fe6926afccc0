//! The pages that a snapshot has over a block that others hold too: copies of what was written there.
//!
//! ```text
//!   over block 7:   page 3 in slot 5210, page 90 in slot 5211      never changes; shared by snapshots
//! ```

use std::mem;

use super::core::{PoolCore, Shortage};
use super::frames::{Content, Wanted};
use super::slots::Slot;
use crate::mem::{EngineArc, EngineVec, Own};
use crate::sys::Sys;
use crate::sys::racing::PageBytes;
use crate::table::Reserved;
use crate::units::{BASE_PAGE, BlockId, BlockSize};

impl<S: Sys> PoolCore<S> {
    /// Free slots, with memory. Allocates. Short of blocks where only those are left that no slot can name.
    pub(crate) fn take_slots(&self, count: usize) -> Result<EngineVec<Slot>, Shortage> {
        self.slots.take(count, self.block_size, || self.block_for_slots()).map_err(|(shortage, taken)| {
            self.give_up_slots(taken.into_iter());
            shortage
        })
    }

    /// Gives slots back that a set had, or that none has got.
    pub(crate) fn give_up_slots(&self, slots: impl Iterator<Item = Slot>) {
        self.slots.give_up(slots, |block| {
            self.release(block);
        });
    }

    /// A block with memory, whatever is in it.
    fn block_for_slots(&self) -> Result<BlockId, Shortage> {
        // Regions settle from the beginning on.
        let wish = BlockId((self.frames.len() - 1) as u32);
        let taken = self.frames.take(wish, 0, 0, Wanted::Any, Reserved::No).ok_or(Shortage::Blocks)?;
        self.note_taken(taken);
        if !Slot::can_name(taken.first, self.block_size) {
            self.give_back(taken);
            return Err(Shortage::Blocks);
        }
        if self.frames.content(taken.first) == Content::Fresh
            && let Err(error) = self.obtain(taken, 0)
        {
            self.give_back(taken);
            return Err(Shortage::Memory(error));
        }
        self.frames.set_content(taken.first, Content::Used);
        Ok(taken.first)
    }

    /// The address of a slot in the direct map.
    pub(crate) fn slot(&self, slot: Slot) -> *mut u8 {
        // SAFETY: the direct map spans all blocks, and the slot lies in one of them.
        unsafe { self.sys.direct().add(slot.offset()) }
    }
}

/// Pages that are different from those of a block, in the order of their places.
pub(crate) struct PageSet<S: Sys> {
    pool: EngineArc<PoolCore<S>>,
    /// The block below. Whoever has the set holds it, too.
    pub(crate) base: BlockId,
    pages: EngineVec<(u32, Slot)>,
}

impl<S: Sys> PageSet<S> {
    /// So many pages of a block are kept beside it. With more, the block is copied, which takes as much memory as all
    /// its pages. Where writes are not tracked, each snapshot compares them all, so fewer are worth it.
    pub(crate) fn most_pages(size: BlockSize, are_tracked: bool) -> usize {
        let pages = size.bytes() / BASE_PAGE;
        if are_tracked { pages / 8 * 7 } else { pages / 4 }
    }

    /// These pages over `base`. The set takes over the slots that it has alone, and shares others, which another set
    /// has that lives until this returns.
    pub(crate) fn new(
        pool: &EngineArc<PoolCore<S>>,
        base: BlockId,
        mut pages: EngineVec<(u32, Slot)>,
        is_shared: impl Fn(Slot) -> bool,
    ) -> PageSet<S> {
        pages.shrink_to_fit();
        let mut set = PageSet { pool: pool.clone(), base, pages: EngineVec::new_in(Own) };
        set.fill(base, &mut pages, is_shared);
        set
    }

    /// One without pages, to be filled where nothing can be allocated.
    pub(crate) fn empty(pool: &EngineArc<PoolCore<S>>) -> PageSet<S> {
        PageSet { pool: pool.clone(), base: BlockId(0), pages: EngineVec::new_in(Own) }
    }

    /// Gives an empty set its pages, as [`PageSet::new`]. Allocates nothing.
    pub(crate) fn fill(&mut self, base: BlockId, pages: &mut EngineVec<(u32, Slot)>, is_shared: impl Fn(Slot) -> bool) {
        self.pool.slots.hold(pages.iter().map(|(_, slot)| *slot).filter(|slot| is_shared(*slot)));
        self.base = base;
        mem::swap(&mut self.pages, pages);
    }

    /// How many pages it has.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// The slot of a page of the block, if the set has that.
    pub(crate) fn slot_of(&self, page: usize) -> Option<Slot> {
        let at = self.pages.binary_search_by_key(&page, |(page, _)| *page as usize).ok()?;
        Some(self.pages[at].1)
    }

    /// Adds the pages of the set that are not among `pages`, which stay in order. There is room for them.
    pub(crate) fn add_others(&self, pages: &mut EngineVec<(u32, Slot)>) {
        let (mut newer, mut older) = (pages.len(), self.pages.len());
        let others = self.pages.iter().filter(|(page, _)| pages.binary_search_by_key(page, |(page, _)| *page).is_err());
        let count = others.count();
        // From the end, so that nothing is overwritten that is still needed.
        let mut to = newer + count;
        pages.resize(to, (0, Slot::default()));
        while older > 0 {
            let last = self.pages[older - 1];
            if newer > 0 && pages[newer - 1].0 >= last.0 {
                older -= usize::from(pages[newer - 1].0 == last.0);
                (newer, to) = (newer - 1, to - 1);
                pages[to] = pages[newer];
            } else {
                (older, to) = (older - 1, to - 1);
                pages[to] = last;
            }
        }
    }

    /// The bytes of a slot of the set.
    pub(crate) fn bytes(&self, slot: Slot) -> &PageBytes {
        // SAFETY: a slot is valid for as long as a set has it, and is not written once a set has it.
        unsafe { &*self.pool.slot(slot).cast() }
    }

    /// Writes what the set has of the bytes of the block from `start` on to their places in `to`.
    pub(crate) fn copy_over(&self, start: usize, to: &mut [u8]) {
        let end = start + to.len();
        let first = self.pages.partition_point(|(page, _)| (*page as usize + 1) * BASE_PAGE <= start);
        for (page, slot) in self.pages[first..].iter().take_while(|(page, _)| (*page as usize * BASE_PAGE) < end) {
            let at = *page as usize * BASE_PAGE;
            let (from, until) = (at.max(start), (at + BASE_PAGE).min(end));
            to[from - start..until - start].copy_from_slice(&self.bytes(*slot)[from - at..until - at]);
        }
    }

    /// The pages, with the place of each in the block (in bytes).
    pub(crate) fn pages(&self) -> impl Iterator<Item = (usize, &PageBytes)> {
        self.pages.iter().map(|(page, slot)| (*page as usize * BASE_PAGE, self.bytes(*slot)))
    }
}

impl<S: Sys> Drop for PageSet<S> {
    fn drop(&mut self) {
        self.pool.give_up_slots(self.pages.iter().map(|(_, slot)| *slot));
    }
}
