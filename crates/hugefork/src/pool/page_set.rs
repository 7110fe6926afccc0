//! The pages that a snapshot has over a block that others hold too: copies of what was written there.
//!
//! ```text
//!   over block 7:   page 3 in slot 5210 │ page 90 in slot 5211
//!   pieces          [0…31] [32…63] [64…95] …     those without pages are not there
//! ```
//! A set that a snapshot has never changes. The set that a region goes on with shares all pieces with it, and copies a
//! piece before it changes that. So to capture pages and to drop a set costs what has changed.

use std::ptr;

use super::core::PoolCore;
use super::slots::Slot;
use crate::mem::{EngineArc, EngineVec, Own};
use crate::sys::Sys;
use crate::sys::racing::PageBytes;
use crate::units::{BASE_PAGE, BlockId};

/// So many neighbouring pages are in a piece.
const PIECE_PAGES: usize = 32;

/// The slots of some neighbouring pages. Sets share pieces.
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
        self.pool.slots.hold(self.each(), self.pool.block_size);
        Piece { pool: self.pool.clone(), slots: self.slots }
    }
}

impl<S: Sys> Drop for Piece<S> {
    fn drop(&mut self) {
        self.pool.give_up_slots(self.each());
    }
}

/// Pages that are different from those of a block.
pub(crate) struct PageSet<S: Sys> {
    pool: EngineArc<PoolCore<S>>,
    /// The block below. Whoever has the set holds it, too.
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
    /// No pages over `base`.
    pub(crate) fn empty(pool: &EngineArc<PoolCore<S>>, base: BlockId) -> PageSet<S> {
        let mut pieces = EngineVec::new_in(Own);
        pieces.resize_with((pool.block_size.bytes() / BASE_PAGE).div_ceil(PIECE_PAGES), || None);
        PageSet { pool: pool.clone(), base, len: 0, pieces }
    }

    /// Has a page in this slot, which is the set's from now on.
    pub(crate) fn put(&mut self, page: usize, slot: Slot) {
        let empty = || EngineArc::new(Piece { pool: self.pool.clone(), slots: [None; PIECE_PAGES] });
        let piece = self.pieces[page / PIECE_PAGES].get_or_insert_with(empty).make_mut();
        match piece.slots[page % PIECE_PAGES].replace(slot) {
            Some(before) => self.pool.give_up_slots([before].into_iter()),
            None => self.len += 1,
        }
    }

    /// Calls `each` for each page of the block that one of the sets has, and the other has not or has in another slot.
    /// Both are over the same block. Pieces that they share are not looked at.
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

    /// How many pages it has.
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

    /// The slot of a page of the block, if the set has that.
    pub(crate) fn slot_of(&self, page: usize) -> Option<Slot> {
        self.pieces.get(page / PIECE_PAGES)?.as_ref()?.slots[page % PIECE_PAGES]
    }

    /// The bytes of a slot of the set.
    pub(crate) fn bytes(&self, slot: Slot) -> &PageBytes {
        // SAFETY: a slot is valid for as long as a set has it, and is not written once a set has it.
        unsafe { &*self.pool.slot(slot).cast() }
    }

    /// Writes what the set has of the bytes of the block from `start` on to their places in `to`.
    pub(crate) fn copy_over(&self, start: usize, to: &mut [u8]) {
        let end = start + to.len();
        for page in start / BASE_PAGE..end.div_ceil(BASE_PAGE) {
            let Some(slot) = self.slot_of(page) else { continue };
            let at = page * BASE_PAGE;
            let (from, until) = (at.max(start), (at + BASE_PAGE).min(end));
            to[from - start..until - start].copy_from_slice(&self.bytes(slot)[from - at..until - at]);
        }
    }

    /// The place of each page in the block, and that of its slot in the pool's memory (in bytes).
    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        self.each().map(|(page, slot)| (page * BASE_PAGE, slot.offset()))
    }

    /// The pages, with the place of each in the block (in bytes).
    pub(crate) fn pages(&self) -> impl Iterator<Item = (usize, &PageBytes)> {
        self.each().map(|(page, slot)| (page * BASE_PAGE, self.bytes(slot)))
    }
}
