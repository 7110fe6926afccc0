//! A reset at one moment, beside threads that go on.
//!
//! ```text
//!             before                    after steps 1 and 2        during step 3            after step 4
//!   region  | block, private pages | ─▶ | block                | ─▶ | read-only        | ─▶ | block, private pages |
//!   staging | nothing              |    | block, private pages |    | block, all pages |    | nothing              |
//! ```
//! If nothing differs from the snapshot but private pages over its blocks, all in one mapping, one call moves these
//! pages away (1). From that moment on, all threads and system calls see the snapshot's bytes: writes before it are
//! gone, and later writes stay. No thread waits for it.
//!
//! If most pages are written again after a reset (put_back.rs), they come back, so that the next write to them takes no
//! fault. The reset puts them back in the staging, while other threads go on (2). Then it keeps writers off for some
//! microseconds and copies the pages that they have written since (3), and one call moves all pages back (4).
//!
//! Otherwise, and after any failure behind the first call, the reset drops the staged pages. The region is reset all
//! the same.
//!
//! In a reset of several regions (reset_all.rs), writers are kept off before the pages are put back, until all regions
//! are as their snapshots. The pages that they have written to this region since its moment are dropped.

use std::ops::Range;

use super::{Reset, Stop};
use crate::mapping::addresses::Place;
use crate::region::private::{PAGES_AT_ONCE, Quiesced};
use crate::region::state::Unresolved;
use crate::stats::counters::count;
use crate::sys::{Access, PageRun, ScanFor, Shows, Sys, SystemError};
use crate::units::{BASE_PAGE, EntryIndex};

impl<'a, S: Sys> Reset<'a, S> {
    /// Resets the region at one moment. False if that cannot be done; then nothing has changed.
    pub(super) fn run_at_once(&mut self) -> bool {
        if self.dirty.until_try > 0 && self.at_one_moment(Self::shows_anew).is_some() {
            self.dirty.begin();
            return self.dirty.skips_look();
        }
        let run = self.stage_at_once();
        run.inspect(|run| self.settle(run)).is_some()
    }

    /// Makes the region as the snapshot at one moment, and stages the private pages of the run. None if that cannot be
    /// done; then nothing has changed.
    pub(super) fn stage_at_once(&mut self) -> Option<Range<usize>> {
        self.at_one_moment(|reset, run| reset.region.site().take_pages(reset.locked, run))
    }

    /// Removes the private pages of the run by `take`, which does so at one moment. None if that cannot be done or has
    /// failed.
    fn at_one_moment(&mut self, take: impl FnOnce(&Self, &Range<usize>) -> bool) -> Option<Range<usize>> {
        let run = self.only_run().filter(|_| !self.frozen.is_revoked())?;
        self.allow_writes().ok()?;
        let region = self.region;
        region.captured.outdate(run.clone());
        // Pages that were moved to the staging have lost their marks.
        self.dirty.tell_nothing();
        if !take(self, &run) {
            return None;
        }
        region.captured.end_prepared();
        region.accounts.origin.set(self.frozen.id);
        count(&region.counters.resets, 1);
        Some(run)
    }

    /// Ends the reset after its moment: the staged pages come back, or are dropped.
    pub(super) fn settle(&mut self, run: &Range<usize>) {
        let (region, bytes) = (self.region, self.region.bytes_of(run));
        let came = self.come_back(run);
        let (sys, staging) = (&region.pool().sys, region.addresses.part_at(Place::Staging, &bytes));
        if came.is_err() && sys.drop_private(staging).is_err() {
            let _ = sys.show(staging, Shows::Hidden);
        }
        // An empty mapping is left in the staging. To make it read-only costs a third of removing it, and is enough:
        // mlockall(2) would copy all pages of a writable one. If the kernel refuses, the next reset replaces the
        // mapping.
        let _ = sys.protect(staging, Access::Read);
        self.dirty.seen_at = came.ok().flatten();
    }

