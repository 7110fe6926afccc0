//! Finds the differences between a region as it is now and a snapshot (snapshot/changes.rs).
//!
//! | the region's entry | if the snapshot has the same block | if it has another block or none |
//! |---|---|---|
//! | `Zero` | no difference | zeros are compared |
//! | `Private`, `Shared`, `Lazy` | no difference | the block is compared |
//! | `Split` | no difference; dropped pages are zeros in both | the block is compared, with zeros for dropped pages |
//! | `CowMapped` | private pages are compared | private pages are compared, and the block elsewhere |
//! | `Revoked` | an error | an error |
//!
//! Other threads may write meanwhile. The window's lock keeps the block in its entry, and keeps private pages from
//! being written back. The bytes of a page are read word by word.
//!
//! Entries of 128 MiB are compared together, also under the locks of their windows, for two reasons. A fault makes a
//! block writable before its entry says so, and the calling thread may have written there already, without a fault. And
//! a write-back may have parked private pages when the kernel scans, and have moved them back since
//! (private/write_back.rs).

use std::ops::Range;

use crate::mapping::addresses::Place;
use crate::mem::{EngineArc, EngineVec, Own};
use crate::pool::page_set::PageSet;
use crate::region::state::RegionCore;
use crate::snapshot::changes::{Newer, Pages, Piece, Precision, page_of};
use crate::snapshot::core::SnapshotCore;
use crate::snapshot::hold::HeldBlock;
use crate::snapshot::pages::Contents;
use crate::sync::SignalsBlocked;
use crate::sys::racing::{ZERO_PAGE, differs};
use crate::sys::{PageRun, ScanFor, Scanned, Sys, SystemError};
use crate::table::Entry;
use crate::table::split::SplitPage;
use crate::types::error::RegionError;
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// The runs of private pages that one scan asks for.
const RUNS_AT_ONCE: usize = 64;

/// If runs lie at least this far from each other on average, one scan asks for many of them.
const SPARSE_BYTES_A_RUN: usize = 256 << 10;

/// In blocks of at least this size it pays to skip the rest of a block.
const WORTH_LEAVING_OUT_BYTES: usize = 1 << 20;

/// The contents that a page of a region shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Showing {
    /// The block that the snapshot has, too. The snapshot may have pages that override some of its pages.
    TheSame,
    Zeros,
    Block(BlockId),
    /// A private page.
    Private,
}

impl<S: Sys> Newer<S> for RegionCore<S> {
    fn candidates(&self, older: &SnapshotCore<S>, entries: Range<usize>) -> Result<Vec<usize>, RegionError> {
        let mut found = self.differing(older, entries)?;
        found.sort_unstable();
        found.dedup();
        // No lock is held any more, because this allocates from the program's memory.
        Ok(found.into_iter().collect())
    }

    fn compare(&self, older: &SnapshotCore<S>, stretch: Range<usize>, how: Precision) -> Result<Pages, RegionError> {
        let _signals = SignalsBlocked::new();
        let mut differing = Pages::default();
        let turn = self.try_take_turn();
        for piece in Piece::each(&stretch, self.pool().block_size) {
            // The block is held before the window is locked and released after that, because a release gives memory
            // back.
            let old = older.hold(piece.index)?;
            // The region lock, too: a reset at one moment locks no window, and moves private pages elsewhere meanwhile.
            let _held = self.lock_entry(piece.index);
            let last = turn.as_ref().and_then(|_| self.told_by(piece.index));
            Looked { region: self, piece: &piece, old: old.as_ref(), last: last.as_deref(), how }
                .compare(&mut differing)?;
        }
        Ok(differing)
    }
}

