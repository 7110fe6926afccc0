//! Page grain: blocks that are shown through a private mapping, so that the kernel copies the pages that are written.
//!
//! ```text
//!   first write ─▶ overlay: private mapping of a GiB ───▶ Overlaid: the kernel copies each page that is written
//!                                                           │ seal       ▲ unseal: a write, if no page is private
//!                                                           ▼            │
//!   block of its own ◀── fold (fold.rs), or a copy with the private pages ── Sealed
//! ```
//! A snapshot seals all overlays, after their private pages were folded. A sealed overlay that has private pages is one
//! that the pool's thread leaves to the writer to copy (maintain.rs); or a snapshot is just being taken, or has failed.

use std::ops::Range;
use std::sync::atomic::Ordering;

use hugefork_kernels::Use;

use crate::mapping::addresses::Place;
use crate::mapping::change::{Recount, Remapped, Right};
use crate::pool::lineage::CowLimit;
use crate::region::state::core::RegionCore;
use crate::region::state::unresolved::Unresolved;
use crate::region::write::fault::{Fault, Resolution};
use crate::sync::SharedGuard;
use crate::sys::{Access, Shows, Sys, SystemError};
use crate::table::transition::{Event, Grain, on_protect_failed, on_seal};
use crate::table::{Entry, Locked, State};
use crate::terms::options::CopyGrain;
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

impl<S: Sys> RegionCore<S> {
    /// Whether writes may be by page. An observer has to be told of each change of memory, and the kernel tells nobody.
    pub(in crate::region) fn may_overlay(&self) -> bool {
        let pool = self.pool();
        pool.sys.has_overlays()
            && pool.block_size.bytes() > BASE_PAGE
            && self.books.grain != CopyGrain::Block
            && self.observer.get().is_none()
    }
}

impl<S: Sys> Fault<'_, S> {
    /// What is to be copied at a write to `entry`, which others hold too.
    pub(in crate::region) fn grain(&self, entry: Entry) -> Grain {
        let by_page = self.region.may_overlay() && self.is_sparse();
        match entry {
            // Another thread was faster.
            Entry::Overlaid(..) => Grain::Page,
            Entry::Shared(_) | Entry::Borrowed(_) | Entry::Sealed(..) if by_page => Grain::Page,
            Entry::Zero
            | Entry::Private(_)
            | Entry::Shared(_)
            | Entry::Borrowed(_)
            | Entry::Lazy(_)
            | Entry::Split(_)
            | Entry::Sealed(..)
            | Entry::Revoked => Grain::Block,
        }
    }

    fn is_sparse(&self) -> bool {
        let region = self.region;
        let is_whole = self.outlook.manner.used == Use::Whole;
        let is_guessed = match region.pool().tending.is_paced() {
            // The thread promotes what is dense.
            true => !is_whole,
            // A write to the first or last page of a block may be part of a stream.
            false => !is_whole && self.outlook.stream.is_none() && !region.density.is_dense(self.index),
        };
        region.books.grain == CopyGrain::Page || is_guessed
    }

    /// How many blocks may become overlays. Where there is a limit, none is charged to it that nobody has written to.
    fn most_overlaid(&self, entry: Entry, limit: Option<CowLimit>) -> Result<usize, Unresolved> {
        if entry.is_charged() {
            // Another thread was faster.
            return Ok(1);
        }
        self.check_limit(limit)?;
        Ok(if limit.is_some() && entry.is_owner() { 1 } else { usize::MAX })
    }

    /// Has the kernel copy what is written to the block and its neighbours: they are shown through a private mapping,
    /// or that is there and gets the right to write.
    pub(in crate::region) fn by_page(
        &self,
        publishing: &SharedGuard<'_>,
        entry: Entry,
        limit: Option<CowLimit>,
    ) -> Result<Resolution, Unresolved> {
        let most = self.most_overlaid(entry, limit)?;
        let (_before, _after, run) = self.alike_by_page(entry, most);
        let locked = Locked::windows(&self.window, publishing);
        let shown = match entry.is_overlay() {
            true => self.region.unseal(locked, run, Place::Own),
            false => self.region.overlay(locked, run, Place::Own),
        };
        match shown {
            Ok(()) => Ok(Resolution::Overlaid),
            Err(reason) => Err(reason),
        }
    }

    /// Takes away the right to write to the overlay, if it is one and cannot be held when its block was copied.
    pub(in crate::region) fn seal(&self, publishing: &SharedGuard<'_>) -> Result<(), Unresolved> {
        if self.region.table.get(self.index).is_overlay() && !self.region.addresses.can_hold() {
            self.region.seal(Locked::windows(&self.window, publishing), self.index.0..self.index.0 + 1)?;
        }
        Ok(())
    }

    /// After a copy that failed: the overlay may have private pages, so it is not sealed.
    #[cold]
    #[inline(never)] // Not on the stack below a copy.
    pub(in crate::region) fn open_again(&mut self) {
        let publishing = self.region.lock.shared();
        let locked = Locked::windows(&self.window, &publishing);
        self.region.open_again(locked, self.index.0..self.index.0 + 1, self.place);
    }

    /// After a fold or copy that the kernel refused: an overlay can do without, and takes the write. The next fork or
    /// snapshot tries again, and says so if it fails too.
    #[cold]
    #[inline(never)] // As above.
    pub(in crate::region) fn goes_on_by_page(&self) -> bool {
        let publishing = self.region.lock.shared();
        let locked = Locked::windows(&self.window, &publishing);
        let is_overlay = self.region.table.get(self.index).is_overlay();
        is_overlay && self.region.unseal(locked, self.index.0..self.index.0 + 1, Place::Own).is_ok()
    }
}

