//! What a fork or snapshot does before its pause: it puts private pages back into blocks, while others go on.
//!
//! A CoW mapping whose block the region alone holds is written back into that. Of the others, it captures the
//! pages (capture.rs); or the region gets blocks of its own, as by writes. Where writes are tracked, only what was
//! written since the last snapshot is looked at.
//!
//! Writers are kept off what is just written back, by its window's lock and private/quiesce.rs. `write_protect_all`
//! keeps nobody off: it has a write say so.

use std::ops::Range;

use super::capture::{Looks, Pages};
use crate::mapping::addresses::Place;
use crate::mem::{EngineVec, Own};
use crate::pool::free_slots::FreeSlots;
use crate::region::private::{PAGES_AT_ONCE, Patched, WrittenBack};
use crate::region::state::RegionCore;
use crate::region::write::{Become, Resolution};
use crate::stats::counters::count;
use crate::sync::SignalsBlocked;
use crate::sys::linux::schedule::yield_now;
use crate::sys::{MOST_RUNS, PageRun, ScanFor, Sys, SystemError};
use crate::types::error::RegionError;
use crate::units::{BASE_PAGE, EntryIndex};

/// The blocks that are written back at once, with [`PAGES_AT_ONCE`] at most.
const WRITTEN_BACK_AT_ONCE_BYTES: usize = 128 << 20;

/// The same, where the program is paced.
const PACED_PAGES_AT_ONCE: usize = 64;

/// How often a snapshot looks for what was written while it looked.
const MAX_LOOKS: usize = 6;

/// After a look that found no more pages, those that were written meanwhile are captured behind the pause: such a look
/// takes no longer than the scan, so the next one would find as many.
const FEW_PAGES: usize = 256;

/// Between two looks memory is got for so many pages at most.
const READY_PAGES: usize = 4096;

/// If a look has more pages to copy, signals wait no longer.
const MOST_PAGES_WITHOUT_SIGNALS: usize = 2048;

/// The result of the looks ahead.
pub(crate) struct Look {
    /// How many page faults other threads had had when the last one began, if that can be told. All private pages are
    /// marked by now: while there are no more, none was written to.
    pub(super) faults: Option<u64>,
}

/// When CoW mappings are written back for a fork or snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// In its call, before the pause: all are, and others give way as they do to writes.
    BeforePause,
    /// Earlier, when nothing depends on it: what is prepared stays so, and nobody gives up a block.
    Beforehand,
}

impl<S: Sys> RegionCore<S> {
    /// Does what the next fork or snapshot would have to do before its pause, as far as that costs nobody anything.
    pub(crate) fn prepare_snapshot(&self) -> Result<(), RegionError> {
        let _one_at_a_time = self.take_turn();
        self.captured.begin_cut(|index| self.table.get(index).block());
        if self.may_capture_tracked() && self.track_writes() {
            return self.capture_written(When::Beforehand, &mut None).map(drop);
        }
        self.write_back_for_snapshot(When::Beforehand)
    }

    /// Writes back what is private now, before the pause.
    pub(super) fn write_back_ahead(&self) -> Result<(), RegionError> {
        self.write_back_for_snapshot(When::BeforePause)
    }

    /// Captures what was written for a snapshot that keeps nobody off, if writes are tracked; `None` if not.
    ///
    /// Others write while it looks, and each look takes as long as there are pages to copy. So it looks again as long
    /// as that leaves fewer pages for the pause, where all writers wait.
    ///
    /// Signals that are blocked go on if this takes long.
    pub(super) fn capture_ahead(&self, signals: &mut Option<SignalsBlocked>) -> Result<Option<Look>, RegionError> {
        if !self.may_capture_tracked() {
            return Ok(None);
        }
        // Mappings made after this point start without private pages, so they need no tracking.
        let mut faults = self.pool().sys.faults_of_others();
        if !self.track_writes() {
            return Ok(None);
        }
        let is_over = |faults: Option<u64>| faults.is_some() && self.pool().sys.faults_of_others() == faults;
        let (mut before, mut looks) = (usize::MAX, 1);
        let mut written = self.capture_written(When::BeforePause, signals)?;
        while looks < MAX_LOOKS && written > FEW_PAGES && written <= before / 2 && !is_over(faults) {
            (before, looks) = (written, looks + 1);
            // Here, so that the next look does not wait for it.
            self.pool().make_slots_ready(written.min(READY_PAGES));
            faults = self.pool().sys.faults_of_others();
            written = self.capture_written(When::BeforePause, signals)?;
        }
        self.pool().maintenance.note_cut();
        Ok(Some(Look { faults: faults.filter(|_| self.captured.are_tracked()) }))
    }