impl<S: Sys> RegionCore<S> {
    /// Finds those of `entries` that have another block than `older`, or private pages over the same block.
    fn differing(&self, older: &SnapshotCore<S>, entries: Range<usize>) -> Result<EngineVec<usize>, RegionError> {
        let mut found = EngineVec::new_in(Own);
        let _signals = SignalsBlocked::new();
        let turn = self.try_take_turn();
        // Under these locks, entries say what is shown, and private pages are at the region's own addresses.
        // A reset at one moment locks no window, but the region.
        let _held = self.lock_entries(&entries);
        let (mut cow_mappings, mut are_told) = (0..0, false);
        for index in entries {
            let last = turn.as_ref().and_then(|_| self.told_by(EntryIndex(index)));
            let now = || Contents::of(self.table.get(EntryIndex(index)), last.as_deref());
            let (is_the_same, now) = older.has_the_same(EntryIndex(index), now)?;
            if !is_the_same {
                found.push(index);
            } else if now.is_cow_mapping() {
                if cow_mappings.end < index || are_told != last.is_some() {
                    self.add_patched(cow_mappings, are_told, &mut found);
                    (cow_mappings, are_told) = (index..index, last.is_some());
                }
                cow_mappings.end = index + 1;
            }
        }
        self.add_patched(cow_mappings, are_told, &mut found);
        Ok(found)
    }

    /// The last set that was captured of a CoW mapping, if it describes all private pages that have a mark. The caller
    /// has the region's turn and the lock of the window.
    fn told_by(&self, index: EntryIndex) -> Option<EngineArc<PageSet<S>>> {
        let entry = self.table.get(index);
        let is_told = entry.is_cow_mapping() && self.captured.has_all_marked(index);
        self.captured.last(index).filter(|last| is_told && Some(last.base) == entry.block())
    }

    /// Adds those of `cow_mappings` that may differ: those with private pages, or with unmarked pages if sets describe
    /// the pages with a mark (`are_told`).
    fn add_patched(&self, cow_mappings: Range<usize>, are_told: bool, found: &mut EngineVec<usize>) {
        let mut runs = [PageRun::default(); RUNS_AT_ONCE];
        let (mut at_once, base) = (RUNS_AT_ONCE, self.addresses.base());
        let mut bytes = self.bytes_of(&cow_mappings);
        while !bytes.is_empty() {
            let (part, wanted) = (self.addresses.part(&bytes), RegionCore::<S>::wanted(are_told));
            let Ok(scanned) = self.pool().sys.scan(part, wanted, &mut runs[..at_once]) else {
                // If the scan fails, each entry may have private pages.
                return found.extend(self.touched(&bytes));
            };
            at_once = self.runs_next(&scanned);
            bytes.start += scanned.looked_at;
            for run in &runs[..scanned.runs] {
                let patched = self.touched(&(run.start as usize - base..run.end as usize - base));
                bytes.start = bytes.start.max(self.pool().block_size.len_of(patched.end));
                found.extend(patched);
            }
        }
    }

    /// The pages to scan for: those without a mark if a set describes the others, and else all private pages.
    fn wanted(are_told: bool) -> ScanFor {
        if are_told { ScanFor::Unmarked } else { ScanFor::Private }
    }

    /// The number of runs that the next scan asks for. A call takes as long as a scan of 300 pages. So where runs are
    /// dense, one run for each block is enough.
    fn runs_next(&self, scanned: &Scanned) -> usize {
        let are_dense = scanned.runs * SPARSE_BYTES_A_RUN > scanned.looked_at;
        if are_dense && self.pool().block_size.bytes() >= WORTH_LEAVING_OUT_BYTES { 1 } else { RUNS_AT_ONCE }
    }
}

/// A piece of a region, under its window's lock, and the snapshot's block there.
struct Looked<'a, S: Sys> {
    region: &'a RegionCore<S>,
    piece: &'a Piece,
    old: Option<&'a HeldBlock<'a, S>>,
    /// The set that describes the private pages with a mark.
    last: Option<&'a PageSet<S>>,
    how: Precision,
}

