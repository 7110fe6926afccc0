//! Counts the edges between mappings (VMAs) from the entries, by the rules by which the kernel merges mappings.
//!
//! ```text
//! table    | Zero | Zero | Private 8 | Private 9 | Shared 3 | Zero …
//! mapped   | zeros       | blocks 8–9, rw        | block 3,r| zeros …      one mapping each
//! edges                  ▲                       ▲          ▲
//! ```
//! Two neighbours are one mapping if the second shows the place in the pool that follows the first's. So each place in
//! the pool is a number. A run of pages has a [`Face`] of two such numbers: the place that its first page shows, and
//! the place that would continue its last page.
//!
//! The count may be too low: it counts two neighbouring CoW mappings as one, but the kernel keeps them as two if both
//! had private pages before they became neighbours. There is at most one such pair for each run that became a CoW
//! mapping at once (1 GiB), and the budget has a margin for these.

use std::ops::Range;

use crate::pool::core::PoolCore;
use crate::sys::{Access, Merging, Shows, Sys};
use crate::table::split::SplitPage;
use crate::table::{Entries, Entry, Table};
use crate::types::options::Writers;
use crate::units::{BASE_PAGE, BlockId, BlockSize, EntryIndex};

/// The two ends of a run of pages as numbers, and the edges inside the run.
#[derive(Clone, Copy)]
pub(crate) struct Face {
    /// The place shown first.
    first: u64,
    /// The place that would continue the run.
    after: u64,
    /// The number of edges inside the run.
    inner: usize,
}

const ZEROS: u64 = u64::MAX;
const HIDDEN: u64 = u64::MAX - 1;
/// As `after`: no place continues the run.
const NOTHING: u64 = u64::MAX - 2;

/// A count of edges, made from left to right.
#[derive(Clone, Copy, Default)]
pub(crate) struct Edges {
    left: Option<u64>,
    pub(crate) count: usize,
}

impl Edges {
    pub(crate) fn add(&mut self, face: Face) {
        self.count += face.inner;
        self.end_at(face);
    }

    /// Counts the edge before `face`, but not the edges inside it.
    fn end_at(&mut self, face: Face) {
        if let Some(left) = self.left {
            self.count += usize::from(left != face.first);
        }
        self.left = Some(face.after);
    }
}

/// The entries of a region or snapshot, as the kernel's mappings show them.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a> {
    entries: &'a Entries,
    /// For a region: the table, which has the page states of split blocks.
    table: Option<&'a Table>,
    merging: Merging,
    size: BlockSize,
    writers: Writers,
}