    /// Captures what was written until all operations were over: if all writers write in operations, the pause finds
    /// nothing more. False if that cannot be done.
    pub(super) fn capture_between_operations(&self) -> bool {
        self.captured.copy_no_more();
        self.track_writes() && self.capture_written(When::BeforePause, &mut None).is_ok()
    }

    /// Captures what was written since the last look, and tells how many pages that were.
    fn capture_written(&self, when: When, signals: &mut Option<SignalsBlocked>) -> Result<usize, RegionError> {
        let (mut found, mut pages) = (EngineVec::new_in(Own), EngineVec::new_in(Own));
        let marked = self.mark_written(0..self.table.len(), &mut found, &mut pages);
        let captured = marked.map_err(RegionError::System).and_then(|()| {
            if when == When::Beforehand {
                found.retain(|patched| !self.leave_prepared(patched.index));
            }
            let count = pages.iter().map(|pages: &Pages| pages.bytes.len() / BASE_PAGE).sum::<usize>();
            if count > MOST_PAGES_WITHOUT_SIGNALS {
                *signals = None;
            }
            self.write_back_each(&found, Looks::Marked(&pages), when).map(|()| count)
        });
        if captured.is_err() {
            // Their pages have marks by now that are not in their sets.
            found.iter().for_each(|patched| self.captured.forget(patched.index));
        }
        captured
    }

    /// Finds the CoW mappings that a snapshot is to capture or to write back, and their pages, in order: those without
    /// a mark where there is a set, and elsewhere all private pages. All are marked.
    pub(super) fn mark_written(
        &self,
        entries: Range<usize>,
        found: &mut EngineVec<Patched>,
        pages: &mut EngineVec<Pages>,
    ) -> Result<(), SystemError> {
        let is_known = |index: usize| self.captured.has_all_marked(EntryIndex(index));
        let mut runs_found = [PageRun::default(); MOST_RUNS];
        for cow_mappings in self.cow_mappings(entries) {
            let mut rest = cow_mappings.clone();
            while let Some(first) = rest.next() {
                let are_known = is_known(first);
                let end = rest.clone().find(|index| is_known(*index) != are_known).unwrap_or(rest.end);
                let bytes = self.bytes_of(&(first..end));
                let mut note = |run: Range<usize>, are_written: bool| {
                    for (index, bytes) in self.by_block(&run) {
                        // Captured pages count, too: the region may get them back into its own block.
                        let before = if are_known { self.captured.pages_of(index) } else { 0 };
                        let count = bytes.len() / BASE_PAGE;
                        match found.last_mut() {
                            Some(Patched { index: last, pages }) if *last == index => *pages += count,
                            Some(_) | None => found.push(Patched { index, pages: before + count }),
                        }
                        pages.push(Pages { bytes, are_written, are_all: !are_known });
                    }
                };
                let wanted = if are_known { ScanFor::UnmarkedAndMark } else { ScanFor::PrivateAndMark };
                self.scan(wanted, (&bytes, Place::Own), &mut runs_found, |run, is_written| {
                    note(run, are_known || is_written);
                    Ok::<(), SystemError>(())
                })?;
                rest.start = end;
            }
            // Nobody has written to these, but they may go back into their blocks.
            let quiet = cow_mappings.filter(|index| is_known(*index) && self.is_alone_with_cow_mapping(*index));
            let quiet = quiet.map(EntryIndex).map(|index| Patched { index, pages: self.captured.pages_of(index) });
            found.extend(quiet);
        }
        found.sort_by_key(|patched| patched.index.0);
        found.dedup_by_key(|patched| patched.index.0);
        Ok(())
    }

    /// Tracks what is written to CoW mappings. False if that cannot be done, for some of them.
    fn track_writes(&self) -> bool {
        let part = |run: &Range<usize>| self.addresses.part(&self.bytes_of(run));
        let refused = self.cow_mappings(0..self.table.len()).filter(|run| !self.pool().sys.track_writes(part(run)));
        let are_tracked = refused.count() == 0;
        self.captured.set_tracked(are_tracked);
        are_tracked
    }

