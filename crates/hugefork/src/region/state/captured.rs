//! The sets of pages that the last snapshots of a region were given, so that the next one copies only what was written
//! since.
//!
//! They change in a region's turn, and nobody looks at them in between but the pool's thread, which is told how many
//! pages there are.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::mem::{self, EngineArc, EngineBox, EngineVec, Own};
use crate::pool::page_set::PageSet;
use crate::sys::Sys;
use crate::units::{BASE_PAGE, BlockId, BlockSize, EntryIndex};

/// The block was write-protected when it was captured, and is still.
const CURRENT: u32 = 1 << 31;

/// Pages of the set were dropped since, or something else was shown.
const OUTDATED: u32 = 1 << 30;

/// A set of the block is being made.
const BEGUN: u32 = 1 << 29;

/// There is a set, perhaps without pages.
const MADE: u32 = 1 << 28;

const FLAGS: u32 = CURRENT | OUTDATED | BEGUN | MADE;

/// What was captured of a block.
struct Block<S: Sys> {
    set: EngineArc<PageSet<S>>,
    /// The cut that it was captured for.
    cut: u64,
}

/// What was captured of the blocks of a region.
pub(crate) struct Captured<S: Sys> {
    sets: Mutex<Sets<S>>,
    /// How many pages the set of each block has, with [`CURRENT`] while nobody may have written to the block since,
    /// [`OUTDATED`], [`BEGUN`] and [`MADE`].
    pages: EngineBox<[AtomicU32]>,
    /// Whether it is known which private pages were written since they were captured, as far as that could be had at
    /// the last cut.
    are_tracked: AtomicBool,
    /// How many blocks with many private pages may still be copied for this cut.
    copies_left: AtomicUsize,
}

/// The most blocks that one cut copies for their many private pages. It captures the pages of all others: a region that
/// is written to all over has many such blocks at once.
const MAX_COPIES: usize = 4;

/// The sets, while they are looked at.
pub(in crate::region) struct Sets<S: Sys> {
    blocks: EngineVec<Option<Block<S>>>,
    cut: u64,
    /// What a reset has put others in the place of.
    replaced: EngineVec<EngineArc<PageSet<S>>>,
}

impl<S: Sys> Captured<S> {
    /// Nothing, of `count` blocks.
    pub(super) fn new(count: usize, size: BlockSize) -> Captured<S> {
        let count = if size.bytes() > BASE_PAGE { count } else { 0 };
        let sets = Sets { blocks: EngineVec::new_in(Own), cut: 0, replaced: EngineVec::new_in(Own) };
        Captured {
            sets: Mutex::new(sets),
            pages: mem::zeroed(count),
            are_tracked: AtomicBool::new(false),
            copies_left: AtomicUsize::new(0),
        }
    }

    pub(in crate::region) fn lock(&self) -> MutexGuard<'_, Sets<S>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many pages of a block are in its set, which the next snapshot need not copy if they stay as they are.
    pub(in crate::region) fn pages_of(&self, index: EntryIndex) -> usize {
        self.pages.get(index.0).map_or(0, |pages| (pages.load(Ordering::Relaxed) & !FLAGS) as usize)
    }

    /// Whether all private pages of a block that have a mark are as its set says: as there, or as in the block below if
    /// they are not there. All pages of the set are private.
    pub(in crate::region) fn has_all_marked(&self, index: EntryIndex) -> bool {
        self.pages.get(index.0).is_some_and(|pages| pages.load(Ordering::Relaxed) & (MADE | OUTDATED) == MADE)
    }

    /// Notes that these blocks may be written to, or were. Only loads where nothing was captured.
    pub(in crate::region) fn may_change(&self, entries: Range<usize>) {
        for pages in self.pages.get(entries).unwrap_or_default() {
            if pages.load(Ordering::Relaxed) & CURRENT != 0 {
                pages.fetch_and(!CURRENT, Ordering::Relaxed);
            }
        }
    }

    pub(in crate::region) fn are_tracked(&self) -> bool {
        self.are_tracked.load(Ordering::Relaxed)
    }

    pub(in crate::region) fn set_tracked(&self, are_tracked: bool) {
        self.are_tracked.store(are_tracked, Ordering::Relaxed);
    }

    /// Whether a block may be copied for this cut because it has many private pages.
    pub(in crate::region) fn may_copy(&self) -> bool {
        self.copies_left.load(Ordering::Relaxed) > 0
    }

    /// Notes that one is copied.
    pub(in crate::region) fn note_copy(&self) {
        let left = self.copies_left.load(Ordering::Relaxed);
        self.copies_left.store(left.saturating_sub(1), Ordering::Relaxed);
    }

    /// Has the pages of all further blocks captured, because writers wait.
    pub(in crate::region) fn copy_no_more(&self) {
        self.copies_left.store(0, Ordering::Relaxed);
    }

    /// Whether there are any, or have been.
    pub(in crate::region) fn are_any(&self) -> bool {
        self.lock().are_any()
    }

    /// Whether a block was write-protected when it was captured, and nobody was let write since. Under the lock of its
    /// window.
    pub(in crate::region) fn is_current(&self, index: EntryIndex) -> bool {
        self.pages.get(index.0).is_some_and(|pages| pages.load(Ordering::Relaxed) & CURRENT != 0)
    }

    /// Has the last set of a block over `base`, to which nobody has written since, for this cut too. False if there is
    /// none. Under the lock of its window.
    pub(in crate::region) fn keep_last(&self, index: EntryIndex, base: BlockId) -> bool {
        let mut sets = self.lock();
        let cut = sets.cut;
        let of = sets.blocks.get_mut(index.0).and_then(Option::as_mut);
        let of = of.filter(|of| of.set.base == base && !self.is_outdated(index));
        of.map(|of| of.cut = cut).is_some()
    }