impl<'a> Shown<'a> {
    pub(crate) fn of_region<S: Sys>(pool: &PoolCore<S>, table: &'a Table, writers: Writers) -> Shown<'a> {
        let (merging, size) = (pool.sys.merging(), pool.block_size);
        Shown { entries: table, table: Some(table), merging, size, writers }
    }

    pub(crate) fn of_snapshot<S: Sys>(pool: &PoolCore<S>, entries: &'a Entries) -> Shown<'a> {
        let (merging, size) = (pool.sys.merging(), pool.block_size);
        Shown { entries, table: None, merging, size, writers: Writers::Fault }
    }

    /// Whether any of the blocks in `bytes` is shown through a private mapping.
    pub(crate) fn has_cow_mapping(&self, bytes: Range<usize>) -> bool {
        let mut entries = (self.size.count(bytes.start)..self.size.count(bytes.end)).map(EntryIndex);
        entries.any(|index| self.entries.get(index).is_cow_mapping())
    }

    /// The face of `len` bytes that show `shows`.
    pub(crate) fn face(&self, shows: Shows<usize>, len: usize) -> Face {
        let (first, after, inner) = match (shows, self.merging) {
            (Shows::Zeros, _) => (ZEROS, ZEROS, 0),
            (Shows::Hidden, _) => (HIDDEN, HIDDEN, 0),
            (Shows::Memory { start, access }, Merging::Merge) => (key(start, access), key(start + len, access), 0),
            (Shows::Memory { start, access }, Merging::Separate) => {
                (key(start, access), NOTHING, self.size.count(len).saturating_sub(1))
            }
            (Shows::CowMapping { start, access }, _) => {
                (key(start, access) | COW_MAPPING, key(start + len, access) | COW_MAPPING, 0)
            }
        };
        Face { first, after, inner }
    }

    /// The face of `count` like entries that begin at `start` with the entry `first`.
    pub(crate) fn face_of(&self, start: EntryIndex, count: usize, first: Entry) -> Face {
        match self.shows(first) {
            Ok(shows) => self.face(shows, self.size.len_of(count)),
            Err(block) => self.face_of_pages(start, block, 0..self.size.bytes() / BASE_PAGE),
        }
    }

    fn face_of_pages(&self, index: EntryIndex, block: BlockId, pages: Range<usize>) -> Face {
        let mut edges = Edges::default();
        let first = self.face(self.page_of(index, block, pages.start), BASE_PAGE).first;
        for page in pages {
            edges.add(self.face(self.page_of(index, block, page), BASE_PAGE));
        }
        Face { first, after: edges.left.unwrap_or(NOTHING), inner: edges.count }
    }

    /// The memory that a page of a split block shows.
    fn page_of(&self, index: EntryIndex, block: BlockId, page: usize) -> Shows<usize> {
        let is = self.table.map_or(SplitPage::Readable, |table| table.page(index, page));
        is.shows(self.size.len_of(block.index()) + page * BASE_PAGE)
    }

    /// The face of the page at byte `at`.
    fn page(&self, at: usize) -> Face {
        let (index, by) = (EntryIndex(self.size.count(at)), self.size.within(at));
        let shows = match self.shows(self.entries.get(index)) {
            Ok(shows) => shows.map(|start| start + by),
            Err(block) => self.page_of(index, block, by / BASE_PAGE),
        };
        self.face(shows, BASE_PAGE)
    }

    /// The memory that an entry shows, or its block if it is split. In a region without faults, addresses without a
    /// block are hidden.
    fn shows(&self, entry: Entry) -> Result<Shows<usize>, BlockId> {
        match (entry.shows(), entry.block(), self.writers) {
            (None, Some(block), _) => Err(block),
            (None, None, _) | (Some(Shows::Zeros), _, Writers::NeverFault) => Ok(Shows::Hidden),
            (Some(shows), ..) => Ok(shows.map(|start| self.size.len_of(start.index()))),
        }
    }

    fn len(&self) -> usize {
        self.size.len_of(self.entries.len())
    }

    /// The number of edges added if these bytes come to show `face`.
    pub(crate) fn more_edges(&self, bytes: &Range<usize>, face: Face) -> usize {
        let with_neighbours = bytes.start.saturating_sub(BASE_PAGE)..(bytes.end + BASE_PAGE).min(self.len());
        let mut now = Edges::default();
        with_neighbours.clone().step_by(BASE_PAGE).for_each(|at| now.add(self.page(at)));
        let mut then = Edges::default();
        if with_neighbours.start < bytes.start {
            then.add(self.page(with_neighbours.start));
        }
        then.add(face);
        if bytes.end < with_neighbours.end {
            then.add(self.page(bytes.end));
        }
        then.count.saturating_sub(now.count)
    }

    /// The maximal number of edges added if `bytes` get this access. Inside, pages only become more alike, so only the
    /// two ends count.
    pub(crate) fn more_edges_protected(&self, bytes: &Range<usize>, access: Access) -> usize {
        let edge = |left: u64, right: u64| isize::from(left != right);
        let (first, after) = (self.page(bytes.start).first, self.page(bytes.end - BASE_PAGE).after);
        let mut more = 0;
        if bytes.start > 0 {
            let left = self.page(bytes.start - BASE_PAGE).after;
            more += edge(left, with_access(first, access)) - edge(left, first);
        }
        if bytes.end < self.len() {
            let right = self.page(bytes.end).first;
            more += edge(with_access(after, access), right) - edge(after, right);
        }
        usize::try_from(more).unwrap_or(0)
    }

    /// The memory that byte `at` shows, and the number of bytes of its entry from there on that one mapping shows.
    pub(crate) fn shown_from(&self, at: usize) -> (usize, Shows<usize>) {
        let (index, by) = (EntryIndex(self.size.count(at)), self.size.within(at));
        match self.shows(self.entries.get(index)) {
            Ok(shows) => (self.size.bytes() - by, shows.map(|start| start + by)),
            Err(block) => {
                let (start, pages) = (by / BASE_PAGE, self.size.bytes() / BASE_PAGE);
                let begins = |page: &usize| self.face_of_pages(index, block, page - 1..page + 1).inner > 0;
                let end = (start + 1..pages).find(begins).unwrap_or(pages);
                ((end - start) * BASE_PAGE, self.page_of(index, block, start))
            }
        }
    }

    fn get(&self, index: usize) -> Face {
        self.face_of(EntryIndex(index), 1, self.entries.get(EntryIndex(index)))
    }

    /// Starts a count of edges at the entry `start`, with the edge before it.
    pub(crate) fn edges_from(&self, start: usize) -> Edges {
        let left = if start > 0 { Some(self.get(start - 1).after) } else { None };
        Edges { left, count: 0 }
    }

    /// Adds the edge before the entry `end`, and returns the count.
    pub(crate) fn edges_to(&self, mut edges: Edges, end: usize) -> usize {
        if end < self.entries.len() {
            edges.end_at(self.get(end));
        }
        edges.count
    }

    /// The edges inside `entries` and at both ends.
    pub(crate) fn edges(&self, entries: Range<usize>) -> usize {
        let (mut edges, mut index) = (self.edges_from(entries.start), entries.start);
        while index < entries.end {
            let count = self.entries.alike(index..entries.end);
            edges.add(self.face_of(EntryIndex(index), count, self.entries.get(EntryIndex(index))));
            index += count;
        }
        self.edges_to(edges, entries.end)
    }

    /// The number of edges added inside `entries` and at both ends if they come to show `face`.
    pub(crate) fn more_edges_as(&self, entries: &Range<usize>, face: Face) -> usize {
        let mut then = self.edges_from(entries.start);
        then.add(face);
        self.edges_to(then, entries.end).saturating_sub(self.edges(entries.clone()))
    }

    /// The maximal runs of entries that are one mapping each, with the first entry of each run. No entry may be split.
    pub(crate) fn runs(self) -> impl Iterator<Item = (Range<usize>, Entry)> + 'a {
        let mut start = 0;
        std::iter::from_fn(move || {
            if start == self.entries.len() {
                return None;
            }
            let mut end = start + 1;
            while end < self.entries.len() && self.get(end - 1).after == self.get(end).first {
                end += 1;
            }
            let first = self.entries.get(EntryIndex(start));
            Some((std::mem::replace(&mut start, end)..end, first))
        })
    }
}

/// The same place in the pool with another access. Numbers that are no place have no access.
fn with_access(key: u64, access: Access) -> u64 {
    if key >= NOTHING { key } else { key & !1 | u64::from(access == Access::ReadWrite) }
}

/// The number of a place in the pool with an access.
fn key(start: usize, access: Access) -> u64 {
    (start as u64) << 2 | u64::from(access == Access::ReadWrite)
}

/// The bit that marks a place shown through a private mapping.
const COW_MAPPING: u64 = 0b10;
