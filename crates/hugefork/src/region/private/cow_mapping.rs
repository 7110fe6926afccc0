//! Page grain: blocks that are shown through a private mapping, so that the kernel copies the pages that are written.
//!
//! ```text
//!   first write ─▶ private mapping of a GiB ────▶ CowMapped: the kernel copies each page that is written
//!                                   write-protect │            ▲ allow writes: a write that is to copy no block
//!                                                 ▼            │
//!   block of its own ◀── write-back (write_back.rs), or a copy with the private pages ── read-only
//! ```
//! A snapshot write-protects all CoW mappings before it looks which pages are private, unless the kernel tells what is
//! written meanwhile (cut/ahead.rs, `capture_ahead`). A write-protected CoW mapping that has private pages is one that
//! a snapshot has captured (cut/capture.rs), or that the pool's thread leaves to the writer to copy (maintain.rs); or a
//! snapshot is just being taken, or has failed. Whether a write there copies pages or the block is decided in
//! write/by_page.rs (`grain`).

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::mapping::addresses::Place;
use crate::mapping::change::{Recount, Remapped, Right};
use crate::ranges::runs;
use crate::region::state::{RegionCore, Unresolved};
use crate::sys::{Access, Shows, Sys, SystemError};
use crate::table::transition::{Event, on_protect_failed};
use crate::table::{Entry, Locked, State};
use crate::types::options::CopyGrain;
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

impl<S: Sys> RegionCore<S> {
    /// Whether writes may be by page. An observer has to be told of each change of memory, and the kernel tells nobody.
    pub(in crate::region) fn may_cow_map(&self) -> bool {
        let pool = self.pool();
        pool.sys.has_cow_mappings()
            && pool.block_size.bytes() > BASE_PAGE
            && self.accounts.grain != CopyGrain::Block
            && self.observer.get().is_none()
    }

    /// Whether the kernel is to copy from the fork or snapshot on.
    pub(in crate::region) fn shows_by_page(&self) -> bool {
        self.accounts.grain == CopyGrain::Page && self.accounts.limit.is_none() && self.may_cow_map()
    }

    /// The runs of CoW mappings in `entries`.
    pub(in crate::region) fn cow_mappings(&self, entries: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        runs(entries, |index| self.table.get(EntryIndex(index)).is_cow_mapping())
    }

    /// Shows entries, whose blocks are neighbours, through a private mapping. None of them has private pages. If only
    /// the right to write is missing, they are CoW mappings all the same, and the next write asks for it.
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
        remapped.published(self.cow_mapped(locked, entries));
        self.noted(right)
    }

    /// Gives the right to write to write-protected CoW mappings.
    pub(in crate::region) fn allow_writes(
        &self,
        locked: Locked<'_>,
        entries: Range<usize>,
        place: Place,
    ) -> Result<(), Unresolved> {
        let allowed = self.site_at(place).reprotect(locked, self.bytes_of(&entries), Access::ReadWrite)?;
        let stored = match allowed.right() {
            Right::Granted => self.cow_mapped(locked, entries),
            Right::Unknown => self.protect_failed(locked, entries),
        };
        Ok(allowed.published(stored)?)
    }

    /// Shows all blocks among `entries` that others hold too through private mappings, as far as that can be done. On
    /// failure some of them may still be writable.
    pub(in crate::region) fn cow_map_each(
        &self,
        locked: Locked<'_>,
        entries: Range<usize>,
        place: Place,
    ) -> Result<(), Unresolved> {
        for run in self.in_a_row(entries) {
            let is_cow_mapping = |index: &usize| self.table.get(EntryIndex(*index)).is_cow_mapping();
            // The right to write is a tenth of the cost of a new mapping, if it takes few calls.
            let pieces =
                1 + run.clone().skip(1).filter(|index| is_cow_mapping(index) != is_cow_mapping(&(index - 1))).count();
            // What was captured for a snapshot stays over its mapping.
            let keeps_pages = run.clone().any(|index| self.captured.pages_of(EntryIndex(index)) > 0);
            if pieces > 1 + run.len() / 16 && !keeps_pages {
                self.cow_map_or_protect(locked, run, place)?;
                continue;
            }
            let mut piece = run.start;
            while piece < run.end {
                let is_new = !is_cow_mapping(&piece);
                let end = (piece..run.end).find(|index| is_cow_mapping(index) == is_new).unwrap_or(run.end);
                match is_new {
                    true => self.cow_map_or_protect(locked, piece..end, place)?,
                    // What stays write-protected is left to the fault of the next write.
                    false => drop(self.allow_writes(locked, piece..end, place)),
                }
                piece = end;
            }
        }
        Ok(())
    }

    /// Shows entries through one private mapping. If that cannot be done it takes away the right to write: what is
    /// parked has it still, and comes back with it.
    fn cow_map_or_protect(&self, locked: Locked<'_>, entries: Range<usize>, place: Place) -> Result<(), Unresolved> {
        if self.cow_map(locked, entries.clone(), place).is_ok() || place == Place::Own {
            return Ok(());
        }
        let protected = self.site_at(place).reprotect(locked, self.bytes_of(&entries), Access::Read)?;
        Ok(protected.published(Recount::default())?)
    }

    /// The runs of entries that can be shown through one private mapping each.
    fn in_a_row(&self, entries: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        self.rows(entries, |entry| match entry {
            Entry::Shared(block, _) | Entry::CowMapped(block, _, Access::Read) => Some((block, false)),
            Entry::Zero
            | Entry::Private(_)
            | Entry::Lazy(_)
            | Entry::Split(_)
            | Entry::CowMapped(_, _, Access::ReadWrite)
            | Entry::Revoked => None,
        })
    }

    /// The runs of entries with blocks in a row, of one kind. `kind` says which block and which kind.
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

    /// Notes that CoW mappings may not be writable that count as that.
    pub(in crate::region) fn noted(&self, right: Result<(), SystemError>) -> Result<(), Unresolved> {
        right.map_err(|error| {
            self.accounts.unsure.store(true, Ordering::Relaxed);
            Unresolved::Unmappable(error)
        })
    }

    fn cow_mapped(&self, locked: Locked<'_>, entries: Range<usize>) -> Recount {
        self.store(locked, Event::Write, entries, |_, old| old.in_state(State::CowMapped(Access::ReadWrite)))
    }

    pub(super) fn protect_failed(&self, locked: Locked<'_>, entries: Range<usize>) -> Recount {
        self.accounts.unsure.store(true, Ordering::Relaxed);
        self.store(locked, Event::ProtectFailed, entries, |_, old| old.in_state(on_protect_failed(old.state())))
    }
}