    /// Writes back what is private now. Unless system calls are to wait, all CoW mappings are write-protected first:
    /// those that nobody writes to meanwhile need no look in the pause.
    fn write_back_for_snapshot(&self, when: When) -> Result<(), RegionError> {
        if !self.accounts.has_cow_mappings() {
            return Ok(());
        }
        if !self.accounts.calls_wait {
            let signals = SignalsBlocked::new();
            let write_protected = self.write_protect_all();
            drop(signals);
            write_protected.map_err(|reason| self.error(reason))?;
        }
        if self.captured.are_any() {
            // Without it all pages are compared.
            let _ = self.track_writes();
        }
        let mut patched = self.patched(0..self.table.len()).map_err(RegionError::System)?;
        patched.retain(|patched| when != When::Beforehand || !self.captured.is_prepared(patched.index));
        for patched in &patched {
            let written = patched.pages.saturating_sub(self.captured.pages_of(patched.index));
            self.note_density(patched.index, written);
        }
        self.write_back_each(&patched, Looks::Protected, when)
    }

    /// True if writes to a block are prepared. Its pages may have marks by now that are not in its set.
    fn leave_prepared(&self, index: EntryIndex) -> bool {
        let is_prepared = self.captured.is_prepared(index);
        if is_prepared {
            self.captured.forget(index);
        }
        is_prepared
    }

    /// Writes these back, as many at once as may be, or captures their pages. Others go on with the rest of the region
    /// meanwhile.
    fn write_back_each(&self, patched: &[Patched], looks: Looks<'_>, when: When) -> Result<(), RegionError> {
        let count = match looks {
            Looks::Protected => patched.iter().map(|patched| patched.pages).sum(),
            Looks::Marked(pages) => pages.iter().map(|pages| pages.bytes.len() / BASE_PAGE).sum(),
        };
        let (mut rest, mut free) = (patched, FreeSlots::new(self.pool(), count));
        while let Some(first) = rest.first() {
            let group = self.pool().block_size.count(WRITTEN_BACK_AT_ONCE_BYTES).max(1);
            let end = (first.index.0 / group + 1) * group;
            let is_paced = self.pool().maintenance.is_paced();
            let (mut pages, most) = (0, if is_paced { PACED_PAGES_AT_ONCE } else { PAGES_AT_ONCE });
            let fits = |patched: &&Patched| {
                pages += patched.pages;
                patched.index.0 < end && pages <= most
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count);
            self.write_back_some(now, looks, &mut free, when)?;
            if is_paced {
                // A writer that has waited should be next.
                yield_now();
            }
            rest = later;
        }
        Ok(())
    }

    /// Writes these back: runs of CoW mappings that this region alone holds at once, with those that lie between;
    /// others one by one, each of which takes a copy of its block.
    fn write_back_some(
        &self,
        patched: &[Patched],
        looks: Looks<'_>,
        free: &mut FreeSlots<'_, S>,
        when: When,
    ) -> Result<(), RegionError> {
        let end = patched.last().map_or(0, |last| last.index.0 + 1);
        let mut rest = patched;
        while let Some(first) = rest.first() {
            let run = if self.is_alone_with_cow_mapping(first.index.0) {
                let signals = SignalsBlocked::new();
                let written_back = self.write_back_run(first.index.0..end, WrittenBack::CowMappings);
                drop(signals);
                written_back.map_err(|reason| self.error(reason))?
            } else {
                first.index.0..first.index.0
            };
            let is_left = run.is_empty() && self.table.get(first.index).is_cow_mapping();
            let mut is_captured = || self.capture(*first, looks, free, None).map_err(|reason| self.error(reason));
            if is_left && !is_captured()? {
                self.captured.note_copy();
                match when {
                    When::BeforePause => self.make_own_in_turn(first.index)?,
                    When::Beforehand => self.make_own_at_nobodys_cost(first.index)?,
                }
            }
            let next = run.end.max(first.index.0 + 1);
            rest = &rest[rest.partition_point(|patched| patched.index.0 < next)..];
        }
        Ok(())
    }

    /// Gives the region a block of its own in place of a CoW mapping, unless writes to it are prepared.
    /// Nobody gives up a block for that.
    fn make_own_at_nobodys_cost(&self, index: EntryIndex) -> Result<(), RegionError> {
        let signals = SignalsBlocked::new();
        let resolved = self.try_to_make(Become::OwnUnlessPrepared, index, None, None);
        drop(signals);
        if resolved.map_err(|reason| self.error(reason))? == Resolution::Copied {
            count(&self.counters.copied, 1);
        }
        Ok(())
    }
}
