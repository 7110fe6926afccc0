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
//! A snapshot holds blocks, not private pages. So CoW mappings are written back first, while others go on writing
//! (ahead.rs). What has become private since then is written back after the write-protection, and few pages have.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::mapping::addresses::Place;
use crate::region::state::{RegionCore, Unresolved};
use crate::snapshot::core::SnapshotCore;
use crate::sync::ExclusiveGuard;
use crate::sys::{Access, Sys};
use crate::table::transition::{OnShare, on_share};
use crate::table::{Entry, Locked, Origin, Reserved, WindowsGuard};
use crate::units::EntryIndex;

/// The entries that writers are kept off, and where these lie meanwhile.
pub(super) struct KeptOff {
    entries: Range<usize>,
    place: Place,
}

impl<S: Sys> RegionCore<S> {
    /// Keeps all others out: with the locks of all windows if there are CoW mappings, so that none is just being
    /// written back.
    pub(super) fn hold_all(&self) -> (WindowsGuard<'_>, ExclusiveGuard<'_>) {
        let mut windows = WindowsGuard::default();
        loop {
            let holds_windows = self.accounts.has_cow_mappings();
            if holds_windows {
                windows = self.table.lock_windows(0..self.table.windows());
            }
            let alone = self.lock.exclusive();
            if holds_windows || !self.accounts.has_cow_mappings() {
                return (windows, alone);
            }
        }
    }

    /// Shares all blocks with `frozen`, and keeps all writers off, until [`RegionCore::resume_writers`]. If it fails,
    /// they are resumed, and what is shared stays shared.
    pub(super) fn share_all(
        &self,
        locked: Locked<'_>,
        frozen: &SnapshotCore<S>,
        write_protected: Option<usize>,
    ) -> Result<Option<KeptOff>, Unresolved> {
        if self.accounts.revoked.load(Ordering::Relaxed) > 0 {
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
                    frozen.entries.set(index, Entry::Shared(block, Origin::Parent));
                    if entry.is_owner() {
                        frozen.note_own(index);
                    }
                    self.table.set(index, after);
                    if entry.is_writable_cow_mapping() {
                        open = if open.is_empty() { index.0 } else { open.start }..index.0 + 1;
                    }
                    if entry.is_charged() {
                        self.accounts.charged.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            }
        }
        if first > last {
            return Ok(None);
        }
        let entries = first..last + 1;
        let place = self.keep_all_off(locked, entries.clone())?;
        let is_as_before = Some(self.accounts.write_protected.load(Ordering::Relaxed)) == write_protected;
        let written_back =
            self.write_back_rest(locked, frozen, if is_as_before { open } else { entries.clone() }, place);
        match written_back.and_then(|()| self.copy_pinned(frozen, entries.clone())) {
            Ok(()) => Ok(Some(KeptOff { entries, place })),
            Err(reason) => {
                self.resume_uncut(locked, KeptOff { entries, place });
                Err(reason)
            }
        }
    }

    /// Ends what [`RegionCore::share_all`] began, once all of the cut is made: from now on writes are copied.
    /// Fails if they could write to what is shared.
    pub(super) fn resume_writers(&self, locked: Locked<'_>, kept_off: KeptOff) -> Result<(), Unresolved> {
        let shown = self.cow_map_all(locked, kept_off.entries.clone(), kept_off.place);
        self.resume_uncut(locked, kept_off);
        shown
    }

    /// As [`RegionCore::resume_writers`], where there is no cut.
    pub(super) fn resume_uncut(&self, locked: Locked<'_>, kept_off: KeptOff) {
        if kept_off.place == Place::Parked {
            self.resume_all(locked, kept_off.entries);
        }
    }

    /// Keeps all writers off: they wait, system calls too, where the kernel is to copy from the snapshot on, or else
    /// fault.
    ///
    /// On failure the entries stay `Shared`, and the snapshot gives its references back. The next writes find a single
    /// reference and make their blocks writable again, whatever the kernel has left protected. For the same reason a
    /// `Shared` entry is protected once more: where nothing changes, that costs nothing.
    fn keep_all_off(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<Place, Unresolved> {
        if self.shows_by_page() && self.park_all(locked, entries.clone()) {
            let protected = self.protect_split(locked, entries.clone());
            if protected.is_err() {
                self.resume_all(locked, entries);
            }
            return protected.map(|()| Place::Parked);
        }
        self.pins.runs_between(entries).try_for_each(|run| self.protect(locked, run))?;
        Ok(Place::Own)
    }

    /// Writes back what has become private since [`RegionCore::write_back_ahead`], among entries that include all that
    /// were writable since. All writers are kept off.
    fn write_back_rest(
        &self,
        locked: Locked<'_>,
        frozen: &SnapshotCore<S>,
        entries: Range<usize>,
        place: Place,
    ) -> Result<(), Unresolved> {
        if !self.accounts.has_cow_mappings() {
            return Ok(());
        }
        let mut rest = entries;
        while let Some(index) = self.next_patched(&mut rest, place).map_err(Unresolved::Unmappable)? {
            let Some(block) = self.table.get(index).block() else { continue };
            // The snapshot gets the block with the pages instead.
            frozen.entries.set(index, Entry::Zero);
            self.pool().release(block);
            let reserved = self.table.reservation(index);
            let own = if self.is_alone_with(block) { block } else { self.pool().copy_of(block, reserved)? };
            let written_back = self.write_back_read_only(locked, index, own, place);
            if written_back.is_err() && own != block {
                self.pool().release_and(own, reserved);
            }
            written_back?;
            self.pool().frames.add_reference(own);
            frozen.entries.set(index, Entry::Shared(own, Origin::Parent));
            frozen.note_own(index);
        }
        Ok(())
    }

    /// With page grain from the start, the region is shown through private mappings at once: as soon as writers go on,
    /// the kernel copies for them. What cannot be shown so is left to their faults.
    fn cow_map_all(&self, locked: Locked<'_>, entries: Range<usize>, place: Place) -> Result<(), Unresolved> {
        if self.shows_by_page() { self.cow_map_each(locked, entries, place) } else { Ok(()) }
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
                frozen.entries.set(index, Entry::Shared(copy, Origin::Parent));
                frozen.note_own(index);
                frozen.parent.keeps_alone();
            }
        }
        Ok(())
    }
}