    /// Shows the run through a new mapping, which has no private pages. The kernel does so under its lock of all
    /// mappings, for which faults wait. The new mapping is not writable for a moment, which only system calls notice.
    /// False if that is impossible; then nothing has changed.
    fn shows_anew(&self, run: &Range<usize>) -> bool {
        // If the right to write is missing, the pages are gone all the same, and the reset goes another way.
        !self.region.accounts.calls_wait && self.region.cow_map(self.locked, run.clone(), Place::Own).is_ok()
    }

    /// The run of CoW mappings that has all differences from the snapshot. None if it cannot be one mapping, or if
    /// another entry can be written to without a fault.
    fn only_run(&self) -> Option<Range<usize>> {
        let (region, table) = (self.region, &self.region.table);
        let are_usable = !self.has_sets && region.addresses.has_staging() && region.pool().sys.budget().fits(4);
        if !are_usable || region.pins.are_used() {
            return None;
        }
        let all = 0..table.len();
        if table.first_unlike(&self.frozen.entries, all.clone()) < all.end {
            return None;
        }
        let first = region.cow_mappings(all.clone()).next()?.start;
        let run = first..first + table.alike(first..all.end);
        let is_open = table.get(EntryIndex(first)).is_writable_cow_mapping();
        (is_open && region.cow_mappings(run.end..all.end).next().is_none()).then_some(run)
    }

    /// Puts the staged pages back and moves them to the region's own addresses, with the pages that other threads have
    /// written since the moment, while writers are kept off. Returns the fault count at which the list had all private
    /// pages, if it has them all. After any failure, the staged pages may be dropped.
    fn come_back(&mut self, run: &Range<usize>) -> Result<Option<u64>, Stop> {
        self.place = Place::Staging;
        let came = self.look().and_then(|_| self.put_back());
        self.place = Place::Own;
        came?;
        if self.dirty.pages.is_empty() {
            return Ok(None);
        }
        let (region, locked) = (self.region, self.locked);
        let quiesced = Quiesced::begin_briefly(region, locked, run.clone())?;
        let faults = region.pool().sys.minor_faults();
        // If there were such pages, the list lacks them.
        let are_known = self.copy_since(&region.bytes_of(run), quiesced.place)?;
        region.site().bring_pages(locked, run)?;
        quiesced.done();
        Ok(are_known.then_some(faults))
    }

    /// Resumes writers that were [kept off briefly](Quiesced::begin_briefly).
    pub(super) fn resume(&self, mut quiesced: Quiesced<'_, S>) {
        let is_parked = quiesced.place == Place::Parked;
        if is_parked || self.region.allow_writes(self.locked, quiesced.entries.clone(), Place::Own).is_ok() {
            quiesced.unpark();
            quiesced.done();
        }
    }

    /// Copies the pages that are private in `place` over the staged ones. False if there was such a page.
    fn copy_since(&mut self, bytes: &Range<usize>, place: Place) -> Result<bool, SystemError> {
        let (addresses, sys) = (&self.region.addresses, &self.region.pool().sys);
        let (mut are_none, mut page) = (true, [0; BASE_PAGE]);
        let mut runs = [PageRun::default(); PAGES_AT_ONCE];
        self.region.scan(ScanFor::Private, (bytes, place), &mut runs, |run, _| {
            are_none = false;
            run.step_by(BASE_PAGE).map(|at| at..at + BASE_PAGE).try_for_each(|one| {
                // SAFETY: writers are kept off, and nobody else uses `page`.
                unsafe { sys.copy_shown(addresses.part_at(place, &one), page.as_mut_ptr()) };
                // SAFETY: a CoW mapping with the right to write, which nobody else knows of.
                unsafe { sys.restore(addresses.part_at(Place::Staging, &one), Access::ReadWrite, page.as_ptr()) }
                    .map(drop)
            })
        })?;
        Ok(are_none)
    }

    /// Drops the pages that were written since the moment. Writers are kept off.
    pub(super) fn forget_since(&mut self, run: &Range<usize>) -> Result<(), Unresolved> {
        self.place = self.quiesced.as_ref().map_or(Place::Own, |quiesced| quiesced.place);
        let forgotten = self.drop_over(run);
        self.place = Place::Own;
        forgotten
    }
}
