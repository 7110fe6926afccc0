//! Freezing makes a snapshot: it is the pause of a fork or snapshot.
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

use super::core::RegionCore;
use super::unresolved::Unresolved;
use crate::mapping::addresses::Place;
use crate::mapping::change::Recount;
use crate::own::fixed::Fixed;
use crate::pool::lineage::Derived;
use crate::pool::shortage::Found;
use crate::snapshot::core::SnapshotCore;
use crate::sync::{ExclusiveGuard, SignalsBlocked};
use crate::sys::{Access, Sys};
use crate::table::split::SplitPage;
use crate::table::transition::{OnShare, on_share};
use crate::table::{Entry, Locked, Reserved, WindowsGuard};
use crate::terms::error::RegionError;
use crate::terms::options::CopyGrain;
use crate::terms::snapshot_id::SnapshotId;
use crate::units::{EntryIndex, HUGE_PAGE};

/// So many bytes of overlays are sealed at once: the kernel looks at each page, which takes 2 ms for 1 GiB.
const SEALED_AT_ONCE: usize = 64 << 20;

/// So often a snapshot is tried that finds the pool full while others write by page.
const TRIES: usize = 16;

/// What a snapshot is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// For the program, which may ask for its place in the tree of snapshots.
    Snapshot,
    /// To become a fork at once.
    Fork,
}

impl<S: Sys> RegionCore<S> {
    /// Makes a snapshot of the region as it is now. The region is at it afterwards.
    pub(crate) fn freeze(&self) -> Result<Fixed<SnapshotCore<S>>, RegionError> {
        self.freeze_as(Purpose::Snapshot)
    }

    /// As [`RegionCore::freeze`], for a fork: the region stays where it is in the tree of snapshots.
    pub(crate) fn freeze_for_fork(&self) -> Result<Fixed<SnapshotCore<S>>, RegionError> {
        self.freeze_as(Purpose::Fork)
    }

    fn freeze_as(&self, purpose: Purpose) -> Result<Fixed<SnapshotCore<S>>, RegionError> {
        if self.books.revoked.load(Ordering::Relaxed) > 0 {
            return Err(RegionError::Revoked);
        }
        let _one_at_a_time = self.freezing.lock();
        // Under that lock, so that of two snapshots the later has the greater id.
        let id = match purpose {
            Purpose::Snapshot => Some(SnapshotId::next()),
            Purpose::Fork => None,
        };
        self.density.forget_some();
        self.promises.end();
        let mut tries = 0;
        loop {
            // What the pool's thread seals after this is looked for in the pause.
            let sealed = self.books.sealed.load(Ordering::Relaxed);
            self.fold_ahead()?;
            let frozen = SnapshotCore::empty(self.pool(), self.table.len(), Derived::of(&self.books.cow), id);
            match self.fill(&frozen, sealed) {
                Ok(()) => {
                    frozen.keep_home(self.home.move_on(self.pool(), self.table.len()));
                    return Ok(frozen);
                }
                // Pinned blocks are copied, and the copies take blocks.
                Err(RegionError::PoolFull { .. }) if self.drops_some_lazy() => {}
                // So are blocks that have got private pages since they were folded. To fold those ahead makes room.
                Err(RegionError::PoolFull { .. }) if self.books.has_overlays() && tries < TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Notes the snapshot's place in the tree, and that the region is there now.
    fn is_now_at(&self, frozen: &SnapshotCore<S>) {
        frozen.from.set(self.books.origin.get());
        if frozen.id.is_some() {
            self.books.origin.set(frozen.id);
        }
    }

    /// Takes that back, for a snapshot that the program does not get.
    pub(crate) fn forget(&self, frozen: &SnapshotCore<S>) {
        self.books.origin.go_back(frozen.id, frozen.from.get());
    }

    fn drops_some_lazy(&self) -> bool {
        let _signals = SignalsBlocked::new();
        self.pool().drop_some_lazy() != Found::None
    }

    pub(crate) fn fill(&self, frozen: &SnapshotCore<S>, sealed: usize) -> Result<(), RegionError> {
        let pool = self.pool();
        let _signals = SignalsBlocked::new();
        // Whoever wants a block of the snapshot back waits until it holds all of its blocks.
        let filling = frozen.lock.exclusive();
        let started = pool.sys.now();
        let (windows, alone) = self.hold_all();
        self.promises.end();
        let filled = self.fill_locked(Locked::alone(&alone), frozen, sealed);
        if filled.is_ok() {
            self.is_now_at(frozen);
        } else {
            // This happens under the region lock: other faults take a block with two holders for write-protected, and
            // copy it.
            frozen.let_go_of_all(Locked::alone(&filling));
            self.open_again(Locked::alone(&alone), 0..self.table.len(), Place::Own);
        }
        self.addresses.recount(self.addresses.mappings(), 1 + self.shown().edges(0..self.table.len()));
        drop((windows, alone));
        if let Err(reason) = filled {
            // The lock is released first, since the error's text allocates.
            drop(filling);
            return Err(self.error(reason));
        }
        let pause = pool.sys.now().saturating_sub(started);
        self.counters.snapshots.fetch_add(1, Ordering::Relaxed);
        self.counters.longest_pause.fetch_max(pause, Ordering::Relaxed);
        self.counters.paused.fetch_add(pause, Ordering::Relaxed);
        Ok(())
    }

    /// Folds what is private now, before the pause. Unless the kernel is to copy from the snapshot on, all overlays are
    /// sealed first: those that nobody writes to meanwhile need no look in the pause.
    fn fold_ahead(&self) -> Result<(), RegionError> {
        if !self.books.has_overlays() {
            return Ok(());
        }
        if self.books.grain != CopyGrain::Page {
            let signals = SignalsBlocked::new();
            let sealed = self.seal_all();
            drop(signals);
            sealed.map_err(|reason| self.error(reason))?;
        }
        let patched = self.patched(0..self.table.len()).map_err(RegionError::System)?;
        for patched in &patched {
            self.density.note(patched.index, patched.pages, self.pool().block_size);
        }
        self.fold_each(&patched)
    }

    /// Seals all overlays, some at a time. The caller has blocked the program's signals.
    pub(super) fn seal_all(&self) -> Result<(), Unresolved> {
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
            while let Some(run) = self.next_overlays(within.clone()) {
                within.start = run.end;
                self.seal(Locked::windows(&windows, &publishing), run)?;
            }
        }
        Ok(())
    }

    /// Keeps all others out: with the locks of all windows if there are overlays, so that none is just being folded.
    fn hold_all(&self) -> (WindowsGuard<'_>, ExclusiveGuard<'_>) {
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

    fn fill_locked(&self, locked: Locked<'_>, frozen: &SnapshotCore<S>, sealed: usize) -> Result<(), Unresolved> {
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
            return Ok(());
        }
        let entries = first..last + 1;
        let place = self.keep_all_off(locked, entries.clone())?;
        let is_as_before = self.books.sealed.load(Ordering::Relaxed) == sealed;
        let folded = self.fold_rest(locked, frozen, if is_as_before { open } else { entries.clone() }, place);
        let copied = folded.and_then(|()| self.copy_pinned(frozen, entries.clone()));
        let filled = copied.and_then(|()| self.overlay_all(locked, entries.clone(), place));
        if place == Place::Aside {
            self.let_all_go(locked, entries);
        }
        filled
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
    pub(super) fn shows_by_page(&self) -> bool {
        self.books.grain == CopyGrain::Page && self.books.limit.is_none() && self.may_overlay()
    }

    /// Takes away the right to write to `entries`. Their mappings are counted when all runs are done.
    pub(super) fn protect(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
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
