//! What a fork or snapshot does before its pause: it puts private pages back into blocks, while others go on.
//!
//! A CoW mapping whose block the region alone holds is written back into that. Of the others, it captures the
//! pages (capture.rs); or the region gets blocks of its own, as by writes. Where writes are tracked, only what was
//! written since the last snapshot is looked at.
//!
//! Writers are kept off what is just written back, by its window's lock and private/quiesce.rs. `write_protect_all`
//! keeps nobody off: it has a write say so.

use std::ops::Range;

use crate::mem::{EngineVec, Own};
use crate::ranges::runs;
use crate::region::private::{PAGES_AT_ONCE, Patched, WrittenBack};
use crate::region::state::RegionCore;
use crate::region::write::{Become, Resolution};
use crate::stats::counters::count;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::sys::linux::schedule::yield_now;
use crate::types::error::RegionError;
use crate::units::{BASE_PAGE, EntryIndex};

/// The blocks that are written back at once, with [`PAGES_AT_ONCE`] at most.
const WRITTEN_BACK_AT_ONCE_BYTES: usize = 128 << 20;

/// The same, where the program is paced.
const PACED_PAGES_AT_ONCE: usize = 64;

/// How often a snapshot looks for what was written while it looked.
const MAX_LOOKS: usize = 6;

/// After a look that found no more pages, the pause captures those that were written meanwhile: such a look takes no
/// longer than the scan, so the next one would find as many.
const FEW_PAGES: usize = 64;

/// With more pages, the pause would take more than 10 ms, so a cut looks again even if that leaves not much fewer.
const MANY_PAGES: usize = 4096;

/// If a look has more pages to copy, signals wait no longer.
const MOST_PAGES_WITHOUT_SIGNALS: usize = 2048;

/// The result of the looks ahead.
pub(crate) struct Look {
    /// How many page faults other threads had had when the last one began, if that can be told. All private pages are
    /// marked by now: while there are no more, none was written to.
    pub(super) faults: Option<u64>,
    /// An estimate, from the last look, of the pages that other threads write until the pause.
    pub(super) expected: Written,
}

/// An amount of memory that was written to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) blocks: usize,
    pub(super) pages: usize,
}

impl Written {
    /// The estimate after a look that has found nothing.
    pub(super) const LITTLE: Written = Written { blocks: 8, pages: 64 };

