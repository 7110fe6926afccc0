//! The steps of the pause in which a fork or snapshot gets its blocks. cut/mod.rs takes these steps.
//!
//! ```text
//!                freeze                     of_snapshot
//!  RegionCore ─────────────▶ SnapshotCore ─────────────▶ RegionCore (a fork)
//! ```
//! The pause takes some nanoseconds for each block, and one write-protection. Pinned blocks are copied, and the dropped
//! pages of split blocks get memory again.
//!
//! The cut is consistent. A write that lands before its page is protected is in the blocks that the snapshot keeps. A
//! thread that writes later waits in its fault until the lock is free, so none of its later writes is in them.
//!
//! A snapshot holds blocks, and copies of private pages. So CoW mappings are written back or captured first, while
//! other threads go on writing (ahead.rs). Pages that have become private since then are captured or written back
//! behind the pause (capture.rs). If the kernel tracks writes, the pause write-protects only CoW mappings with such a
//! page: threads that write to others go on.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::part::{Keeps, Part};
use crate::mapping::addresses::Place;
use crate::mapping::change::Recount;
use crate::mem::{EngineVec, Own};
use crate::ranges::runs;
use crate::region::private::{Locks, Quiesced};
use crate::region::state::{RegionCore, Unresolved};
use crate::snapshot::core::SnapshotCore;
use crate::sys::{Access, MOST_RUNS, PageRun, ScanFor, Sys};
use crate::table::transition::{OnShare, on_share};
use crate::table::{Entry, Locked, Origin, Reserved, WindowsGuard};
use crate::units::EntryIndex;

/// After this many passes that each found a newly written CoW mapping, everything is write-protected.
pub(super) const MOST_PASSES: usize = 16;

