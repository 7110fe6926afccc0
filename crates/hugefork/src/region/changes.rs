//! What differs between a region as it is now and a snapshot (snapshot/changes.rs).
//!
//! | entry | snapshot has the same block | it has another, or none |
//! |---|---|---|
//! | `Zero` | the same | zeros are compared |
//! | `Private`, `Shared`, `Borrowed`, `Lazy` | the same | the block is compared |
//! | `Split` | the same | as above, but dropped pages are zeros |
//! | `Overlaid`, `Sealed` | private pages are compared | these, and the block where no page is private |
//! | `Revoked` | an error | an error |
//!
//! Others may write meanwhile. The window's lock keeps the block where it is, and private pages from being folded;
//! their bytes are read word by word.
//!
//! The kernel is asked for private pages of 128 MiB at once, without a lock. An entry that is an overlay over the
//! snapshot's block before and after that, without private pages when the kernel looked, was the same as the snapshot
//! then, or at some time since: if it was anything else in between, it has become an overlay again without private
//! pages.

use std::ops::Range;

use super::core::RegionCore;
use crate::snapshot::changes::{Newer, Pages, Piece, page_of};
use crate::snapshot::core::SnapshotCore;
use crate::snapshot::hold::HeldBlock;
use crate::sync::SignalsBlocked;
use crate::sys::racing::{PageBytes, ZERO_PAGE, differs};
use crate::sys::{PageRun, Sys};
use crate::table::Entry;
use crate::table::split::SplitPage;
use crate::terms::error::RegionError;
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// So many runs of private pages are asked for at once.
const RUNS: usize = 64;

/// What a page of a region shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Showing {
    /// The block that the snapshot has, too.
    TheSame,
    Zeros,
    Block(BlockId),
    /// A private page.
    Private,
}

impl<S: Sys> Newer<S> for RegionCore<S> {
    fn candidates(&self, older: &SnapshotCore<S>, entries: Range<usize>) -> Result<Vec<usize>, RegionError> {
        let before: Vec<Entry> = entries.clone().map(|index| self.table.get(EntryIndex(index))).collect();
        let has_overlays = before.iter().any(|entry| entry.is_overlay());
        // If the kernel does not say, each may have some.
        let patched = if has_overlays { self.patched(entries.clone()).ok() } else { Some(Vec::new()) };
        let may_be_patched = |index: usize| match &patched {
            Some(patched) => patched.binary_search_by_key(&index, |patched| patched.index.0).is_ok(),
            None => true,
        };
        let mut found = Vec::new();
        for (index, before) in entries.zip(before) {
            let now = || self.table.get(EntryIndex(index));
            let (is_the_same, now) = older.has_the_same(EntryIndex(index), now)?;
            if !is_the_same || now.is_overlay() && (now != before || may_be_patched(index)) {
                found.push(index);
            }
        }
        Ok(found)
    }

    fn compare(&self, older: &SnapshotCore<S>, stretch: Range<usize>) -> Result<Pages, RegionError> {
        let size = self.pool().block_size;
        let _signals = SignalsBlocked::new();
        // One window has all of the stretch.
        let _window = self.table.lock(EntryIndex(size.count(stretch.start)));
        let mut differing = Pages::default();
        for piece in Piece::each(&stretch, size) {
            let old = older.hold(piece.index)?;
            let looked = Looked { region: self, piece: &piece, old: old.as_ref() };
            looked.compare(&mut differing)?;
        }
        Ok(differing)
    }
}

/// A piece of a region, under its window's lock, beside what the snapshot has there.
struct Looked<'a, S: Sys> {
    region: &'a RegionCore<S>,
    piece: &'a Piece,
    old: Option<&'a HeldBlock<'a, S>>,
}

impl<S: Sys> Looked<'_, S> {
    fn compare(&self, differing: &mut Pages) -> Result<(), RegionError> {
        let entry = self.region.table.get(self.piece.index);
        let is_the_same = entry.block() == self.old.map(HeldBlock::id);
        let below = match entry.block() {
            _ if is_the_same => Showing::TheSame,
            Some(block) => Showing::Block(block),
            None => Showing::Zeros,
        };
        match entry {
            Entry::Revoked => return Err(RegionError::Revoked),
            Entry::Zero | Entry::Private(_) | Entry::Shared(_) | Entry::Borrowed(_) | Entry::Lazy(_) => {
                self.compare_pages(self.piece.within.clone(), below, differing);
            }
            Entry::Split(_) if is_the_same => {}
            Entry::Split(_) => self.compare_split(below, differing),
            Entry::Overlaid(..) | Entry::Sealed(..) => self.compare_overlay(below, differing),
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

    /// Compares private pages, and what is below where there are none.
    fn compare_overlay(&self, below: Showing, differing: &mut Pages) {
        let start = self.region.pool().block_size.len_of(self.piece.index.0);
        let (mut at, end) = (self.piece.within.start, self.piece.within.end);
        let mut runs = [PageRun::default(); RUNS];
        while at < end {
            let part = self.region.addresses.part(&(start + at..start + end));
            let Ok(scanned) = self.region.pool().sys.private_pages(part, &mut runs) else {
                // What is shown can be compared without knowing what it is.
                return self.compare_pages(at..end, Showing::Private, differing);
            };
            let looked_at = at + scanned.looked_at;
            for run in &runs[..scanned.runs] {
                let run = self.region.offsets_of(run);
                self.compare_pages(at..run.start - start, below, differing);
                self.compare_pages(run.start - start..run.end - start, Showing::Private, differing);
                at = run.end - start;
            }
            self.compare_pages(at..looked_at, below, differing);
            at = looked_at;
        }
    }

    /// Compares pages of the piece that show the same kind of thing, in bytes of the block.
    fn compare_pages(&self, within: Range<usize>, shows: Showing, differing: &mut Pages) {
        if shows == Showing::TheSame {
            return;
        }
        for (at, page) in self.piece.pages().skip((within.start - self.piece.within.start) / BASE_PAGE) {
            if at >= within.end {
                return;
            }
            if self.differs(at, shows) {
                differing.add(page);
            }
        }
    }

    /// Whether the page that begins at byte `at` of the block differs.
    fn differs(&self, at: usize, shows: Showing) -> bool {
        let (pool, old) = (self.region.pool(), page_of(self.old, at));
        match shows {
            Showing::TheSame => false,
            Showing::Zeros => *old != ZERO_PAGE,
            // SAFETY: within the block, which the window's lock keeps in the entry; it has memory.
            Showing::Block(block) => unsafe { differs(pool.direct(block).add(at), old) },
            Showing::Private => {
                let start = pool.block_size.len_of(self.piece.index.0) + at;
                let (part, mut now): (_, PageBytes) =
                    (self.region.addresses.part(&(start..start + BASE_PAGE)), ZERO_PAGE);
                // SAFETY: an overlay can be read, and stays there under the window's lock.
                unsafe { pool.sys.read_shown(part, &mut now) };
                now != *old
            }
        }
    }
}
