//! Freezing makes a snapshot: it is the pause of a fork or snapshot. These are its steps, cut/mod.rs takes them.
//!
//! ```text
//!                freeze                     of_snapshot
//!  RegionCore ─────────────▶ SnapshotCore ─────────────▶ RegionCore (a fork)
//! ```
//! It takes time in proportion to the number of blocks, some nanoseconds each, and one write-protection. Pinned blocks
//! are copied, and the dropped pages of split blocks get memory again.
//!
//! The cut is consistent. A write that lands before its page is protected is in the blocks that the snapshot keeps. A
//! thread that writes later waits in its fault until the lock is free, so none of its later writes is in them.
//!
//! A snapshot holds blocks, not private pages. So overlays are folded first, while others go on writing (overlay.rs).
//! What has become private since then is folded after the write-protection, and few pages have.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::mapping::addresses::Place;
use crate::mapping::change::Recount;
use crate::region::private::fold::When;
use crate::region::state::core::RegionCore;
use crate::region::state::unresolved::Unresolved;
use crate::snapshot::core::SnapshotCore;
use crate::sync::{ExclusiveGuard, SignalsBlocked};
use crate::sys::{Access, Sys};
use crate::table::split::SplitPage;
use crate::table::transition::{OnShare, on_share};
use crate::table::{Entry, Locked, Reserved, WindowsGuard};
use crate::terms::error::RegionError;
use crate::terms::options::CopyGrain;
use crate::units::{EntryIndex, HUGE_PAGE};

/// So many bytes of overlays are sealed at once: the kernel looks at each page, which takes 2 ms for 1 GiB.
const SEALED_AT_ONCE: usize = 64 << 20;

/// The entries that writers are kept off, and where these lie meanwhile.
pub(in crate::region) struct KeptOff {
    entries: Range<usize>,
    place: Place,
}

impl<S: Sys> RegionCore<S> {
    /// Does what the next fork or snapshot would have to do before its pause, as far as that costs nobody anything.
    pub(crate) fn prepare_snapshot(&self) -> Result<(), RegionError> {
        let _one_at_a_time = self.take_turn();
        self.fold_for_snapshot(When::Beforehand)
    }

    /// Folds what is private now, before the pause.
    pub(in crate::region) fn fold_ahead(&self) -> Result<(), RegionError> {
        self.fold_for_snapshot(When::BeforePause)
    }

    /// Folds what is private now. Unless the kernel is to copy from the snapshot on, all overlays are sealed first:
    /// those that nobody writes to meanwhile need no look in the pause.
    fn fold_for_snapshot(&self, when: When) -> Result<(), RegionError> {
        if !self.books.has_overlays() {
            return Ok(());
        }
        if self.books.grain != CopyGrain::Page {
            let signals = SignalsBlocked::new();
            let sealed = self.seal_all();
            drop(signals);
            sealed.map_err(|reason| self.error(reason))?;
        }
        let mut patched = self.patched(0..self.table.len()).map_err(RegionError::System)?;
        patched.retain(|patched| when == When::BeforePause || !self.promises.has(patched.index));
        for patched in &patched {
            self.density.note(patched.index, patched.pages, self.pool().block_size);
        }
        self.fold_each(&patched, when)
    }

    /// Seals all overlays, some at a time, unless writes to them were promised not to fault. The caller has blocked the
    /// program's signals.
    pub(in crate::region) fn seal_all(&self) -> Result<(), Unresolved> {
        let mut rest = 0..self.table.len();
        while let Some(run) = self.next_overlays(rest.clone()) {
            let (first, last) = (EntryIndex(run.start), EntryIndex(run.end - 1));
            let windows = self.table.window(first)..self.table.window(last) + 1;
            let at_once = SEALED_AT_ONCE / self.pool().block_size.bytes().max(HUGE_PAGE);
            let windows = windows.start..windows.end.min(windows.start + at_once.max(1));
            rest.start = run.end.min(self.table.entries_of(windows.clone()).end);
            let windows = self.table.lock_windows(windows);
            let publishing = self.lock.shared();
            let mut within = run.start..rest.start;
            // Others may have changed it since.
            while let Some(run) = self.next_to_seal(within.clone()) {
                within.start = run.end;
                self.seal(Locked::windows(&windows, &publishing), run)?;
            }
        }
        Ok(())
    }

