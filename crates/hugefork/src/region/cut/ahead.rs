//! The work of a fork or snapshot before its pause: it puts private pages back into blocks, while other threads go on.
//!
//! If the region alone holds the block of a CoW mapping, the private pages go back into that block. Otherwise they are
//! captured (capture.rs), or the region gets a block of its own, as by a write. If the kernel tracks writes, only the
//! pages that were written since the last snapshot are visited.
//!
//! While a CoW mapping is written back, its window's lock and private/quiesce.rs keep writers off. `write_protect_all`
//! keeps no writer off: it makes each write fault, so that the engine sees it.

use std::ops::Range;

use super::capture::{Looks, Pages};
use super::part::Look;
use crate::mapping::addresses::Place;
use crate::mem::{EngineVec, Own};
use crate::pool::free_slots::FreeSlots;
use crate::region::private::{PAGES_AT_ONCE, Patched, WrittenBack};
use crate::region::state::RegionCore;
use crate::region::write::{Become, Resolution, Turns};
use crate::stats::counters::count;
use crate::sync::SignalsBlocked;
use crate::sys::linux::schedule::yield_now;
use crate::sys::{MOST_RUNS, PageRun, ScanFor, Sys, SystemError};
use crate::types::error::RegionError;
use crate::units::{BASE_PAGE, EntryIndex};

/// The bytes of blocks that are written back at once, with [`PAGES_AT_ONCE`] pages at most.
const WRITTEN_BACK_AT_ONCE_BYTES: usize = 128 << 20;

/// The pages that are written back at once where the program is paced.
const PACED_PAGES_AT_ONCE: usize = 64;

/// The most scans of one snapshot for pages that were written during the scan before.
const MAX_LOOKS: usize = 6;

/// If a scan finds no more pages than this, the pages that were written meanwhile are captured behind the pause. Such a
/// scan takes as long with fewer pages, so the next one would find as many.
const FEW_PAGES: usize = 256;

/// The most pages for which memory is made ready between two scans.
const READY_PAGES: usize = 4096;

/// If a scan has more pages to copy, signals are no longer blocked.
const MOST_PAGES_WITHOUT_SIGNALS: usize = 2048;

/// The time at which CoW mappings are written back for a fork or snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// In the call of the snapshot, before its pause. All CoW mappings are written back, and other holders give up
    /// blocks as for writes.
    BeforePause,
    /// Before the call of the snapshot, in a call of its own that prepares the snapshot (`prepare_snapshot`). CoW
    /// mappings that are already prepared remain prepared, and no other holder of a block gives up that block.
    Beforehand,
}

impl<S: Sys> RegionCore<S> {
    /// Does the work that the next fork or snapshot would do before its pause, as far as that takes nothing from other
    /// holders.
    pub(crate) fn prepare_snapshot(&self) -> Result<(), RegionError> {
        let _one_at_a_time = self.take_turn();
        self.captured.begin_cut(|index| self.table.get(index).block());
        if self.may_capture_tracked() && self.track_writes() {
            return self.capture_written(When::Beforehand, &mut None).map(drop);
        }
        self.write_back_for_snapshot(When::Beforehand)
    }

