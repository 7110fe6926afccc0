//! Page grain: CoW mappings show blocks through private mappings, so that the kernel copies the pages that are written.
//!
//! ```text
//!   first write ─▶ private mapping of a GiB ────▶ CowMapped: the kernel copies each page that is written
//!                                   write-protect │            ▲ allow writes: a write that copies pages only
//!                                                 ▼            │
//!   block of its own ◀── write-back (write_back.rs), or a copy with the private pages ── read-only
//! ```
//! A snapshot write-protects all CoW mappings before it scans for private pages, unless the kernel records which pages
//! are written meanwhile (cut/ahead.rs, `capture_ahead`). A write-protected CoW mapping has private pages for one of
//! these reasons: a snapshot has captured it (cut/capture.rs), the pool's thread leaves the copy of its block to the
//! writer (maintain.rs), a snapshot is being taken, or a snapshot has failed. Whether a write there copies pages or the
//! block is decided in write/by_page.rs (`grain`).

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::mapping::addresses::Place;
use crate::mapping::change::{Recount, Remapped};
use crate::ranges::runs;
use crate::region::state::{RegionCore, Unresolved};
use crate::sys::{Access, Shows, Sys, SystemError};
use crate::table::transition::Event;
use crate::table::{Entry, Locked, State};
use crate::types::options::CopyGrain;
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

impl<S: Sys> RegionCore<S> {
    /// Whether writes may be by page. An observer forbids it: it has to hear of each change of memory, and the kernel
    /// reports no copies of pages.
    pub(in crate::region) fn may_cow_map(&self) -> bool {
        let pool = self.pool();
        pool.sys.has_cow_mappings()
            && pool.block_size.bytes() > BASE_PAGE
            && self.accounts.grain != CopyGrain::Block
            && self.observer.get().is_none()
    }

    /// Whether a fork or snapshot makes CoW mappings of all blocks that it shares.
    pub(in crate::region) fn shows_by_page(&self) -> bool {
        self.accounts.grain == CopyGrain::Page && self.accounts.limit.is_none() && self.may_cow_map()
    }

    /// The runs of CoW mappings in `entries`.
    pub(in crate::region) fn cow_mappings(&self, entries: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        runs(entries, |index| self.table.get(EntryIndex(index)).is_cow_mapping())
    }

    /// Shows entries, whose blocks are neighbours, through a private mapping. None of them has private pages. If only
    /// the right to write is refused, the entries are CoW mappings all the same, and the next write asks for the right
    /// again.
    pub(in crate::region) fn cow_map(
        &self,
        locked: Locked<'_>,
        entries: Range<usize>,
        place: Place,
    ) -> Result<(), Unresolved> {
        let Some(start) = self.table.get(EntryIndex(entries.start)).block() else { return Ok(()) };
        let shows = Shows::CowMapping { start, access: Access::ReadWrite };
        let remapped = self.remap(locked, place, &entries, shows)?;
        self.publish_cow_mappings(locked, entries, remapped)
    }

    pub(in crate::region) fn publish_cow_mappings(
        &self,
        locked: Locked<'_>,
        entries: Range<usize>,
        remapped: Remapped<'_, S>,
    ) -> Result<(), Unresolved> {
        let right = remapped.right();
        let state = State::CowMapped(Access::ReadWrite);
        remapped.published(self.store(locked, Event::Write, entries, |_, old| old.in_state(state)));
        self.noted(right)
    }

    /// Makes write-protected CoW mappings writable.
    pub(in crate::region) fn allow_writes(
        &self,
        locked: Locked<'_>,
        entries: Range<usize>,
        place: Place,
    ) -> Result<(), Unresolved> {
        let writable = |_| State::CowMapped(Access::ReadWrite);
        Ok(self.reprotect(locked, place, entries, Access::ReadWrite, Event::Write, writable)?)
    }

    /// Shows the shared blocks among `entries` through private mappings, as far as that can be done. After a failure
    /// some of them may still be writable.
    pub(in crate::region) fn cow_map_each(
        &self,
        locked: Locked<'_>,
        entries: Range<usize>,
        place: Place,
    ) -> Result<(), Unresolved> {
        for run in self.in_a_row(entries) {
            // A mapping with captured pages must stay, because the pages are private pages of it.
            let keeps_pages = run.clone().any(|index| self.captured.pages_of(EntryIndex(index)) > 0);
            // To make a CoW mapping writable costs a tenth of a new mapping, if it takes few calls.
            if self.mappings(run.clone()).count() > 1 + run.len() / 16 && !keeps_pages {
                self.cow_map_or_protect(locked, run, place)?;
                continue;
            }
            for one in self.mappings(run) {
                match self.table.get(EntryIndex(one.start)).is_cow_mapping() {
                    false => self.cow_map_or_protect(locked, one, place)?,
                    // A CoW mapping that stays write-protected is left to the fault of the next write.
                    true => drop(self.allow_writes(locked, one, place)),
                }
            }
        }
        Ok(())
    }

    /// Shows entries through one private mapping. If that fails for parked entries, this takes away the right to write,
    /// because parked contents still have it and would come back with it.
    fn cow_map_or_protect(&self, locked: Locked<'_>, entries: Range<usize>, place: Place) -> Result<(), Unresolved> {
        if self.cow_map(locked, entries.clone(), place).is_ok() || place == Place::Own {
            return Ok(());
        }
        let protected = self.site_at(place).reprotect(locked, self.bytes_of(&entries), Access::Read)?;
        Ok(protected.published(Recount::default())?)
    }

    /// The runs of entries that can be shown through one private mapping each.
    fn in_a_row(&self, entries: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        self.rows(entries, |entry| {
            let is_read_only = matches!(entry.state(), State::Shared | State::CowMapped(Access::Read));
            entry.block().filter(|_| is_read_only).map(|block| (block, false))
        })
    }

    /// The runs of entries with consecutive blocks and of the same kind. `kind` gives the block and the kind of an
    /// entry; `None` keeps the entry out of all runs.
    pub(super) fn rows(
        &self,
        entries: Range<usize>,
        kind: impl Fn(Entry) -> Option<(BlockId, bool)>,
    ) -> impl Iterator<Item = Range<usize>> {
        let mut rest = entries;
        std::iter::from_fn(move || {
            let at = |index: usize| kind(self.table.get(EntryIndex(index)));
            let start = rest.find(|&index| at(index).is_some())?;
            let follows = |index: usize| at(index - 1).map(|(before, kind)| (before.offset(1), kind)) == at(index);
            rest.start = rest.clone().find(|&index| !follows(index)).unwrap_or(rest.end);
            Some(start..rest.start)
        })
    }

    /// If `right` is an error, notes that some CoW mappings may count as writable and be read-only.
    pub(in crate::region) fn noted(&self, right: Result<(), SystemError>) -> Result<(), Unresolved> {
        right.map_err(|error| {
            self.accounts.unsure.store(true, Ordering::Relaxed);
            Unresolved::Unmappable(error)
        })
    }
}