    /// Notes that private pages of these blocks are dropped: their sets tell nothing of what will be private there.
    /// Under the locks of their windows, or the region lock. Only loads where nothing was captured.
    pub(crate) fn outdate(&self, entries: Range<usize>) {
        for pages in self.pages.get(entries).unwrap_or_default() {
            if pages.load(Ordering::Relaxed) != 0 {
                pages.fetch_or(OUTDATED, Ordering::Relaxed);
                pages.fetch_and(!CURRENT, Ordering::Relaxed);
            }
        }
    }

    pub(in crate::region) fn is_outdated(&self, index: EntryIndex) -> bool {
        self.pages.get(index.0).is_some_and(|pages| pages.load(Ordering::Relaxed) & OUTDATED != 0)
    }

    /// Begins a cut: nothing is captured for it. Sets are dropped that are outdated, or whose blocks are not those of
    /// `block_of` any more.
    pub(crate) fn begin_cut(&self, block_of: impl Fn(EntryIndex) -> Option<BlockId>) {
        self.copies_left.store(MAX_COPIES, Ordering::Relaxed);
        let mut sets = self.lock();
        sets.cut += 1;
        for (index, of) in sets.blocks.iter_mut().enumerate() {
            let index = EntryIndex(index);
            let is_old = |base| self.is_outdated(index) || block_of(index) != Some(base);
            if of.as_ref().is_some_and(|of| is_old(of.set.base)) {
                *of = None;
                self.pages[index.0].store(0, Ordering::Relaxed);
            }
        }
    }

    /// Nothing is captured of a block any more.
    pub(in crate::region) fn forget(&self, index: EntryIndex) {
        let mut sets = self.lock();
        let set = sets.blocks.get_mut(index.0).and_then(Option::take);
        if let Some(pages) = self.pages.get(index.0) {
            pages.store(0, Ordering::Relaxed);
        }
        drop(sets);
        drop(set);
    }

    /// A set of the block is being made, which may be write-protected now. Under the lock of its window. True if the
    /// last set tells what was private when it was made.
    pub(in crate::region) fn begin_block(&self, index: EntryIndex, is_protected: bool) -> bool {
        let now = BEGUN | if is_protected { CURRENT } else { 0 };
        self.pages.get(index.0).is_some_and(|pages| pages.swap(now, Ordering::Relaxed) & OUTDATED == 0)
    }

    /// The set of a block, for whatever cut it was made.
    pub(in crate::region) fn last(&self, index: EntryIndex) -> Option<EngineArc<PageSet<S>>> {
        self.lock().blocks.get(index.0)?.as_ref().map(|of| of.set.clone())
    }

    /// Has this set for this cut. If somebody was let write since [`Captured::begin_block`], it is not current, and if
    /// pages were dropped, it is outdated.
    pub(in crate::region) fn keep(&self, index: EntryIndex, set: EngineArc<PageSet<S>>) {
        self.pages[index.0].fetch_add((set.len() as u32 | MADE).wrapping_sub(BEGUN), Ordering::Relaxed);
        let mut sets = self.lock();
        let cut = sets.cut;
        sets.make_room(self.pages.len());
        sets.blocks[index.0] = Some(Block { set, cut });
    }

    /// Makes room for [`Captured::replace`], once for each block. Allocates.
    pub(in crate::region) fn make_room(&self) {
        let (mut sets, count) = (self.lock(), self.pages.len());
        sets.make_room(count);
        if sets.replaced.capacity() < count {
            sets.replaced = EngineVec::with_capacity_in(count, Own);
        }
    }

    /// The pages over a block are as in this set now, or it is not known what they are. Under the region lock; nothing
    /// is allocated or dropped.
    pub(in crate::region) fn replace(&self, index: EntryIndex, set: Option<EngineArc<PageSet<S>>>) {
        let mut sets = self.lock();
        let Sets { blocks, cut, replaced } = &mut *sets;
        let (Some(of), Some(pages)) = (blocks.get_mut(index.0), self.pages.get(index.0)) else { return };
        pages.store(set.as_ref().map_or(0, |set| set.len() as u32 | MADE), Ordering::Relaxed);
        replaced.extend(std::mem::replace(of, set.map(|set| Block { set, cut: *cut })).map(|of| of.set));
    }

    /// Drops the sets that were replaced.
    pub(in crate::region) fn drop_replaced(&self) {
        let mut sets = self.lock();
        if !sets.replaced.is_empty() {
            let replaced = std::mem::replace(&mut sets.replaced, EngineVec::new_in(Own));
            drop(sets);
            drop(replaced);
        }
    }
}

impl<S: Sys> Sets<S> {
    fn make_room(&mut self, count: usize) {
        if self.blocks.is_empty() {
            self.blocks.resize_with(count, || None);
        }
    }

    /// Whether there are any.
    pub(in crate::region) fn are_any(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// The set of a block that was captured for this cut.
    pub(in crate::region) fn of_this_cut(&self, index: EntryIndex, base: BlockId) -> Option<EngineArc<PageSet<S>>> {
        let of = self.blocks.get(index.0)?.as_ref()?;
        (of.cut == self.cut && of.set.base == base).then(|| of.set.clone())
    }

    /// The set of a block, for whatever cut it was made.
    pub(in crate::region) fn of_any_cut(&self, index: EntryIndex, base: BlockId) -> Option<EngineArc<PageSet<S>>> {
        let of = self.blocks.get(index.0)?.as_ref()?;
        (of.set.base == base).then(|| of.set.clone())
    }
}