impl<S: Sys> RegionCore<S> {
    /// Shows entries, whose blocks are neighbours, through a private mapping. None of them has private pages. If only
    /// the right to write is missing, they are overlays all the same, and the next write asks for it.
    pub(in crate::region) fn overlay(
        &self,
        locked: Locked<'_>,
        entries: Range<usize>,
        place: Place,
    ) -> Result<(), Unresolved> {
        let Some(start) = self.table.get(EntryIndex(entries.start)).block() else { return Ok(()) };
        let shows = Shows::Overlay { start, access: Access::ReadWrite };
        match self.site_at(place).remap(locked, &entries, shows) {
            Ok(remapped) => self.publish_overlays(locked, entries, remapped),
            Err(refused) => Err(refused.into()),
        }
    }

    #[inline(never)] // Not on the stack where something is put back.
    pub(in crate::region) fn publish_overlays(
        &self,
        locked: Locked<'_>,
        entries: Range<usize>,
        remapped: Remapped<'_, S>,
    ) -> Result<(), Unresolved> {
        let right = remapped.right();
        remapped.published(self.overlaid(locked, entries));
        self.noted(right)
    }

    /// Gives the right to write to sealed overlays.
    pub(in crate::region) fn unseal(
        &self,
        locked: Locked<'_>,
        entries: Range<usize>,
        place: Place,
    ) -> Result<(), Unresolved> {
        let allowed = self.site_at(place).reprotect(locked, self.bytes_of(&entries), Access::ReadWrite)?;
        let stored = match allowed.right() {
            Right::Granted => self.overlaid(locked, entries),
            Right::Unknown => self.protect_failed(locked, entries),
        };
        Ok(allowed.published(stored)?)
    }

    /// Keeps writers off overlays by having them wait, system calls too. The pages are aside meanwhile. False if that
    /// cannot be done: then they are to be sealed.
    pub(in crate::region) fn holds(&self, locked: Locked<'_>, entries: &Range<usize>) -> bool {
        // Two mappings more here, and two aside.
        self.addresses.can_hold() && self.pool().sys.budget().fits(4) && self.site().put_aside(locked, entries)
    }

    /// Lets those who waited go, after something else was shown at `entries`, whose pages were in `place`.
    pub(in crate::region) fn wake_waiting(&self, entries: &Range<usize>, place: Place) {
        if place == Place::Aside {
            self.site().let_go(entries);
        }
    }

    /// Takes away the right to write to overlays. If they have none by their state, this is done all the same: a call
    /// that failed may have left some. It costs nothing where nothing changes.
    pub(in crate::region) fn seal(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
        let sealed = self.site().reprotect(locked, self.bytes_of(&entries), Access::Read)?;
        let stored = match sealed.right() {
            Right::Granted => self.store(locked, Event::Seal, entries, |_, old| old.in_state(on_seal(old.state()))),
            Right::Unknown => self.protect_failed(locked, entries),
        };
        Ok(sealed.published(stored)?)
    }

    /// Shows all blocks among `entries` that others hold too through private mappings, as far as that can be done. On
    /// failure some of them may still be writable.
    pub(in crate::region) fn overlay_each(
        &self,
        locked: Locked<'_>,
        entries: Range<usize>,
        place: Place,
    ) -> Result<(), Unresolved> {
        let mut next = entries.start;
        while let Some(run) = self.next_in_a_row(next..entries.end) {
            next = run.end;
            let is_sealed = |index: &usize| matches!(self.table.get(EntryIndex(*index)), Entry::Sealed(..));
            // The right to write is a tenth of the cost of a new mapping, if it takes few calls.
            let pieces = 1 + run.clone().skip(1).filter(|index| is_sealed(index) != is_sealed(&(index - 1))).count();
            if pieces > 1 + run.len() / 16 {
                self.overlay_or_protect(locked, run, place)?;
                continue;
            }
            let mut piece = run.start;
            while piece < run.end {
                let is_new = !is_sealed(&piece);
                let end = (piece..run.end).find(|index| is_sealed(index) == is_new).unwrap_or(run.end);
                match is_new {
                    true => self.overlay_or_protect(locked, piece..end, place)?,
                    // What stays sealed is left to the fault of the next write.
                    false => drop(self.unseal(locked, piece..end, place)),
                }
                piece = end;
            }
        }
        Ok(())
    }

