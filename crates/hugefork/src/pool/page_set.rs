//! The pages that a snapshot has over a block that others hold too: copies of what was written there.
//!
//! ```text
//!   over block 7:   page 3 in slot 5210 │ page 90 in slot 5211      never changes; shared by snapshots
//! ```
//! A set is in pieces of some neighbouring pages. A new one shares those where nothing has changed with the last, so to
//! make and to drop one costs what has changed.

use std::{mem, ptr};

use super::core::PoolCore;
use super::frames::{Content, Wanted};
use super::slots::Slot;
use crate::mem::{EngineArc, EngineVec, Own};
use crate::sys::Sys;
use crate::sys::racing::PageBytes;
use crate::table::Reserved;
use crate::units::{BASE_PAGE, BlockId, BlockSize};

impl<S: Sys> PoolCore<S> {
    /// Free slots, with memory: `count`, or as many as there are. Allocates.
    pub(crate) fn take_slots(&self, count: usize) -> EngineVec<Slot> {
        self.slots.take(count, self.block_size, || self.block_for_slots())
    }

    /// The same, as far as free blocks have memory.
    pub(crate) fn take_ready_slots(&self, count: usize) -> EngineVec<Slot> {
        self.slots.take(count, self.block_size, || self.frames.last_ready().and_then(|_| self.block_for_slots()))
    }

    /// Gets memory for so many slots, as far as free blocks lack it. Allocates.
    pub(crate) fn make_slots_ready(&self, count: usize) {
        if self.block_size.len_of(self.frames.ready()) < count * BASE_PAGE {
            self.give_up_slots(self.take_slots(count).into_iter());
        }
    }

    /// Gives slots back that a set had, or that none has got.
    pub(crate) fn give_up_slots(&self, slots: impl Iterator<Item = Slot>) {
        self.slots.give_up(slots, |block| {
            self.release(block);
        });
    }

    /// A block with memory, whatever is in it.
    fn block_for_slots(&self) -> Option<BlockId> {
        // Regions settle from the beginning on. A fresh block has to wait for the kernel, which takes longer than to
        // fill it.
        let wish = self.frames.last_ready().unwrap_or(BlockId((self.frames.len() - 1) as u32));
        let taken = self.frames.take(wish, 0, 0, Wanted::Any, Reserved::No)?;
        self.stock.nudge(&self.frames);
        let has_memory = || self.frames.content(taken.first) != Content::Fresh || self.obtain(taken, 0).is_ok();
        if !Slot::can_name(taken.first, self.block_size) || !has_memory() {
            self.give_back(taken);
            return None;
        }
        self.frames.set_content(taken.first, Content::Used);
        Some(taken.first)
    }

    /// The address of a slot in the direct map.
    pub(crate) fn slot(&self, slot: Slot) -> *mut u8 {
        // SAFETY: the direct map spans all blocks, and the slot lies in one of them.
        unsafe { self.sys.direct().add(slot.offset()) }
    }
}

/// The pages of a set that lie beside each other: as many places of the block as one piece has at most.
const PIECE_PAGES: u32 = 64;

/// Pages of a block with their slots, in the order of their places.
pub(crate) type Pages = EngineVec<(u32, Slot)>;

/// Some pages of a set. Sets share pieces that are alike.
struct Piece<S: Sys> {
    pool: EngineArc<PoolCore<S>>,
    pages: Pages,
}

impl<S: Sys> Piece<S> {
    fn first(&self) -> u32 {
        self.pages.first().map_or(0, |(page, _)| *page)
    }
}

impl<S: Sys> Drop for Piece<S> {
    fn drop(&mut self) {
        self.pool.give_up_slots(self.pages.iter().map(|(_, slot)| *slot));
    }
}

/// Pages that are different from those of a block, in the order of their places.
pub(crate) struct PageSet<S: Sys> {
    /// The block below. Whoever has the set holds it, too.
    pub(crate) base: BlockId,
    pieces: EngineVec<EngineArc<Piece<S>>>,
}

