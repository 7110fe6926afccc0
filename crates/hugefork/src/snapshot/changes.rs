//! Finds where a snapshot differs from something newer: a later snapshot, or a region (region/changes.rs).
//!
//! The search first compares which block each side has, and reads bytes only where the blocks differ:
//!
//! ```text
//!   entries, 128 MiB at once ─▶ the same block on both sides: equal, no byte is read
//!                            └▶ another block: a candidate ─▶ by block: reported
//!                                                          └▶ by page: compared, 2 MiB at once ─▶ pages that differ
//! ```
//! The same block means the same bytes, because nobody writes to a block while a snapshot holds it. The search reads
//! the older snapshot's entry both before and after the newer entry. If the older entry names the same block both
//! times, the snapshot held this block all the while: an entry that gives up a block never gets the same one again. If
//! it names no block both times, it had none, or a block of zeros (zeros.rs). Pages over the block (pages.rs) are equal
//! if both sides have the same set of pages; otherwise the search compares the pages of the sets, but not those of the
//! block.
//!
//! The search misses no change. Where bytes differ, the two sides have different blocks, only one side has a block, or
//! the sets over the block differ. The one other case is a region's private page over the same block, and the region
//! looks for those itself.

use std::collections::VecDeque;
use std::ops::Range;

use super::core::SnapshotCore;
use super::hold::HeldBlock;
use super::pages::Contents;
use crate::pool::page_set::PageSet;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::sys::racing::{PageBytes, ZERO_PAGE};
use crate::table::Entry;
use crate::types::error::RegionError;
use crate::units::{BASE_PAGE, BlockSize, EntryIndex, HUGE_PAGE};

/// In place of the next entry: the search is over.
const NO_MORE_ENTRIES: usize = usize::MAX;

/// Bytes compared under one lock and with signals blocked. A stretch begins at a multiple of it.
const STRETCH_BYTES: usize = HUGE_PAGE;

const STRETCH_PAGES: usize = STRETCH_BYTES / BASE_PAGE;

/// Bytes of entries that are searched for candidates in one go.
pub(crate) const LOOKED_AT_ONCE_BYTES: usize = 128 << 20;

/// A set of pages of one stretch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages([u64; STRETCH_PAGES / 64]);

impl Pages {
    pub(crate) fn add(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }

    /// The first page from `from` on that is in the set (`is_in`) or is not.
    fn next(&self, from: usize, is_in: bool) -> usize {
        let mut at = from;
        while at < STRETCH_PAGES {
            let word = if is_in { self.0[at / 64] } else { !self.0[at / 64] };
            let rest = word >> (at % 64);
            if rest != 0 {
                return at + rest.trailing_zeros() as usize;
            }
            at = (at / 64 + 1) * 64;
        }
        STRETCH_PAGES
    }

    /// The runs of pages in the set, as byte ranges of the stretch.
    fn runs(self) -> impl Iterator<Item = Range<usize>> {
        let mut end = 0;
        std::iter::from_fn(move || {
            let start = self.next(end, true);
            end = self.next(start, false);
            (start < STRETCH_PAGES).then_some(start * BASE_PAGE..end * BASE_PAGE)
        })
    }
}

/// The part of one block that lies in a stretch.
pub(crate) struct Piece {
    pub(crate) index: EntryIndex,
    /// In bytes of the block.
    pub(crate) within: Range<usize>,
    /// The number of its first page in the stretch.
    first: usize,
}

impl Piece {
    /// The pieces of `stretch`.
    pub(crate) fn each(stretch: &Range<usize>, size: BlockSize) -> impl Iterator<Item = Piece> {
        let Range { start, end } = *stretch;
        let step = size.bytes().min(STRETCH_BYTES);
        (start / step * step..end).step_by(step).map(move |at| {
            let step = step - BASE_PAGE * usize::from(seeded!("changes-miss-the-end-of-a-block"));
            let (from, to) = (at.max(start), end.min(at + step));
            let block = size.len_of(size.count(at));
            Piece {
                index: EntryIndex(size.count(at)),
                within: from - block..to - block,
                first: from % STRETCH_BYTES / BASE_PAGE,
            }
        })
    }

    /// The pages of the piece: the byte of the block at which each begins, and its number in the stretch.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (usize, usize)> {
        self.within.clone().step_by(BASE_PAGE).map(|at| (at, self.number_of(at)))
    }

    /// The number in the stretch of the page that begins at byte `at` of the block.
    pub(crate) fn number_of(&self, at: usize) -> usize {
        self.first + (at - self.within.start) / BASE_PAGE
    }
}