    /// Shows entries through one private mapping. If that cannot be done it takes away the right to write: what lies
    /// aside has it still, and comes back with it.
    fn overlay_or_protect(&self, locked: Locked<'_>, entries: Range<usize>, place: Place) -> Result<(), Unresolved> {
        if self.overlay(locked, entries.clone(), place).is_ok() || place == Place::Own {
            return Ok(());
        }
        let protected = self.site_at(place).reprotect(locked, self.bytes_of(&entries), Access::Read)?;
        Ok(protected.published(Recount::default())?)
    }

    /// The first run of entries that can be shown through one private mapping.
    fn next_in_a_row(&self, entries: Range<usize>) -> Option<Range<usize>> {
        self.next_row(entries, |entry| match entry {
            Entry::Shared(block) | Entry::Borrowed(block) | Entry::Sealed(block, _) => Some((block, false)),
            Entry::Zero
            | Entry::Private(_)
            | Entry::Lazy(_)
            | Entry::Split(_)
            | Entry::Overlaid(..)
            | Entry::Revoked => None,
        })
    }

    /// The first run of entries, of those that others hold too or that are overlays, which is one mapping, as far as
    /// that can be known.
    pub(in crate::region) fn next_mapping(&self, entries: Range<usize>) -> Option<Range<usize>> {
        self.next_row(entries, |entry| match entry {
            Entry::Shared(block) | Entry::Borrowed(block) => Some((block, false)),
            Entry::Sealed(block, _) | Entry::Overlaid(block, _) => Some((block, true)),
            Entry::Zero | Entry::Private(_) | Entry::Lazy(_) | Entry::Split(_) | Entry::Revoked => None,
        })
    }

    /// The first run of entries with blocks in a row, of one kind. `kind` says which block and which kind.
    fn next_row(
        &self,
        mut entries: Range<usize>,
        kind: impl Fn(Entry) -> Option<(BlockId, bool)>,
    ) -> Option<Range<usize>> {
        let at = |index: usize| kind(self.table.get(EntryIndex(index)));
        let start = entries.find(|&index| at(index).is_some())?;
        let follows = |index: usize| at(index - 1).map(|(before, kind)| (before.offset(1), kind)) == at(index);
        let end = entries.find(|&index| !follows(index)).unwrap_or(entries.end);
        Some(start..end)
    }

    /// Has whoever uses blocks that others hold too, or overlays, among `entries` wait, system calls too. They lie
    /// aside from then on. False if that cannot be done, and then nothing has changed.
    pub(in crate::region) fn put_all_aside(&self, locked: Locked<'_>, entries: Range<usize>) -> bool {
        let (site, mut mappings, mut rest) = (self.site(), 0, entries.clone());
        while let Some(one) = self.next_mapping(rest.clone()) {
            (mappings, rest.start) = (mappings + 1, one.end);
        }
        // As many aside, and one at each edge.
        if !self.addresses.can_hold() || !self.pool().sys.budget().fits(2 * mappings + 4) {
            return false;
        }
        rest = entries.clone();
        while let Some(one) = self.next_mapping(rest.clone()) {
            if !site.put_aside(locked, &one) {
                self.let_all_go(locked, entries.start..one.start);
                return false;
            }
            rest.start = one.end;
        }
        true
    }

    /// Shows what lies aside where it belongs, and lets all go who wait for it.
    pub(in crate::region) fn let_all_go(&self, locked: Locked<'_>, entries: Range<usize>) {
        let (site, mut rest) = (self.site(), entries.clone());
        while let Some(one) = self.next_mapping(rest.clone()) {
            site.put_back(locked, &one);
            rest.start = one.end;
        }
        if !entries.is_empty() {
            site.let_go(&entries);
        }
    }

    /// After something failed: what lay aside is there again. What was sealed may be writable, or have private pages.
    /// It is writable by its state again, and the next write there sees to it that it is.
    pub(in crate::region) fn open_again(&self, locked: Locked<'_>, entries: Range<usize>, place: Place) {
        if place == Place::Aside {
            self.let_all_go(locked, entries.clone());
        }
        let mut rest = entries;
        while let Some(run) = self.next_overlays(rest.clone()) {
            rest.start = run.end;
            let Recount { before, after } = self.protect_failed(locked, run);
            self.addresses.recount(before, after);
        }
    }

    /// Notes that overlays may not be writable that count as that.
    pub(in crate::region) fn noted(&self, right: Result<(), SystemError>) -> Result<(), Unresolved> {
        match right {
            Ok(()) => Ok(()),
            Err(error) => {
                self.books.unsure.store(true, Ordering::Relaxed);
                Err(Unresolved::Unmappable(error))
            }
        }
    }

    #[inline(never)] // Not on the stack where something is put back.
    fn overlaid(&self, locked: Locked<'_>, entries: Range<usize>) -> Recount {
        self.store(locked, Event::Write, entries, |_, old| old.in_state(State::Overlaid))
    }

    fn protect_failed(&self, locked: Locked<'_>, entries: Range<usize>) -> Recount {
        self.books.unsure.store(true, Ordering::Relaxed);
        self.store(locked, Event::ProtectFailed, entries, |_, old| old.in_state(on_protect_failed(old.state())))
    }
}