impl<S: Sys> PageSet<S> {
    /// So many pages of a block are kept beside it. With more, the block is copied, which takes as much memory as all
    /// its pages. Where writes are not tracked, each snapshot compares them all, so fewer are worth it.
    pub(crate) fn most_pages(size: BlockSize, are_tracked: bool) -> usize {
        let pages = size.bytes() / BASE_PAGE;
        if are_tracked { pages / 8 * 7 } else { pages / 4 }
    }

    /// These pages over `base`. The set takes over the slots that it has alone, and shares others with `last`.
    pub(crate) fn new(
        pool: &EngineArc<PoolCore<S>>,
        base: BlockId,
        pages: &[(u32, Slot)],
        last: Option<&PageSet<S>>,
        is_shared: impl Fn(Slot) -> bool,
    ) -> PageSet<S> {
        let (mut pieces, mut rest) = (EngineVec::new_in(Own), pages);
        let mut held: EngineVec<Slot> = EngineVec::new_in(Own);
        while let Some((first, _)) = rest.first() {
            let end = (first / PIECE_PAGES + 1) * PIECE_PAGES;
            let (now, later) = rest.split_at(rest.partition_point(|(page, _)| *page < end));
            let same = last.and_then(|last| last.piece_from(*first)).filter(|piece| piece.pages[..] == *now);
            pieces.push(same.cloned().unwrap_or_else(|| {
                held.extend(now.iter().map(|(_, slot)| *slot).filter(|slot| is_shared(*slot)));
                let mut pages = EngineVec::with_capacity_in(now.len(), Own);
                pages.extend_from_slice(now);
                EngineArc::new(Piece { pool: pool.clone(), pages })
            }));
            rest = later;
        }
        pool.slots.hold(held.iter().copied());
        pieces.shrink_to_fit();
        PageSet { base, pieces }
    }

    /// One without pages, to be filled where nothing can be allocated.
    pub(crate) fn empty(pool: &EngineArc<PoolCore<S>>) -> PageSet<S> {
        let mut pieces = EngineVec::with_capacity_in(1, Own);
        pieces.push(EngineArc::new(Piece { pool: pool.clone(), pages: EngineVec::new_in(Own) }));
        PageSet { base: BlockId(0), pieces }
    }

    /// Gives an empty set, which nobody else has, its pages, as [`PageSet::new`]. Allocates nothing: `pages` are what
    /// the set has had then. False if it is not such a set.
    pub(crate) fn fill(&mut self, base: BlockId, pages: &mut Pages, is_shared: impl Fn(Slot) -> bool) -> bool {
        let [piece] = &mut self.pieces[..] else { return false };
        let Some(piece) = piece.get_mut().filter(|piece| piece.pages.is_empty()) else { return false };
        piece.pool.slots.hold(pages.iter().map(|(_, slot)| *slot).filter(|slot| is_shared(*slot)));
        self.base = base;
        mem::swap(&mut piece.pages, pages);
        true
    }

    /// Calls `each` for each page of the block that one of the sets has, and the other has not or has in another slot.
    /// Both are over the same block. Pieces that they share are not looked at.
    pub(crate) fn each_difference(one: Option<&Self>, other: Option<&Self>, mut each: impl FnMut(usize)) {
        let (mut ones, mut others) = (Self::pages_without(one, other), Self::pages_without(other, one));
        let (mut of_one, mut of_other) = (ones.next(), others.next());
        while let Some(page) = of_one.iter().chain(&of_other).map(|(page, _)| *page).min() {
            let (here, there) = [of_one, of_other].map(|of| of.filter(|(of, _)| *of == page)).into();
            if here != there {
                each(page as usize);
            }
            of_one = if here.is_some() { ones.next() } else { of_one };
            of_other = if there.is_some() { others.next() } else { of_other };
        }
    }