/// The snapshot's page that begins at byte `at` of the block, or zeros if the snapshot has no block there.
pub(crate) fn page_of<'a, S: Sys>(block: Option<&'a HeldBlock<'_, S>>, at: usize) -> &'a PageBytes {
    match block {
        Some(block) => block.page(at),
        None => &ZERO_PAGE,
    }
}

/// The newer side of a comparison.
pub(crate) trait Newer<S: Sys> {
    /// The entries that have another block than `older` or may have private pages over the same block, in order.
    /// Entries without a difference may be among them.
    fn candidates(&self, older: &SnapshotCore<S>, entries: Range<usize>) -> Result<Vec<usize>, RegionError>;

    /// The pages of `stretch`, a byte range, that differ.
    fn compare(&self, older: &SnapshotCore<S>, stretch: Range<usize>, how: Precision) -> Result<Pages, RegionError>;
}

impl<S: Sys> SnapshotCore<S> {
    /// Whether both sides have the same block and pages at `index`, or neither has any. `newer` reads the newer side.
    /// Also returns the newer entry.
    pub(crate) fn has_the_same(
        &self,
        index: EntryIndex,
        newer: impl FnOnce() -> Contents,
    ) -> Result<(bool, Entry), RegionError> {
        let before = self.contents(index);
        let newer = newer();
        let after = self.contents(index);
        let is_the_same = before == after && before.entry.block() == newer.entry.block() && before.pages == newer.pages;
        if before.entry == Entry::Revoked || newer.entry == Entry::Revoked {
            return Err(RegionError::Revoked);
        }
        Ok((is_the_same, newer.entry))
    }
}

impl<S: Sys> Newer<S> for SnapshotCore<S> {
    fn candidates(&self, older: &SnapshotCore<S>, entries: Range<usize>) -> Result<Vec<usize>, RegionError> {
        let mut found = Vec::new();
        for index in entries {
            if !older.has_the_same(EntryIndex(index), || self.contents(EntryIndex(index)))?.0 {
                found.push(index);
            }
        }
        Ok(found)
    }

    fn compare(&self, older: &SnapshotCore<S>, stretch: Range<usize>, how: Precision) -> Result<Pages, RegionError> {
        let _signals = SignalsBlocked::new();
        let mut differing = Pages::default();
        for piece in Piece::each(&stretch, self.pool().block_size) {
            let (new, old) = (self.hold(piece.index)?, older.hold(piece.index)?);
            let blocks = [&new, &old].map(Option::as_ref);
            let mut compare = |at: usize, page: usize| {
                if how == Precision::Written || page_of(new.as_ref(), at) != page_of(old.as_ref(), at) {
                    differing.add(page);
                }
            };
            if blocks[0].map(|block| block.block) != blocks[1].map(|block| block.block) {
                piece.pages().for_each(|(at, page)| compare(at, page));
                continue;
            }
            // Pages that both sets share are equal, and so are pages of the block that neither set replaces.
            let [new_pages, old_pages] = blocks.map(|block| block.and_then(HeldBlock::pages));
            PageSet::each_difference(new_pages, old_pages, |page| {
                if piece.within.contains(&(page * BASE_PAGE)) {
                    compare(page * BASE_PAGE, piece.first + page - piece.within.start / BASE_PAGE);
                }
            });
        }
        Ok(differing)
    }
}

/// How precisely changes are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// The blocks that differ.
    Block,
    /// The pages that may have been written.
    Written,
    /// The pages whose bytes differ.
    Page,
}

/// An iterator over the ranges that differ, in order. It searches only as far as it is asked to.
pub(crate) struct Found<'a, S: Sys, N: ?Sized> {
    newer: &'a N,
    older: &'a SnapshotCore<S>,
    precision: Precision,
    /// The first entry that was not searched yet.
    next: usize,
    /// Byte ranges of candidates that were not compared yet.
    candidates: VecDeque<Range<usize>>,
    /// Byte ranges that differ, not yet returned. The next one found may continue the last of them.
    found: VecDeque<Range<usize>>,
    failed: Option<RegionError>,
}