    /// Captures written pages for a snapshot that keeps no writers off. `None` if the kernel does not track writes.
    ///
    /// Other threads write during a scan, and a scan takes as long as there are pages to copy. So scans are repeated as
    /// long as each leaves fewer pages for the pause, where all writers wait.
    ///
    /// If this takes long, blocked signals are let through.
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
            // The slots are made ready here, so that the next scan does not wait for them.
            self.pool().make_slots_ready(written.min(READY_PAGES));
            faults = self.pool().sys.faults_of_others();
            written = self.capture_written(When::BeforePause, signals)?;
        }
        self.pool().maintenance.note_cut();
        Ok(Some(Look { faults: faults.filter(|_| self.captured.are_tracked()) }))
    }

    /// Captures the pages that were written before all operations were over. If all writers write in operations, the
    /// pause finds no more pages. False if that cannot be done.
    pub(super) fn capture_between_operations(&self) -> bool {
        self.track_writes() && self.capture_written(When::BeforePause, &mut None).is_ok()
    }

    /// Captures the pages that were written since the last scan. Returns their number.
    fn capture_written(&self, when: When, signals: &mut Option<SignalsBlocked>) -> Result<usize, RegionError> {
        let (mut found, mut pages) = (EngineVec::new_in(Own), EngineVec::new_in(Own));
        let marked = self.mark_written(0..self.table.len(), &mut found, &mut pages);
        let captured = marked.map_err(RegionError::System).and_then(|()| {
            if when == When::Beforehand {
                found.retain(|patched: &Patched| {
                    let is_prepared = self.captured.is_prepared(patched.index);
                    if is_prepared {
                        // Its pages may have marks by now that are not in its set.
                        self.captured.forget(patched.index);
                    }
                    !is_prepared
                });
            }
            let count = pages.iter().map(|pages: &Pages| pages.bytes.len() / BASE_PAGE).sum::<usize>();
            if count > MOST_PAGES_WITHOUT_SIGNALS {
                *signals = None;
            }
            self.write_back_each(&found, Looks::Marked(&pages), when).map(|()| count)
        });
        if captured.is_err() {
            // Pages of these blocks may have marks by now that are not in their sets.
            found.iter().for_each(|patched| self.captured.forget(patched.index));
        }
        captured
    }

    /// Finds the CoW mappings that a snapshot has to capture or to write back, and their pages, in order: the pages
    /// without a mark if the block has a set, and all private pages otherwise. Marks all of these pages.
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
                let wanted = if are_known { ScanFor::UnmarkedAndMark } else { ScanFor::PrivateAndMark };
                self.scan(wanted, (&bytes, Place::Own), &mut runs_found, |run, is_written| {
                    for (index, bytes) in self.by_block(&run) {
                        // Captured pages count, too, because the region may get them back into its own block.
                        let before = if are_known { self.captured.pages_of(index) } else { 0 };
                        let count = bytes.len() / BASE_PAGE;
                        match found.last_mut() {
                            Some(Patched { index: last, pages }) if *last == index => *pages += count,
                            Some(_) | None => found.push(Patched { index, pages: before + count }),
                        }
                        pages.push(Pages { bytes, are_written: are_known || is_written, are_all: !are_known });
                    }
                    Ok::<(), SystemError>(())
                })?;
                rest.start = end;
            }
            // These have no newly written pages, but their pages may go back into their blocks.
            let quiet = cow_mappings.filter(|index| is_known(*index) && self.is_alone_with_cow_mapping(*index));
            let quiet = quiet.map(EntryIndex).map(|index| Patched { index, pages: self.captured.pages_of(index) });
            found.extend(quiet);
        }
        found.sort_by_key(|patched| patched.index.0);
        found.dedup_by_key(|patched| patched.index.0);
        Ok(())
    }

    /// Starts to track writes to all CoW mappings. False if the kernel refuses that for some of them.
    fn track_writes(&self) -> bool {
        let part = |run: &Range<usize>| self.addresses.part(&self.bytes_of(run));
        let refused = self.cow_mappings(0..self.table.len()).filter(|run| !self.pool().sys.track_writes(part(run)));
        let are_tracked = refused.count() == 0;
        self.captured.set_tracked(are_tracked);
        are_tracked
    }

    /// Writes private pages back. Unless system calls have to wait, all CoW mappings are write-protected first: those
    /// that nobody writes to meanwhile need no scan in the pause.
    pub(super) fn write_back_for_snapshot(&self, when: When) -> Result<(), RegionError> {
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
            // Without tracking, all pages are compared.
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

    /// Writes these CoW mappings back, several at once where possible, or captures their pages. Other threads go on
    /// with the rest of the region meanwhile.
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
                // A writer that has waited should run next.
                yield_now();
            }
            rest = later;
        }
        Ok(())
    }

    /// Writes these CoW mappings back. Those that this region alone holds go back in runs, with the ones that lie
    /// between. The others are captured one by one, or get a copy of their block.
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
            // If the pool is full, dropped snapshots may have left pages in it.
            let finds_room = || {
                self.pool().frames.available() == 0 && {
                    self.pool().drop_unheld();
                    true
                }
            };
            if is_left && !is_captured()? && !(finds_room() && is_captured()?) {
                match when {
                    When::BeforePause => self.make_until_done(Become::Own, first.index, Turns::Taken)?,
                    When::Beforehand => self.make_own_at_nobodys_cost(first.index)?,
                }
            }
            let next = run.end.max(first.index.0 + 1);
            rest = &rest[rest.partition_point(|patched| patched.index.0 < next)..];
        }
        Ok(())
    }

    /// Gives the region a block of its own in place of a CoW mapping, unless writes to that are prepared. No holder
    /// gives up a block for it.
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