impl<S: Sys> Looked<'_, S> {
    fn compare(&self, differing: &mut Pages) -> Result<(), RegionError> {
        let entry = self.region.table.get(self.piece.index);
        let is_the_same = entry.block() == self.old.map(|old| old.block);
        let below = match entry.block() {
            _ if is_the_same => Showing::TheSame,
            Some(block) => Showing::Block(block),
            None => Showing::Zeros,
        };
        match entry {
            Entry::Revoked => return Err(RegionError::Revoked),
            Entry::Split(_) if !is_the_same => self.compare_split(below, differing),
            Entry::Zero | Entry::Private(_) | Entry::Shared(..) | Entry::Lazy(_) | Entry::Split(_) => {
                self.compare_pages(self.piece.within.clone(), below, differing);
            }
            Entry::CowMapped(..) => self.compare_cow_mapping(below, differing),
        }
        Ok(())
    }

    fn compare_split(&self, below: Showing, differing: &mut Pages) {
        for (at, _) in self.piece.pages() {
            let shows = match self.region.table.page(self.piece.index, at / BASE_PAGE) {
                SplitPage::Dropped => Showing::Zeros,
                SplitPage::Readable | SplitPage::Writable | SplitPage::Lazy => below,
            };
            self.compare_pages(at..at + BASE_PAGE, shows, differing);
        }
    }

    /// Compares private pages, and the block where no page is private. If the last set describes the pages with a mark,
    /// compares the pages without one, and the pages of which that set has another copy than the snapshot.
    fn compare_cow_mapping(&self, below: Showing, differing: &mut Pages) {
        let start = self.region.pool().block_size.len_of(self.piece.index.0);
        let last = self.last.filter(|_| below == Showing::TheSame);
        if last.is_some() {
            PageSet::each_difference(last, self.old.and_then(HeldBlock::pages), |page| {
                let at = page * BASE_PAGE;
                self.compare_pages(at..at + BASE_PAGE, Showing::Private, differing);
            });
        }
        let (mut at, end) = (self.piece.within.start, self.piece.within.end);
        let (bytes, wanted) = (start + at..start + end, RegionCore::<S>::wanted(last.is_some()));
        let mut runs = [PageRun::default(); RUNS_AT_ONCE];
        let scanned = self.region.scan(wanted, (&bytes, Place::Own), &mut runs, |run, _| {
            if last.is_none() {
                self.compare_pages(at..run.start - start, below, differing);
            }
            at = run.end - start;
            let told = at - BASE_PAGE * usize::from(seeded!("changes-miss-the-end-of-a-run"));
            self.compare_pages(run.start - start..told, Showing::Private, differing);
            Ok::<(), SystemError>(())
        });
        match scanned {
            Ok(()) if last.is_some() => {}
            Ok(()) => self.compare_pages(at..end, below, differing),
            // Without the scan, the bytes at the addresses are compared, whichever pages are private.
            Err(_) => self.compare_pages(at..end, Showing::Private, differing),
        }
    }

    /// Compares pages of the piece that all show `shows`. `within` is in bytes of the block.
    fn compare_pages(&self, within: Range<usize>, shows: Showing, differing: &mut Pages) {
        if shows == Showing::TheSame && self.old.is_none_or(|old| old.pages().is_none()) {
            return;
        }
        let within = within.start.max(self.piece.within.start)..within.end.min(self.piece.within.end);
        for at in within.step_by(BASE_PAGE) {
            if self.how != Precision::Page && shows != Showing::TheSame || self.differs(at, shows) {
                differing.add(self.piece.number_of(at));
            }
        }
    }

    /// Whether the page that begins at byte `at` of the block differs.
    fn differs(&self, at: usize, shows: Showing) -> bool {
        let (pool, old) = (self.region.pool(), page_of(self.old, at));
        match shows {
            Showing::TheSame => {
                self.old.is_some_and(|old| old.page_in_place(at).is_some_and(|page| page != old.page_below(at)))
            }
            Showing::Zeros => *old != ZERO_PAGE,
            // SAFETY: `at` lies within the block, which the window's lock keeps in the entry; the block has memory.
            Showing::Block(block) => unsafe { differs(pool.direct(block).add(at), old) },
            Showing::Private => {
                let start = pool.block_size.len_of(self.piece.index.0) + at;
                let part = self.region.addresses.part(&(start..start + BASE_PAGE));
                // SAFETY: a CoW mapping can be read, and stays there under the window's lock.
                unsafe { pool.sys.shown_differs(part, old) }
            }
        }
    }
}