impl<'a, S: Sys, N: Newer<S> + ?Sized> Found<'a, S, N> {
    /// Both sides belong to one pool and have the same length.
    pub(crate) fn new(newer: &'a N, older: &'a SnapshotCore<S>, precision: Precision) -> Found<'a, S, N> {
        Found { newer, older, precision, next: 0, candidates: VecDeque::new(), found: VecDeque::new(), failed: None }
    }

    /// Ends the iteration with an error, unless it is over.
    pub(crate) fn fail(&mut self, error: RegionError) {
        if self.next != NO_MORE_ENTRIES {
            self.failed.get_or_insert(error);
        }
    }

    /// Searches one step further. False at the end.
    fn find(&mut self) -> Result<bool, RegionError> {
        if let Some(candidate) = self.candidates.pop_front() {
            let start = candidate.start / STRETCH_BYTES * STRETCH_BYTES;
            let stretch = candidate.start..candidate.end.min(start + STRETCH_BYTES);
            if stretch.end < candidate.end {
                self.candidates.push_front(stretch.end..candidate.end);
            }
            // `compare` returns the pages by value, so it writes to no memory of the program under its locks.
            let differing = self.newer.compare(self.older, stretch, self.precision)?;
            differing.runs().for_each(|run| append(&mut self.found, start + run.start..start + run.end));
            return Ok(true);
        }
        let (size, len) = (self.older.pool().block_size, self.older.entries.len());
        if self.next >= len {
            return Ok(false);
        }
        let entries = self.next..len.min(self.next + size.count(LOOKED_AT_ONCE_BYTES).max(1));
        self.next = entries.end;
        let candidates = self.newer.candidates(self.older, entries)?;
        let to = match self.precision {
            Precision::Block => &mut self.found,
            Precision::Written | Precision::Page => &mut self.candidates,
        };
        candidates.into_iter().for_each(|index| append(to, size.len_of(index)..size.len_of(index + 1)));
        Ok(true)
    }
}

/// Adds a range behind the others, or to the last one if that ends there.
fn append(ranges: &mut VecDeque<Range<usize>>, range: Range<usize>) {
    match ranges.back_mut().filter(|last| last.end == range.start) {
        Some(last) => last.end = range.end,
        None => ranges.push_back(range),
    }
}

impl<S: Sys, N: Newer<S> + ?Sized> Iterator for Found<'_, S, N> {
    type Item = Result<Range<usize>, RegionError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.found.len() < 2 && self.next != NO_MORE_ENTRIES {
            let found = if self.failed.is_some() { Ok(false) } else { self.find() };
            let goes_on = found.unwrap_or_else(|error| {
                self.failed = Some(error);
                false
            });
            if !goes_on {
                // The iteration ends after an error.
                self.next = NO_MORE_ENTRIES;
                self.candidates.clear();
            }
        }
        self.found.pop_front().map(Ok).or_else(|| self.failed.take().map(Err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pages: &[usize]) -> Pages {
        let mut all = Pages::default();
        pages.iter().for_each(|&page| all.add(page));
        all
    }

    #[test]
    fn pages_run_together_and_end_with_the_stretch() {
        let runs = |pages: &[usize]| -> Vec<_> {
            of(pages).runs().map(|run| (run.start / BASE_PAGE, run.end / BASE_PAGE)).collect()
        };
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[0]), [(0, 1)]);
        assert_eq!(runs(&[63, 64, 65, 127, 130]), [(63, 66), (127, 128), (130, 131)]);
        assert_eq!(runs(&[510, 511]), [(510, 512)]);
        assert_eq!(runs(&(0..512).collect::<Vec<_>>()), [(0, 512)]);
    }

    #[test]
    fn a_stretch_is_cut_at_blocks() {
        let pieces = |stretch: Range<usize>, block: usize| -> Vec<_> {
            let size = BlockSize::new(block).unwrap();
            let cut = |piece: Piece| (piece.index.0, piece.within.clone(), piece.first);
            Piece::each(&stretch, size).map(cut).collect()
        };
        let (small, huge, gigantic) = (64 << 10, 2 << 20, 1 << 30);
        assert_eq!(pieces(huge + small..huge + 3 * small, small), [(33, 0..small, 16), (34, 0..small, 32)]);
        assert_eq!(pieces(2 * huge..3 * huge, huge), [(2, 0..huge, 0)]);
        assert_eq!(pieces(gigantic + huge..gigantic + 2 * huge, gigantic), [(1, huge..2 * huge, 0)]);
    }
}