    fn or_more(self, other: Written) -> Written {
        Written { blocks: self.blocks.max(other.blocks), pages: self.pages.max(other.pages) }
    }
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
        let can_be_told = faults.is_some();
        let is_over = |faults| can_be_told && self.pool().sys.faults_of_others() == faults;
        let mut written = self.capture_written(When::BeforePause, signals)?;
        let (mut before, mut looks) = (usize::MAX, 1);
        let is_worth_a_look = |pages, before| pages > FEW_PAGES && pages <= before / 2 || pages > MANY_PAGES;
        while looks < MAX_LOOKS && is_worth_a_look(written.pages, before) && !is_over(faults) {
            (before, looks) = (written.pages, looks + 1);
            // Here, so that neither the last look nor the pause waits for it.
            self.pool().make_slots_ready(written.pages.min(MANY_PAGES));
            faults = self.pool().sys.faults_of_others();
            written = self.capture_written(When::BeforePause, signals)?;
        }
        self.pool().maintenance.note_cut();
        // As much as the last look took is written until the pause begins.
        let is_nothing = can_be_told && (written.pages == 0 || is_over(faults));
        let expected = if is_nothing { Written::default() } else { written.or_more(Written::LITTLE) };
        Ok(Some(Look { faults: faults.filter(|_| self.captured.are_tracked()), expected }))
    }

    /// Captures what was written until all operations were over: if all writers write in operations, the pause finds
    /// nothing more.
    pub(super) fn capture_between_operations(&self) -> Result<(), RegionError> {
        self.captured.copy_no_more();
        self.capture_written(When::BeforePause, &mut None).map(drop)
    }

    /// Captures what was written since the last look, and tells how much that was.
    fn capture_written(&self, when: When, signals: &mut Option<SignalsBlocked>) -> Result<Written, RegionError> {
        let (mut found, mut written) = (EngineVec::new_in(Own), EngineVec::new_in(Own));
        let captured = self.mark_written(&mut found, &mut written).and_then(|()| {
            if when == When::Beforehand {
                found.retain(|patched| !self.leave_prepared(patched.index));
            }
            let is_new = |patched: &&Patched| !self.captured.has_all_marked(patched.index);
            let new = || found.iter().filter(is_new);
            let block_of = |run: &Range<usize>| self.pool().block_size.count(run.start);
            let known = written.chunk_by(|one, next| block_of(one) == block_of(next)).count();
            let pages = written.iter().map(|run| run.len() / BASE_PAGE).sum::<usize>();
            let new_pages = new().map(|patched| patched.pages).sum::<usize>();
            let expected = Written { blocks: known + new().count(), pages: pages + new_pages };
            if expected.pages > MOST_PAGES_WITHOUT_SIGNALS {
                *signals = None;
            }
            self.write_back_each(&found, Some(&written), when).map(|()| expected)
        });
        if captured.is_err() {
            // Their pages have marks by now that are not in their sets.
            found.iter().for_each(|patched| self.captured.forget(patched.index));
        }
        captured
    }

    /// Finds the CoW mappings that a snapshot is to capture or to write back, and the pages of those with a set that
    /// have no mark, which are marked, in order.
    fn mark_written(
        &self,
        found: &mut EngineVec<Patched>,
        written: &mut EngineVec<Range<usize>>,
    ) -> Result<(), RegionError> {
        let all = 0..self.table.len();
        let is_known = |index: usize| self.captured.has_all_marked(EntryIndex(index));
        for run in self.cow_mappings(all.clone()).flat_map(|run| runs(run, is_known)) {
            let mut at = run.start;
            let mut note = |index: EntryIndex, is_alone: bool| {
                // The pages that the region may get back into its own block.
                let pages = self.captured.pages_of(index);
                let is_last = found.last().is_some_and(|last: &Patched| last.index == index);
                if !is_last && (!is_alone || self.is_alone_with_cow_mapping(index.0)) {
                    found.push(Patched { index, pages });
                }
            };
            let each = |index: EntryIndex, pages: Range<usize>| {
                (at..index.0).for_each(|quiet| note(EntryIndex(quiet), true));
                at = index.0;
                note(index, false);
                written.push(pages);
            };
            self.mark_each_unmarked(&run, each).map_err(RegionError::System)?;
            (at..run.end).for_each(|quiet| note(EntryIndex(quiet), true));
        }
        for run in self.cow_mappings(all).flat_map(|run| runs(run, |index| !is_known(index))) {
            let patched = self.patched(run).map_err(RegionError::System)?;
            found.extend(patched.iter().copied());
        }
        found.sort_unstable_by_key(|patched| patched.index.0);
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
        patched.retain(|patched| when != When::Beforehand || !self.prepared.has(patched.index));
        for patched in &patched {
            let written = patched.pages.saturating_sub(self.captured.pages_of(patched.index));
            self.note_density(patched.index, written);
        }
        self.write_back_each(&patched, None, when)
    }

    /// True if writes to a block are prepared. Its pages may have marks by now that are not in its set.
    fn leave_prepared(&self, index: EntryIndex) -> bool {
        let is_prepared = self.prepared.has(index);
        if is_prepared {
            self.captured.forget(index);
        }
        is_prepared
    }

    /// Writes these back, as many at once as may be. Others go on with the rest of the region meanwhile. Where writes
    /// are tracked, `written` is what was written, and those whose pages are captured can be written to.
    fn write_back_each(
        &self,
        patched: &[Patched],
        written: Option<&[Range<usize>]>,
        when: When,
    ) -> Result<(), RegionError> {
        let mut rest = patched;
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
            self.write_back_some(now, written, when)?;
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
        written: Option<&[Range<usize>]>,
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
            let is_captured = || match written {
                Some(written) => self.capture_tracked(*first, written),
                None => self.capture(*first),
            };
            if is_left && !is_captured()? {
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