impl<S: Sys> RegionCore<S> {
    /// Keeps all other threads from changing entries. It takes the locks of all windows if there are CoW mappings, so
    /// that no write-back is half done. It also takes them if writers may be held: the last CoW mapping may have become
    /// a block while its parking is still to be cleared, which happens without the region lock. Writers are not kept
    /// off yet.
    pub(super) fn hold_all(&self) -> Quiesced<'_, S> {
        let mut windows = WindowsGuard::default();
        loop {
            let holds_windows = self.accounts.has_cow_mappings() || self.addresses.can_hold();
            if holds_windows {
                windows = self.table.lock_windows(0..self.table.windows());
            }
            let region = self.lock.exclusive();
            if holds_windows || !self.accounts.has_cow_mappings() {
                return Quiesced::new(self, Locks::Own { windows, region }, 0..0);
            }
        }
    }

    /// Shares all blocks with `frozen`, and keeps off all writers. After a failure, the entries stay shared, and the
    /// snapshot releases its references. The next writes find a single reference and make their blocks writable again,
    /// whatever the kernel has left protected.
    pub(super) fn share_all(&self, quiesced: &mut Quiesced<'_, S>, part: &Part<'_, S>) -> Result<(), Unresolved> {
        let Part { frozen, keeps, .. } = part;
        quiesced.covers(0..self.table.len());
        if self.accounts.revoked.load(Ordering::Relaxed) > 0 {
            return Err(Unresolved::Revoked);
        }
        let captured = self.captured.lock();
        let (mut first, mut last) = (usize::MAX, 0);
        for index in (0..self.table.len()).map(EntryIndex) {
            let entry = self.table.get(index);
            let (next, needed) = on_share(entry.state(), self.pins.of(index));
            // An outdated block has pages that a scan for pages without a mark does not find.
            let stays =
                *keeps == Keeps::Writable && !self.captured.is_outdated(index) && entry.is_writable_cow_mapping();
            let after = if stays { entry } else { entry.in_state(next) };
            match needed {
                OnShare::FillAndShare => {
                    let split = self.split(index).filter(|_| !seeded!("shared-with-dropped-pages"));
                    quiesced.locked(|locked| split.map_or(Ok(()), |split| split.fill_all(locked, Access::Read)))?;
                }
                OnShare::Refuse => return Err(Unresolved::Revoked),
                OnShare::Nothing | OnShare::Share | OnShare::GiveCopy => {}
            }
            if let Some(block) = entry.block() {
                (first, last) = (first.min(index.0), index.0);
                if needed != OnShare::GiveCopy || seeded!("pinned-block-is-shared") {
                    self.pool().frames.add_reference(block);
                    frozen.entries.set(index, Entry::Shared(block, Origin::Parent));
                    if entry.is_owner() {
                        frozen.note_own(index);
                    }
                    self.table.set(index, after);
                    if entry.is_cow_mapping() {
                        let is_outdated = self.captured.is_outdated(index);
                        let set = match keeps {
                            _ if is_outdated => None,
                            Keeps::Writable => captured.of_any_cut(index, block),
                            Keeps::Protected if entry.is_writable_cow_mapping() && !seeded!("stale-set-is-kept") => {
                                None
                            }
                            Keeps::Protected => captured.of_this_cut(index, block),
                        };
                        let may_have_more = entry.is_writable_cow_mapping() || is_outdated || !part.is_looked_at;
                        if set.is_none() && !stays && may_have_more {
                            part.leave_for_later(index);
                        }
                        frozen.set_pages(index, set);
                    }
                    if entry.is_charged() && !stays {
                        self.accounts.charged.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            }
        }
        drop(captured);
        if first > last {
            quiesced.covers(0..0);
            return Ok(());
        }
        quiesced.covers(first..last + 1);
        // One reference is this region's, and one is the snapshot's.
        quiesced.keep_all_off(2 - u32::from(seeded!("cut-takes-its-own-reference-for-another")))
    }

    /// Write-protects each CoW mapping where a page was written since it was captured. False if it has found no
    /// writable one. The snapshot has no pages of these blocks yet. After [`MOST_PASSES`] passes, all CoW mappings are
    /// write-protected.
    ///
    /// If a pass through all regions of a cut finds none, the moment of the cut is the start of that pass: all pages
    /// were as captured then, and nobody could write elsewhere.
    pub(super) fn protect_what_was_written(
        &self,
        quiesced: &Quiesced<'_, S>,
        part @ Part { frozen, keeps, .. }: &Part<'_, S>,
        passes: usize,
    ) -> Result<bool, Unresolved> {
        let entries = quiesced.entries.clone();
        if *keeps == Keeps::Protected {
            return Ok(false);
        }
        quiesced.locked(|locked| {
            if passes == MOST_PASSES {
                let is_writable = |index: usize| self.table.get(EntryIndex(index)).is_writable_cow_mapping();
                runs(entries.clone(), is_writable).try_for_each(|run| {
                    let has_none = |index: &EntryIndex| frozen.pages_at(*index).is_none();
                    run.clone().map(EntryIndex).filter(has_none).for_each(|index| part.leave_for_later(index));
                    self.protect_written(locked, run)
                })?;
            }
            // Debuggers may have written to pages that are read-only by their state.
            let looks_at_all = passes == 0 || passes == MOST_PASSES;
            let is_looked_at = |index: usize| {
                let (index, entry) = (EntryIndex(index), self.table.get(EntryIndex(index)));
                let may_be_written = entry.is_writable_cow_mapping() || looks_at_all && entry.is_cow_mapping();
                may_be_written && !self.is_left(index, frozen)
            };
            let (mut are_any, mut found) = (false, [PageRun::default(); MOST_RUNS]);
            for run in runs(entries.clone(), is_looked_at) {
                // The scan also finds pages that were first read since the scans ahead. To tell private pages from
                // these, the kernel would have to visit each page.
                self.scan(ScanFor::Unmarked, (&self.bytes_of(&run), Place::Own), &mut found, |pages, _| {
                    for index in self.touched(&pages).map(EntryIndex).filter(|index| !self.is_left(*index, frozen)) {
                        if self.table.get(index).is_writable_cow_mapping() {
                            self.protect_written(locked, index.0..index.0 + 1)?;
                            are_any = true;
                        }
                        frozen.set_pages(index, None);
                        part.leave_for_later(index);
                    }
                    Ok::<(), Unresolved>(())
                })?;
            }
            Ok(are_any)
        })
    }

    /// Gives `frozen` copies of pinned blocks, and of blocks whose pages are parked: threads write to these as soon as
    /// they are shown again.
    pub(super) fn keep_rest(&self, quiesced: &Quiesced<'_, S>, part: &Part<'_, S>) -> Result<(), Unresolved> {
        let place = quiesced.place;
        if place == Place::Parked {
            // Each write-back counts its mappings from here on.
            self.count_mappings_anew();
            let left = part.behind.replace(EngineVec::new_in(Own));
            for run in left.chunk_by(|one, next| one + 1 == *next) {
                let bytes = self.bytes_of(&(run[0]..run[run.len() - 1] + 1));
                self.scan(ScanFor::Private, (&bytes, place), &mut [PageRun::default(); MOST_RUNS], |pages, _| {
                    // An entry that an earlier run of pages lies in is none by now.
                    let is_left = |index: &EntryIndex| self.table.get(*index).is_cow_mapping();
                    self.touched(&pages).map(EntryIndex).filter(is_left).try_for_each(|index| {
                        quiesced.locked(|locked| self.write_back_for(locked, index, &part.frozen, place))
                    })
                })?;
            }
        }
        self.copy_pinned(&part.frozen, quiesced.entries.clone())
    }

    /// Write-protects CoW mappings whose blocks are shared by now.
    fn protect_written(&self, locked: Locked<'_>, run: Range<usize>) -> Result<(), Unresolved> {
        self.site().reprotect(locked, self.bytes_of(&run), Access::Read)?.published(Recount::default())?;
        for index in run.map(EntryIndex) {
            let entry = self.table.get(index);
            self.table.set(index, entry.in_state(on_share(entry.state(), self.pins.of(index)).0));
            if entry.is_charged() {
                self.accounts.charged.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Whether a CoW mapping is write-protected, and the snapshot has no captured pages of it.
    fn is_left(&self, index: EntryIndex, frozen: &SnapshotCore<S>) -> bool {
        let entry = self.table.get(index);
        entry.is_cow_mapping() && !entry.is_writable_cow_mapping() && frozen.pages_at(index).is_none()
    }

    /// Ends what [`RegionCore::share_all`] began, once all regions of the cut are done: from now on writes are copied.
    /// Fails if writers could still write to shared blocks.
    ///
    /// If the region shows shared blocks by page, they become CoW mappings now, so that the kernel copies pages as soon
    /// as writers go on. Blocks for which that fails are left to faults.
    pub(super) fn resume_writers(&self, quiesced: &mut Quiesced<'_, S>, part: &Part<'_, S>) -> Result<(), Unresolved> {
        if self.shows_by_page() {
            let is_left = |index: usize| part.behind.borrow().binary_search(&index).is_ok();
            runs(quiesced.entries.clone(), |index| !is_left(index))
                .try_for_each(|run| quiesced.locked(|locked| self.cow_map_each(locked, run, quiesced.place)))?;
        }
        quiesced.unpark();
        Ok(())
    }

    /// Gives `frozen` a block that has the private pages over a CoW mapping, which is write-protected or parked. The
    /// region shows the same block.
    pub(super) fn write_back_for(
        &self,
        locked: Locked<'_>,
        index: EntryIndex,
        frozen: &SnapshotCore<S>,
        place: Place,
    ) -> Result<(), Unresolved> {
        let Some(block) = self.table.get(index).block() else { return Ok(()) };
        frozen.set_pages(index, None);
        frozen.entries.set(index, Entry::Zero);
        self.pool().release(block);
        let reserved = self.table.reservation(index);
        let is_alone = self.is_alone_with(block) || seeded!("write-back-into-a-block-that-others-hold");
        let own = if is_alone { block } else { self.pool().copy_of(block, reserved)? };
        let written_back = self.write_back_read_only(locked, index, own, place);
        if written_back.is_err() && own != block {
            self.pool().release_and(own, reserved);
        }
        written_back?;
        self.pool().frames.add_reference(own);
        frozen.entries.set(index, Entry::Shared(own, Origin::Parent));
        frozen.note_own(index);
        Ok(())
    }

    /// Gives copies of pinned blocks to `frozen`, after everything else was protected, also the pages beside pinned
    /// ones. So if a write is in the cut, every write that happened before it is too, unless both went to pinned pages
    /// (or to pinned blocks, if these cannot be protected in parts).
    fn copy_pinned(&self, frozen: &SnapshotCore<S>, entries: Range<usize>) -> Result<(), Unresolved> {
        for index in self.pins.pinned(entries) {
            if let Some(block) = self.table.get(index).block() {
                let copy = self.pool().copy_of(block, Reserved::No)?;
                frozen.entries.set(index, Entry::Shared(copy, Origin::Parent));
                frozen.note_own(index);
                frozen.parent.account.left();
            }
        }
        Ok(())
    }
}
