//! A page set: pages that a snapshot has in place of a shared block's own. Each is a copy, in a slot of the pool.
//!
//! ```text
//!   over block 7:   page 3 in slot 5210 │ page 90 in slot 5211
//!   pieces          [0…31] [32…63] [64…95] …     a piece without pages is absent
//! ```
//! A set that a snapshot has never changes. The region goes on with a clone of the set, which shares all pieces with
//! it, and copies a piece before it changes that. So the cost of a capture, and of a set's drop, is in proportion to
//! the pieces that have changed.

use std::ptr;

use super::core::PoolCore;
use super::slots::Slot;
use crate::mem::{EngineArc, EngineVec, Own};
use crate::sys::Sys;
use crate::sys::racing::PageBytes;
use crate::units::{BASE_PAGE, BlockId};

/// The number of neighbouring pages in a piece.
const PIECE_PAGES: usize = 32;

/// The slots of neighbouring pages. Several sets may share a piece.
struct Piece<S: Sys> {
    pool: EngineArc<PoolCore<S>>,
    slots: [Option<Slot>; PIECE_PAGES],
}

impl<S: Sys> Piece<S> {
    fn each(&self) -> impl Iterator<Item = Slot> {
        self.slots.iter().flatten().copied()
    }
}

impl<S: Sys> Clone for Piece<S> {
    fn clone(&self) -> Piece<S> {
        self.pool.slots.hold(self.each().filter(|_| !seeded!("shared-slot-is-not-held")));
        Piece { pool: self.pool.clone(), slots: self.slots }
    }
}

impl<S: Sys> Drop for Piece<S> {
    fn drop(&mut self) {
        self.pool.give_up_slots(self.each());
    }
}

/// Pages in place of some pages of a block.
pub(crate) struct PageSet<S: Sys> {
    pool: EngineArc<PoolCore<S>>,
    /// The block below. The owner of the set holds the block, too.
    pub(crate) base: BlockId,
    len: usize,
    pieces: EngineVec<Option<EngineArc<Piece<S>>>>,
}

impl<S: Sys> Clone for PageSet<S> {
    fn clone(&self) -> PageSet<S> {
        PageSet { pool: self.pool.clone(), base: self.base, len: self.len, pieces: self.pieces.clone() }
    }
}

impl<S: Sys> PageSet<S> {
    /// A set without pages over `base`.
    pub(crate) fn empty(pool: &EngineArc<PoolCore<S>>, base: BlockId) -> PageSet<S> {
        let mut pieces = EngineVec::new_in(Own);
        pieces.resize_with((pool.block_size.bytes() / BASE_PAGE).div_ceil(PIECE_PAGES), || None);
        PageSet { pool: pool.clone(), base, len: 0, pieces }
    }

    /// Puts a page into the set: its bytes are in `slot`, which belongs to the set from now on.
    pub(crate) fn put(&mut self, page: usize, slot: Slot) {
        let empty = || EngineArc::new(Piece { pool: self.pool.clone(), slots: [None; PIECE_PAGES] });
        let piece = self.pieces[page / PIECE_PAGES].get_or_insert_with(empty).make_mut();
        match piece.slots[page % PIECE_PAGES].replace(slot) {
            Some(before) => self.pool.give_up_slots([before].into_iter()),
            None => self.len += 1,
        }
    }

    /// Calls `each` for each page that only one of the sets has, or that they have in different slots. Both sets are
    /// over the same block. Pieces that they share are skipped.
    pub(crate) fn each_difference(one: Option<&Self>, other: Option<&Self>, mut each: impl FnMut(usize)) {
        let count = one.into_iter().chain(other).map(|set| set.pieces.len()).max().unwrap_or(0);
        for nth in 0..count {
            let [here, there] = [one, other].map(|set| set.and_then(|set| set.pieces[nth].as_deref()));
            if here.map(ptr::from_ref) == there.map(ptr::from_ref) {
                continue;
            }
            let slot = |piece: Option<&Piece<S>>, at: usize| piece.and_then(|piece| piece.slots[at]);
            let differ = (0..PIECE_PAGES).filter(|at| slot(here, *at) != slot(there, *at));
            differ.for_each(|at| each(nth * PIECE_PAGES + at));
        }
    }

    /// The number of pages in the set.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn each(&self) -> impl Iterator<Item = (usize, Slot)> {
        self.pieces.iter().enumerate().filter_map(|(nth, piece)| Some((nth, piece.as_ref()?))).flat_map(
            |(nth, piece)| {
                let slots = piece.slots.iter().enumerate();
                slots.filter_map(move |(at, slot)| Some((nth * PIECE_PAGES + at, (*slot)?)))
            },
        )
    }

    /// The slot of a page of the block, if the set has the page.
    pub(crate) fn slot_of(&self, page: usize) -> Option<Slot> {
        self.pieces.get(page / PIECE_PAGES)?.as_ref()?.slots[page % PIECE_PAGES]
    }

    /// The bytes of a slot of the set.
    pub(crate) fn bytes(&self, slot: Slot) -> &PageBytes {
        // SAFETY: a slot is valid for as long as a set has it, and nothing writes to it once a set has it.
        unsafe { &*self.pool.slot(slot).cast() }
    }

    /// Overwrites `to`, which has the block's bytes from `start` on, with the set's bytes wherever the set has a page.
    pub(crate) fn copy_over(&self, start: usize, to: &mut [u8]) {
        let end = start + to.len();
        for page in start / BASE_PAGE..end.div_ceil(BASE_PAGE) {
            let Some(slot) = self.slot_of(page) else { continue };
            let at = page * BASE_PAGE;
            let (from, until) = (at.max(start), (at + BASE_PAGE).min(end));
            to[from - start..until - start].copy_from_slice(&self.bytes(slot)[from - at..until - at]);
        }
    }

    /// For each page, its offset in the block and the offset of its slot in the pool's memory, in bytes.
    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        self.each().map(|(page, slot)| (page * BASE_PAGE, slot.offset()))
    }

    /// For each page, its offset in the block, in bytes, and its bytes.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (usize, &PageBytes)> {
        self.each().map(|(page, slot)| (page * BASE_PAGE, self.bytes(slot)))
    }
}