    /// The first run of overlays in `entries` that nothing was promised of.
    fn next_to_seal(&self, mut entries: Range<usize>) -> Option<Range<usize>> {
        let may_be = |index: &usize| {
            let index = EntryIndex(*index);
            self.table.get(index).is_overlay() && !self.promises.has(index)
        };
        let start = entries.find(may_be)?;
        let end = entries.find(|index| !may_be(index)).unwrap_or(entries.end);
        Some(start..end)
    }

    /// Keeps all others out: with the locks of all windows if there are overlays, so that none is just being folded.
    pub(in crate::region) fn hold_all(&self) -> (WindowsGuard<'_>, ExclusiveGuard<'_>) {
        let mut windows = WindowsGuard::default();
        loop {
            let holds_windows = self.books.has_overlays();
            if holds_windows {
                windows = self.table.lock_windows(0..self.table.windows());
            }
            let alone = self.lock.exclusive();
            if holds_windows || !self.books.has_overlays() {
                return (windows, alone);
            }
        }
    }

    /// Shares all blocks with `frozen`, and keeps all writers off, until [`RegionCore::let_writers_go`]. If it fails,
    /// they are let go, and what is shared stays shared.
    pub(in crate::region) fn share_all(
        &self,
        locked: Locked<'_>,
        frozen: &SnapshotCore<S>,
        sealed: Option<usize>,
    ) -> Result<Option<KeptOff>, Unresolved> {
        if self.books.revoked.load(Ordering::Relaxed) > 0 {
            return Err(Unresolved::Revoked);
        }
        let (mut first, mut last, mut open) = (usize::MAX, 0, 0..0);
        for index in (0..self.table.len()).map(EntryIndex) {
            let entry = self.table.get(index);
            let (next, needed) = on_share(entry.state(), self.pins.of(index));
            let after = entry.in_state(next);
            match needed {
                OnShare::FillAndShare => {
                    self.split(index).map_or(Ok(()), |split| split.fill_all(locked, Access::Read))?;
                }
                OnShare::Refuse => return Err(Unresolved::Revoked),
                OnShare::Nothing | OnShare::Share | OnShare::GiveCopy => {}
            }
            if let Some(block) = entry.block() {
                (first, last) = (first.min(index.0), index.0);
                if needed != OnShare::GiveCopy {
                    self.pool().frames.add_reference(block);
                    frozen.entries.set(index, Entry::Borrowed(block));
                    if entry.is_owner() {
                        frozen.note_own(index);
                    }
                    self.table.set(index, after);
                    if matches!(entry, Entry::Overlaid(..)) {
                        open = if open.is_empty() { index.0 } else { open.start }..index.0 + 1;
                    }
                    if entry.is_charged() {
                        self.books.charged.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            }
        }
        if first > last {
            return Ok(None);
        }
        let entries = first..last + 1;
        let place = self.keep_all_off(locked, entries.clone())?;
        let is_as_before = Some(self.books.sealed.load(Ordering::Relaxed)) == sealed;
        let folded = self.fold_rest(locked, frozen, if is_as_before { open } else { entries.clone() }, place);
        match folded.and_then(|()| self.copy_pinned(frozen, entries.clone())) {
            Ok(()) => Ok(Some(KeptOff { entries, place })),
            Err(reason) => {
                self.let_writers_back(locked, KeptOff { entries, place });
                Err(reason)
            }
        }
    }

    /// Ends what [`RegionCore::share_all`] began, once all of the cut is made: from now on writes are copied.
    /// Fails if they could write to what is shared.
    pub(in crate::region) fn let_writers_go(&self, locked: Locked<'_>, kept_off: KeptOff) -> Result<(), Unresolved> {
        let shown = self.overlay_all(locked, kept_off.entries.clone(), kept_off.place);
        self.let_writers_back(locked, kept_off);
        shown
    }

    /// As [`RegionCore::let_writers_go`], where there is no cut.
    pub(in crate::region) fn let_writers_back(&self, locked: Locked<'_>, kept_off: KeptOff) {
        if kept_off.place == Place::Aside {
            self.let_all_go(locked, kept_off.entries);
        }
    }

    /// Keeps all writers off: they wait, system calls too, where the kernel is to copy from the snapshot on, or else
    /// fault.
    ///
    /// On failure the entries stay `Shared`, and the snapshot gives its references back. The next writes find a single
    /// reference and make their blocks writable again, whatever the kernel has left protected. For the same reason a
    /// `Shared` entry is protected once more: where nothing changes, that costs nothing.
    fn keep_all_off(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<Place, Unresolved> {
        if self.shows_by_page() && self.put_all_aside(locked, entries.clone()) {
            let is_split = |index: &usize| matches!(self.table.get(EntryIndex(*index)), Entry::Split(_));
            let mut split = entries.clone().filter(|index| self.table.has_splits() && is_split(index));
            let protected = split.try_for_each(|index| self.protect(locked, index..index + 1));
            if protected.is_err() {
                self.let_all_go(locked, entries);
            }
            return protected.map(|()| Place::Aside);
        }
        self.pins.runs_between(entries).try_for_each(|run| self.protect(locked, run))?;
        Ok(Place::Own)
    }

    /// Folds what has become private since [`RegionCore::fold_ahead`], among entries that include all that were
    /// writable since. All writers are kept off.
    fn fold_rest(
        &self,
        locked: Locked<'_>,
        frozen: &SnapshotCore<S>,
        entries: Range<usize>,
        place: Place,
    ) -> Result<(), Unresolved> {
        if !self.books.has_overlays() {
            return Ok(());
        }
        let mut rest = entries;
        while let Some(index) = self.next_patched(&mut rest, place).map_err(Unresolved::Unmappable)? {
            let Some(block) = self.table.get(index).block() else { continue };
            // The snapshot gets the folded block instead.
            frozen.entries.set(index, Entry::Zero);
            self.pool().release(block);
            let reserved = self.table.reservation(index);
            let own = if self.is_alone_with(block) { block } else { self.pool().copy_of(block, reserved)? };
            let folded = self.fold_read_only(locked, index, own, place);
            if folded.is_err() && own != block {
                self.pool().release_and(own, reserved);
            }
            folded?;
            self.pool().frames.add_reference(own);
            frozen.entries.set(index, Entry::Borrowed(own));
            frozen.note_own(index);
        }
        Ok(())
    }

    /// With page grain from the start, the region is shown through private mappings at once: as soon as writers go on,
    /// the kernel copies for them. What cannot be shown so is left to their faults.
    fn overlay_all(&self, locked: Locked<'_>, entries: Range<usize>, place: Place) -> Result<(), Unresolved> {
        if self.shows_by_page() { self.overlay_each(locked, entries, place) } else { Ok(()) }
    }

    /// Whether the kernel is to copy from the fork or snapshot on.
    pub(in crate::region) fn shows_by_page(&self) -> bool {
        self.books.grain == CopyGrain::Page && self.books.limit.is_none() && self.may_overlay()
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

    /// Gives copies of pinned blocks to `frozen`, after all other blocks were protected. So if a write is in the cut,
    /// every write that happened before it is too, unless both went to pinned blocks.
    fn copy_pinned(&self, frozen: &SnapshotCore<S>, entries: Range<usize>) -> Result<(), Unresolved> {
        if !self.pins.are_used() {
            return Ok(());
        }
        for index in entries.map(EntryIndex).filter(|index| self.pins.has(*index)) {
            if let Some(block) = self.table.get(index).block() {
                let copy = self.pool().copy_of(block, Reserved::No)?;
                frozen.entries.set(index, Entry::Borrowed(copy));
                frozen.note_own(index);
                frozen.parent.keeps_alone();
            }
        }
        Ok(())
    }
}