    /// The pages of one set that are in pieces of its own.
    fn pages_without<'a>(one: Option<&'a Self>, other: Option<&'a Self>) -> impl Iterator<Item = (u32, Slot)> + 'a {
        let is_shared = move |piece: &EngineArc<Piece<S>>| {
            let same = other.and_then(|other| other.piece_from(piece.first()));
            same.is_some_and(|same| ptr::eq::<Piece<S>>(&**same, &**piece))
        };
        let pieces = one.into_iter().flat_map(|one| one.pieces.iter());
        pieces.filter(move |piece| !is_shared(piece)).flat_map(|piece| piece.pages.iter().copied())
    }

    /// How many pages it has.
    pub(crate) fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.pages.len()).sum()
    }

    /// The piece that begins with a page.
    fn piece_from(&self, page: u32) -> Option<&EngineArc<Piece<S>>> {
        self.pieces.get(self.pieces.partition_point(|piece| piece.first() < page)).filter(|piece| piece.first() == page)
    }

    /// The pieces from the one on that a page would be in.
    fn pieces_from(&self, page: usize) -> &[EngineArc<Piece<S>>] {
        &self.pieces[self.pieces.partition_point(|piece| piece.first() as usize <= page).saturating_sub(1)..]
    }

    fn each(&self) -> impl DoubleEndedIterator<Item = (u32, Slot)> {
        self.pieces.iter().flat_map(|piece| piece.pages.iter().copied())
    }

    /// The slot of a page of the block, if the set has that.
    pub(crate) fn slot_of(&self, page: usize) -> Option<Slot> {
        let pages = &self.pieces_from(page).first()?.pages;
        let at = pages.binary_search_by_key(&page, |(page, _)| *page as usize).ok()?;
        Some(pages[at].1)
    }

    /// Adds the pages of the set that are not among `pages`, which stay in order. There is room for them.
    pub(crate) fn add_others(&self, pages: &mut Pages) {
        let mut newer = pages.len();
        let others = self.each().filter(|(page, _)| pages.binary_search_by_key(page, |(page, _)| *page).is_err());
        let count = others.count();
        // From the end, so that nothing is overwritten that is still needed.
        let mut to = newer + count;
        pages.resize(to, (0, Slot::default()));
        for last in self.each().rev() {
            while newer > 0 && pages[newer - 1].0 > last.0 {
                (newer, to) = (newer - 1, to - 1);
                pages[to] = pages[newer];
            }
            if newer == 0 || pages[newer - 1].0 != last.0 {
                to -= 1;
                pages[to] = last;
            }
        }
    }

    /// The bytes of a slot of the set.
    pub(crate) fn bytes(&self, slot: Slot) -> &PageBytes {
        let pool = &self.pieces[0].pool;
        // SAFETY: a slot is valid for as long as a set has it, and is not written once a set has it.
        unsafe { &*pool.slot(slot).cast() }
    }

    /// Writes what the set has of the bytes of the block from `start` on to their places in `to`.
    pub(crate) fn copy_over(&self, start: usize, to: &mut [u8]) {
        let end = start + to.len();
        let pages = self.pieces_from(start / BASE_PAGE).iter().flat_map(|piece| piece.pages.iter());
        let from_start = pages.skip_while(|(page, _)| (*page as usize + 1) * BASE_PAGE <= start);
        for (page, slot) in from_start.take_while(|(page, _)| (*page as usize * BASE_PAGE) < end) {
            let at = *page as usize * BASE_PAGE;
            let (from, until) = (at.max(start), (at + BASE_PAGE).min(end));
            to[from - start..until - start].copy_from_slice(&self.bytes(*slot)[from - at..until - at]);
        }
    }

    /// The place of each page in the block, and that of its slot in the pool's memory (in bytes).
    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        self.each().map(|(page, slot)| (page as usize * BASE_PAGE, slot.offset()))
    }

    /// The pages, with the place of each in the block (in bytes).
    pub(crate) fn pages(&self) -> impl Iterator<Item = (usize, &PageBytes)> {
        self.each().map(|(page, slot)| (page as usize * BASE_PAGE, self.bytes(slot)))
    }
}
