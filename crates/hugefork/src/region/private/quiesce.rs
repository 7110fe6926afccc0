//! Keeping writers off, and resuming them.
//!
//! | way | where the pages are | writers |
//! |---|---|---|
//! | held | parked | wait, system calls too, until they are resumed |
//! | write-protected, or protected | where they belong | fault; system calls that write fail |
//!
//! To hold them takes more mappings, and a process that may handle the faults of system calls.

use std::ops::Range;

use crate::mapping::addresses::Place;
use crate::mapping::change::{Recount, Right};
use crate::ranges::runs;
use crate::region::state::{RegionCore, Unresolved};
use crate::sys::{Access, Sys};
use crate::table::split::SplitPage;
use crate::table::transition::{Event, on_write_protect};
use crate::table::{Entry, Locked};
use crate::types::options::Writers;
use crate::units::{EntryIndex, HUGE_PAGE};

/// The CoW mappings that are write-protected at once: the kernel looks at each page, which takes 2 ms for 1 GiB.
const PROTECTED_AT_ONCE_BYTES: usize = 64 << 20;

impl<S: Sys> RegionCore<S> {
    /// Keeps writers off CoW mappings by having them wait, system calls too. The pages are parked meanwhile. False if
    /// that cannot be done: then they are to be write-protected.
    pub(in crate::region) fn holds(&self, locked: Locked<'_>, entries: &Range<usize>) -> bool {
        // Two mappings more here, and two for the parking.
        self.addresses.can_hold() && self.pool().sys.budget().fits(4) && self.site().park(locked, entries)
    }

    /// Keeps writers off CoW mappings, in the one way or the other. Returns where their pages are.
    pub(super) fn keep_writers_off(&self, locked: Locked<'_>, entries: &Range<usize>) -> Result<Place, Unresolved> {
        if self.holds(locked, entries) {
            return Ok(Place::Parked);
        }
        if self.accounts.writers == Writers::NeverFault {
            return Err(Unresolved::NotYet);
        }
        self.write_protect(locked, entries.clone())?;
        Ok(Place::Own)
    }

    /// Resumes those who waited, after something else was shown at `entries`, whose pages were in `place`.
    pub(in crate::region) fn resume(&self, entries: &Range<usize>, place: Place) {
        if place == Place::Parked {
            self.site().resume(entries);
        }
    }

    /// Takes away the right to write to CoW mappings. If they have none by their state, this is done all the same: a
    /// call that failed may have left some. It costs nothing where nothing changes.
    pub(in crate::region) fn write_protect(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
        let write_protected = self.site().reprotect(locked, self.bytes_of(&entries), Access::Read)?;
        let stored = match write_protected.right() {
            Right::Granted => {
                self.store(locked, Event::WriteProtect, entries, |_, old| old.in_state(on_write_protect(old.state())))
            }
            Right::Unknown => self.protect_failed(locked, entries),
        };
        Ok(write_protected.published(stored)?)
    }

    /// Write-protects all CoW mappings, some at a time, unless writes to them are prepared. The caller has blocked the
    /// program's signals.
    pub(in crate::region) fn write_protect_all(&self) -> Result<(), Unresolved> {
        let may_be_protected = |index: usize| {
            let index = EntryIndex(index);
            self.table.get(index).is_cow_mapping() && !self.prepared.has(index)
        };
        let mut rest = 0..self.table.len();
        while let Some(run) = self.cow_mappings(rest.clone()).next() {
            let windows = self.windows_of(&run);
            let at_once = PROTECTED_AT_ONCE_BYTES / self.pool().block_size.bytes().max(HUGE_PAGE);
            let windows = windows.start..windows.end.min(windows.start + at_once.max(1));
            rest.start = run.end.min(self.table.entries_of(windows.clone()).end);
            let windows = self.table.lock_windows(windows);
            let publishing = self.lock.shared();
            // Others may have changed it since.
            for run in runs(run.start..rest.start, may_be_protected) {
                self.write_protect(Locked::windows(&windows, &publishing), run)?;
            }
        }
        Ok(())
    }

    /// Takes away the right to write to `entries`. Their mappings are counted when all runs are done.
    pub(in crate::region) fn protect(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
        let bytes = self.bytes_of(&entries);
        let protected = self.site().reprotect(locked, bytes, Access::Read)?;
        for split in entries.filter(|_| self.table.has_splits()).filter_map(|index| self.split(EntryIndex(index))) {
            for page in split.pages.runs_of(0..split.pages.len(), SplitPage::Writable) {
                split.pages.set(page, SplitPage::Readable);
            }
        }
        Ok(protected.published(Recount::default())?)
    }

    /// Takes away the right to write to split blocks among `entries`, which nothing else keeps writers off.
    pub(in crate::region) fn protect_split(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
        let is_split = |index: &usize| matches!(self.table.get(EntryIndex(*index)), Entry::Split(_));
        let mut split = entries.filter(|index| self.table.has_splits() && is_split(index));
        split.try_for_each(|index| self.protect(locked, index..index + 1))
    }

    /// The runs of entries, of those that others hold too or that are CoW mappings, which are one mapping each, as far
    /// as that can be known.
    pub(in crate::region) fn mappings(&self, entries: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        self.rows(entries, |entry| match entry {
            Entry::Shared(block, _) => Some((block, false)),
            Entry::CowMapped(block, ..) => Some((block, true)),
            Entry::Zero | Entry::Private(_) | Entry::Lazy(_) | Entry::Split(_) | Entry::Revoked => None,
        })
    }

    /// Has whoever uses blocks that others hold too, or CoW mappings, among `entries` wait, system calls too. They are
    /// parked from then on. False if that cannot be done, and then nothing has changed.
    pub(in crate::region) fn park_all(&self, locked: Locked<'_>, entries: Range<usize>) -> bool {
        let (site, mappings) = (self.site(), self.mappings(entries.clone()).count());
        // As many for the parking, and one at each edge.
        if !self.addresses.can_hold() || !self.pool().sys.budget().fits(2 * mappings + 4) {
            return false;
        }
        for one in self.mappings(entries.clone()) {
            if !site.park(locked, &one) {
                self.resume_all(locked, entries.start..one.start);
                return false;
            }
        }
        true
    }

    /// Shows what is parked where it belongs, and resumes all who wait for it.
    pub(in crate::region) fn resume_all(&self, locked: Locked<'_>, entries: Range<usize>) {
        let site = self.site();
        self.mappings(entries.clone()).for_each(|one| site.unpark(locked, &one));
        if !entries.is_empty() {
            site.resume(&entries);
        }
    }

    /// After something failed: what was parked is there again. What was write-protected may be writable, or have
    /// private pages. It is writable by its state again, and the next write there sees to it that it is.
    pub(in crate::region) fn resume_after_failure(&self, locked: Locked<'_>, entries: Range<usize>, place: Place) {
        if place == Place::Parked {
            self.resume_all(locked, entries.clone());
        }
        for run in self.cow_mappings(entries) {
            let Recount { before, after } = self.protect_failed(locked, run);
            self.addresses.recount(before, after);
        }
    }
}
