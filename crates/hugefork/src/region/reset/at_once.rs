//! A reset at one moment, beside threads that go on.
//!
//! ```text
//!   region  | block, private pages | ─▶ | block                  | ─▶ | read-only | ─▶ | block, private pages |
//!   staging | nothing              |    | block, private pages   |                   | nothing              |
//!                                take      put back, while others      protect; pages     bring
//!                                          go on                       of since
//! ```
//! Where nothing differs from the snapshot but private pages over its blocks, all in one mapping, one call takes them
//! away. From that moment on the region is as the snapshot, for all who read or write, system calls too: what was
//! written before is gone, and what is written later stays. Nobody is held for it.
//!
//! Where most pages are written again (put_back.rs), they come back, so that the next write to them takes no fault.
//! They are put back in the staging, while others go on. Then writers are kept off for some microseconds. The pages
//! that they have written since are copied over, and one call shows all of them.
//!
//! Else, and whatever fails after the first call, what is staged is dropped: the region is reset all the same.
//!
//! As one of several (reset_all.rs), writers are kept off before the pages are put back, until all of the regions are
//! as the snapshots. What they have written to this one since its moment is dropped.

use std::ops::Range;

use super::{Reset, Stop};
use crate::mapping::addresses::Place;
use crate::region::private::{PAGES_AT_ONCE, Quiesced};
use crate::region::state::Unresolved;
use crate::stats::counters::count;
use crate::sys::{Access, PageRun, ScanFor, Shows, Sys, SystemError};
use crate::units::{BASE_PAGE, EntryIndex};

impl<'a, S: Sys> Reset<'a, S> {
    /// Resets the region at one moment. False if that cannot be done, and then nothing has changed.
    pub(super) fn run_at_once(&mut self) -> bool {
        // A new mapping has no private pages. The kernel shows it under its lock of all mappings, for which faults wait. It
        // is not writable for a moment, which only system calls notice.
        let drop = |reset: &Self, run: &Range<usize>| {
            let region = reset.region;
            !region.accounts.calls_wait && region.cow_map(reset.locked, run.clone(), Place::Own).is_ok()
        };
        if self.dirty.until_try > 0 && self.at_one_moment(drop).is_some() {
            self.dirty.begin();
            return self.dirty.skips_look();
        }
        let run = self.stage_at_once();
        run.inspect(|run| self.settle(run)).is_some()
    }

    /// The moment: the region is as the snapshot, and the private pages of the run are staged. None if that cannot be
    /// done, and then nothing has changed.
    pub(super) fn stage_at_once(&mut self) -> Option<Range<usize>> {
        self.at_one_moment(|reset, run| reset.region.site().take_pages(reset.locked, run))
    }

    /// Takes the private pages of the run away by a call that does so at one moment. None if that has failed.
    fn at_one_moment(&mut self, take: impl FnOnce(&Self, &Range<usize>) -> bool) -> Option<Range<usize>> {
        let run = self.only_run().filter(|_| !self.frozen.is_revoked())?;
        self.allow_writes().ok()?;
        let region = self.region;
        region.captured.outdate(run.clone());
        // What is staged has lost its marks.
        self.dirty.tell_nothing();
        if !take(self, &run) {
            return None;
        }
        region.captured.end_prepared();
        region.accounts.origin.set(self.frozen.id);
        count(&region.counters.resets, 1);
        Some(run)
    }

    /// What comes after the moment: the pages come back, or are dropped.
    pub(super) fn settle(&mut self, run: &Range<usize>) {
        let (region, bytes) = (self.region, self.region.bytes_of(run));
        let came = self.come_back(run);
        let (sys, staging) = (&region.pool().sys, region.addresses.part_at(Place::Staging, &bytes));
        if came.is_err() && sys.drop_private(staging).is_err() {
            let _ = sys.show(staging, Shows::Hidden);
        }
        // What is left of the staging is the mapping. It is a third of the cost to make it read-only, which is enough:
        // mlockall(2) would copy all of one that can be written to. If the kernel refuses, the next reset replaces it.
        let _ = sys.protect(staging, Access::Read);
        self.dirty.seen_at = came.ok().flatten();
    }

    /// The run of CoW mappings that shows all that differs, if they can be one mapping and no other entry can be
    /// written to without a fault.
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

    /// Puts the pages back and brings them to where they belong. Says how many faults there were when all that are
    /// private were known, if they are. Whatever fails, the pages may be dropped.
    fn come_back(&mut self, run: &Range<usize>) -> Result<Option<u64>, Stop> {
        self.place = Place::Staging;
        let came = self.look().and_then(|_| self.put_back());
        self.place = Place::Own;
        came?;
        // Of what others have written since the moment, nothing is known.
        if self.dirty.pages.is_empty() { Ok(None) } else { self.bring(run) }
    }

    /// Keeps writers off, and shows the pages where they belong, with what others have written since.
    fn bring(&mut self, run: &Range<usize>) -> Result<Option<u64>, Stop> {
        let (region, locked) = (self.region, self.locked);
        let quiesced = self.keep_off(run)?;
        let faults = region.pool().sys.minor_faults();
        let are_known = self.copy_since(&region.bytes_of(run), quiesced.place())?;
        region.site().bring_pages(locked, run)?;
        quiesced.done();
        Ok(are_known.then_some(faults))
    }

    /// Keeps writers off the run, which has few private pages or none.
    pub(super) fn keep_off(&self, run: &Range<usize>) -> Result<Quiesced<'a, S>, Unresolved> {
        Quiesced::begin_briefly(self.region, self.locked, run.clone())
    }

    /// Resumes writers who were [kept off](Reset::keep_off).
    pub(super) fn resume(&self, mut quiesced: Quiesced<'_, S>) {
        let is_parked = quiesced.place() == Place::Parked;
        if is_parked || self.region.allow_writes(self.locked, quiesced.entries(), Place::Own).is_ok() {
            quiesced.unpark();
            quiesced.done();
        }
    }

    /// Copies the pages that are private in `place` over those staged. False if there were any.
    fn copy_since(&mut self, bytes: &Range<usize>, place: Place) -> Result<bool, SystemError> {
        let (addresses, sys) = (&self.region.addresses, &self.region.pool().sys);
        let (mut are_none, mut page) = (true, [0; BASE_PAGE]);
        let mut runs = [PageRun::default(); PAGES_AT_ONCE];
        self.region.scan(ScanFor::Private, (bytes, place), &mut runs, |run, _| {
            are_none = false;
            run.step_by(BASE_PAGE).map(|at| at..at + BASE_PAGE).try_for_each(|one| {
                // SAFETY: writers are kept off, and the page is ours.
                unsafe { sys.copy_shown(addresses.part_at(place, &one), page.as_mut_ptr()) };
                // SAFETY: a CoW mapping with the right to write, which nobody else knows of.
                unsafe { sys.restore(addresses.part_at(Place::Staging, &one), Access::ReadWrite, page.as_ptr()) }
                    .map(drop)
            })
        })?;
        Ok(are_none)
    }

    /// Drops what was written since the moment. Writers are kept off; the run lies in `place`.
    pub(super) fn forget_since(&mut self, run: &Range<usize>, place: Place) -> Result<(), Unresolved> {
        self.place = place;
        let forgotten = self.drop_over(run);
        self.place = Place::Own;
        forgotten
    }
}
