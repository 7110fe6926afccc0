//! Keeps writers off entries of a region, and resumes them.
//!
//! | way | place of the pages | effect on writers |
//! |---|---|---|
//! | held | parked | threads and system calls wait until they are resumed |
//! | write-protected, or protected | the region's own addresses | threads fault; system calls that write fail |
//!
//! Holding takes more mappings, and a process that is permitted to handle the faults of system calls. [`Quiesced`]
//! holds writers where that is permitted, and otherwise takes away the right to write. From then on no thread writes to
//! its entries. Its end resumes the threads that wait:
//!
//! | end | what the entries show | what the entries say |
//! |---|---|---|
//! | `done` | what the caller has shown there | what the caller has stored |
//! | `unpark`, then `done` | the parked contents, as changed meanwhile | the same; write-protected entries stay so |
//! | drop, after a failure | the parked contents | CoW mappings are writable, and the next write makes them so |
//!
//! While a snapshot copies a pinned block, or a reset writes to it, only its pinned pages have to stay writable. The
//! pages beside them are closed to writers, like all other memory of the region: a thread that writes there waits, so
//! the cut is one moment for all pages that are not pinned. If the rest of the region is parked, so that system calls
//! wait too, these pages are parked as well. The block stays `Private` meanwhile. If the kernel refuses to make the
//! pages writable again, the pins note that, and the next thread that needs such a block writable tries again.

use std::mem;
use std::ops::Range;

use crate::mapping::addresses::Place;
use crate::mapping::change::Recount;
use crate::mem::{EngineVec, Own};
use crate::ranges::runs;
use crate::region::state::{RegionCore, Unresolved};
use crate::stats::histogram::Recording;
use crate::sync::{ExclusiveGuard, SharedGuard};
use crate::sys::{Access, Sys};
use crate::table::split::SplitPage;
use crate::table::transition::{Event, on_write_protect};
use crate::table::{Entry, Locked, WindowsGuard};
use crate::types::options::Writers;
use crate::units::{BASE_PAGE, EntryIndex, HUGE_PAGE};

/// The bytes of CoW mappings that are write-protected at once: the kernel visits each page, which takes 2 ms for 1 GiB.
const PROTECTED_AT_ONCE_BYTES: usize = 64 << 20;

/// The most mappings that a run of pages adds when its access differs from that of the pages on both sides.
const MAPPINGS_OF_A_RUN: usize = 2;

/// A guard that keeps writers off entries of a region until it ends.
pub(in crate::region) struct Quiesced<'a, S: Sys> {
    region: &'a RegionCore<S>,
    locks: Locks<'a>,
    /// The entries whose writers the guard resumes.
    pub(in crate::region) entries: Range<usize>,
    /// The place of the pages.
    pub(in crate::region) place: Place,
    /// The place of the pages beside pinned ones, while writers are kept off them.
    beside_pins: Option<Place>,
    /// If pages are parked: the record of the times for which their users waited, and the start of this time.
    timed: Option<(&'a Recording, u64)>,
}

/// The locks that keep other threads from changing the entries meanwhile.
pub(in crate::region) enum Locks<'a> {
    /// The locks of their windows. The guard takes the region lock when it needs it, so a caller with the region lock
    /// must not drop the guard.
    Windows(&'a WindowsGuard<'a>),
    /// The region lock.
    Region(Locked<'a>),
    /// The region lock, and perhaps the locks of all windows. The guard owns and releases them.
    Own { windows: WindowsGuard<'a>, region: ExclusiveGuard<'a> },
}

impl<'a, S: Sys> Quiesced<'a, S> {
    /// Makes a guard that keeps no writers off yet. Its drop still resumes the writers of `entries`.
    pub(in crate::region) fn new(region: &'a RegionCore<S>, locks: Locks<'a>, entries: Range<usize>) -> Self {
        Quiesced { region, locks, entries, place: Place::Own, beside_pins: None, timed: None }
    }

    /// Makes the guard one for other entries. Nothing may be parked.
    pub(in crate::region) fn covers(&mut self, entries: Range<usize>) {
        self.entries = entries;
    }

    /// Keeps writers off a run of CoW mappings, and releases the region lock. If writers are held, `held` records for
    /// how long.
    pub(in crate::region) fn begin(
        region: &'a RegionCore<S>,
        windows: &'a WindowsGuard<'a>,
        publishing: SharedGuard<'_>,
        entries: Range<usize>,
        held: &'a Recording,
    ) -> Result<Self, Unresolved> {
        let since = region.pool().sys.now();
        let place = region.keep_writers_off(Locked::windows(windows, &publishing), &entries)?;
        let timed = (place == Place::Parked).then_some((held, since));
        Ok(Quiesced { region, locks: Locks::Windows(windows), entries, place, beside_pins: None, timed })
    }

    /// Keeps writers off a run of CoW mappings, which go on counting as writable. They must be writable when `done` is
    /// called.
    pub(in crate::region) fn begin_briefly(
        region: &'a RegionCore<S>,
        locked: Locked<'a>,
        entries: Range<usize>,
    ) -> Result<Self, Unresolved> {
        let mut quiesced = Quiesced::new(region, Locks::Region(locked), entries);
        if region.shows_by_page() && region.holds(locked, &quiesced.entries) {
            quiesced.place = Place::Parked;
        } else {
            let bytes = region.bytes_of(&quiesced.entries);
            region.site().reprotect(locked, bytes, Access::Read)?.published(Recount::default())?;
        }
        Ok(quiesced)
    }

    /// Keeps writers off its entries, which are a run of CoW mappings.
    pub(in crate::region) fn keep_off(&mut self) -> Result<(), Unresolved> {
        self.place = self.locked(|locked| self.region.keep_writers_off(locked, &self.entries))?;
        Ok(())
    }

    /// Keeps writers off all its entries, in whatever state. Writers wait if the region shows shared blocks by page,
    /// and fault otherwise. Of a pinned block, only the pinned pages stay writable .
    ///
    /// Entries are protected even if their state is read-only, since an earlier failure may have left some writable.
    /// Two kinds are left out, because each call waits for threads of the process that just then get memory, 4 ms for 2
    /// MiB in a virtual machine: CoW mappings that count as writable, because their pages are captured; and blocks with
    /// more than `references` references, because they were protected when another holder got them.
    pub(in crate::region) fn keep_all_off(&mut self, references: u32) -> Result<(), Unresolved> {
        let (region, entries) = (self.region, self.entries.clone());
        if region.shows_by_page() && self.locked(|locked| region.park_all(locked, entries.clone())) {
            self.place = Place::Parked;
        }
        let are_parked =
            self.place == Place::Parked && self.locked(|locked| region.park_beside_pins(locked, entries.clone()));
        let place = if are_parked { Place::Parked } else { Place::Own };
        self.beside_pins = Some(place);
        if !are_parked {
            self.locked(|locked| region.protect_beside_pins(locked, entries.clone()))?;
        }
        if self.place == Place::Parked {
            return self.locked(|locked| region.protect_split(locked, entries));
        }
        let frames = &region.pool().frames;
        let is_left_out = |index: usize| match region.table.get(EntryIndex(index)) {
            Entry::Shared(block, _) => frames.references(block) > references,
            Entry::CowMapped(_, _, access) => access == Access::ReadWrite,
            Entry::Zero | Entry::Private(_) | Entry::Lazy(_) | Entry::Split(_) | Entry::Revoked => false,
        };
        self.locked(|locked| {
            let entries = entries.start..entries.end - usize::from(seeded!("snapshot-forgets-one-protect"));
            let mut closed = region.visible(entries).flat_map(|run| runs(run, |index| !is_left_out(index)));
            closed.try_for_each(|run| region.protect(locked, run))
        })
    }

    /// Calls `change` with the proof that entries may be changed.
    pub(in crate::region) fn locked<R>(&self, change: impl FnOnce(Locked<'_>) -> R) -> R {
        match &self.locks {
            Locks::Windows(windows) => change(Locked::windows(windows, &self.region.lock.shared())),
            Locks::Region(locked) => change(*locked),
            Locks::Own { region, .. } => change(Locked::alone(region)),
        }
    }

    /// Moves parked pages back to the region's own addresses, and resumes the threads that wait for them.
    pub(in crate::region) fn unpark(&mut self) {
        let entries = self.entries.clone();
        self.unpark_in([entries]);
    }

    /// As [`Quiesced::unpark`], if only entries in `runs` are parked.
    pub(in crate::region) fn unpark_in(&mut self, runs: impl IntoIterator<Item = Range<usize>>) {
        if self.place == Place::Parked {
            let region = self.region;
            self.locked(|locked| runs.into_iter().for_each(|run| region.unpark_each(locked, run)));
            self.resume();
        }
    }

    /// Ends the guard, after the caller has shown something else at the entries or the parked pages are back.
    pub(in crate::region) fn done(mut self) {
        self.resume();
        self.entries = 0..0;
    }

    /// As [`Quiesced::done`], for a guard that owns the locks of all windows. Keeps the windows locked for which
    /// `is_kept` is true. Returns a guard for each of these, in order.
    pub(in crate::region) fn done_but_for(mut self, is_kept: impl Fn(usize) -> bool) -> EngineVec<WindowsGuard<'a>> {
        self.resume();
        self.entries = 0..0;
        let mut kept = EngineVec::new_in(Own);
        if let Locks::Own { windows, .. } = &mut self.locks {
            let each = mem::take(windows).each().enumerate();
            kept.extend(each.filter_map(|(window, guard)| is_kept(window).then_some(guard)));
        }
        kept
    }

    /// Makes the pages beside pinned ones writable again.
    fn open(&mut self) {
        let Some(place) = self.beside_pins.take() else { return };
        let entries = self.entries.clone();
        self.locked(|locked| match place {
            Place::Parked => self.region.unpark_beside_pins(locked, entries),
            Place::Own | Place::Staging => self.region.allow_beside_pins(locked, entries),
        });
    }

    /// Wakes the threads that wait. Nothing may be parked any more except pages beside pinned ones.
    fn resume(&mut self) {
        self.open();
        if mem::replace(&mut self.place, Place::Own) == Place::Parked {
            self.region.site().resume(&self.region.bytes_of(&self.entries));
            if let Some((held, since)) = self.timed.take() {
                held.record(self.region.pool().sys.now().saturating_sub(since));
            }
        }
    }

    /// Ends the guard as a drop does, but keeps its locks. CoW mappings that were write-protected may be writable by
    /// now, or have private pages. So they count as writable again, and the next write there makes them so.
    #[cold]
    pub(in crate::region) fn fail(&mut self) {
        self.open();
        self.unpark();
        let entries = mem::take(&mut self.entries);
        let region = self.region;
        self.locked(|locked| {
            region.cow_mappings(entries).for_each(|run| region.note_failed_protection(locked, run));
        });
    }
}

impl<S: Sys> Drop for Quiesced<'_, S> {
    fn drop(&mut self) {
        if !self.entries.is_empty() {
            self.fail();
        }
    }
}

impl<S: Sys> RegionCore<S> {
    /// Keeps writers off CoW mappings by making threads and system calls wait. The pages are parked meanwhile. False if
    /// that cannot be done; then the caller has to write-protect them.
    pub(in crate::region) fn holds(&self, locked: Locked<'_>, entries: &Range<usize>) -> bool {
        // Up to two more mappings here, and two in the parking.
        self.addresses.can_hold()
            && self.pool().sys.budget().fits(4)
            && self.site().park(locked, &self.bytes_of(entries))
    }

    /// Keeps writers off CoW mappings, by holding or else by write-protecting. Returns the place of their pages.
    fn keep_writers_off(&self, locked: Locked<'_>, entries: &Range<usize>) -> Result<Place, Unresolved> {
        if self.holds(locked, entries) {
            return Ok(Place::Parked);
        }
        if self.accounts.writers == Writers::NeverFault {
            return Err(Unresolved::NotYet);
        }
        if !seeded!("write-back-without-write-protection") {
            self.write_protect(locked, entries.clone())?;
        }
        Ok(Place::Own)
    }

    /// Write-protects CoW mappings, even those whose state is read-only: a call that failed may have left some of them
    /// writable. This costs nothing where nothing changes.
    pub(in crate::region) fn write_protect(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
        Ok(self.reprotect(locked, Place::Own, entries, Access::Read, Event::WriteProtect, on_write_protect)?)
    }

    /// Write-protects all CoW mappings, some at a time, unless writes to them are prepared. The caller has blocked the
    /// program's signals.
    pub(in crate::region) fn write_protect_all(&self) -> Result<(), Unresolved> {
        let may_be_protected = |index: usize| {
            let index = EntryIndex(index);
            self.table.get(index).is_cow_mapping() && !self.captured.is_prepared(index)
        };
        let mut rest = 0..self.table.len();
        while let Some(run) = self.cow_mappings(rest.clone()).next() {
            let windows = self.windows_of(&run);
            let at_once = PROTECTED_AT_ONCE_BYTES / self.pool().block_size.bytes().max(HUGE_PAGE);
            let windows = windows.start..windows.end.min(windows.start + at_once.max(1));
            rest.start = run.end.min(self.table.entries_of(windows.clone()).end);
            let windows = self.table.lock_windows(windows);
            let publishing = self.lock.shared();
            // Other threads may have changed entries since.
            for run in runs(run.start..rest.start, may_be_protected) {
                self.write_protect(Locked::windows(&windows, &publishing), run)?;
            }
        }
        Ok(())
    }

    /// Takes away the right to write to `entries`. Their mappings are counted when all runs are done.
    fn protect(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
        let bytes = self.bytes_of(&entries);
        let protected = self.site().reprotect(locked, bytes, Access::Read)?;
        for split in entries.filter(|_| self.table.has_splits()).filter_map(|index| self.split(EntryIndex(index))) {
            for page in split.pages.runs_of(0..split.pages.len(), SplitPage::Writable) {
                split.pages.set(page, SplitPage::Readable);
            }
        }
        Ok(protected.published(Recount::default())?)
    }

    /// Takes away the right to write to split blocks among `entries`, which are not parked with the others.
    fn protect_split(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
        let is_split = |index: &usize| matches!(self.table.get(EntryIndex(*index)), Entry::Split(_));
        let mut split = entries.filter(|index| self.table.has_splits() && is_split(index));
        split.try_for_each(|index| self.protect(locked, index..index + 1))
    }

    /// The runs of entries that are one mapping each, as far as the entries tell. Only shared entries and CoW mappings
    /// are in such a run.
    pub(super) fn mappings(&self, entries: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        self.rows(entries, |entry| match entry {
            Entry::Shared(block, _) => Some((block, false)),
            Entry::CowMapped(block, ..) => Some((block, true)),
            Entry::Zero | Entry::Private(_) | Entry::Lazy(_) | Entry::Split(_) | Entry::Revoked => None,
        })
    }

    /// Parks the shared blocks and CoW mappings among `entries`: threads and system calls that use them wait. False if
    /// that cannot be done; then nothing has changed.
    fn park_all(&self, locked: Locked<'_>, entries: Range<usize>) -> bool {
        let (site, mappings) = (self.site(), self.mappings(entries.clone()).count());
        // The parking takes as many mappings again, and one at each edge.
        if !self.addresses.can_hold() || !self.pool().sys.budget().fits(2 * mappings + 4) {
            return false;
        }
        for one in self.mappings(entries.clone()) {
            if !site.park(locked, &self.bytes_of(&one)) {
                let parked = entries.start..one.start;
                self.unpark_each(locked, parked.clone());
                if !parked.is_empty() {
                    site.resume(&self.bytes_of(&parked));
                }
                return false;
            }
        }
        true
    }

    fn unpark_each(&self, locked: Locked<'_>, entries: Range<usize>) {
        self.mappings(entries).for_each(|one| self.site().unpark(locked, &self.bytes_of(&one)));
    }

    /// The runs of entries that are neither pinned nor revoked.
    pub(in crate::region) fn visible(&self, entries: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let is_there = |index: usize| self.table.get(EntryIndex(index)) != Entry::Revoked;
        self.pins.runs_between(entries).flat_map(move |between| runs(between, is_there))
    }

    /// The runs of pages beside pinned ones, in bytes. The caller holds a lock that keeps the pins as they are.
    fn beside_pins(&self, entries: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        self.pins.pinned(entries).filter(|_| !seeded!("stays-open-beside-pins")).flat_map(|index| {
            let start = self.pool().block_size.len_of(index.0);
            let bytes = move |pages: Range<usize>| start + pages.start * BASE_PAGE..start + pages.end * BASE_PAGE;
            self.pins.pages_beside(index).map(bytes)
        })
    }

    /// Parks these pages, so that threads and system calls that use them wait. False if that cannot be done; then none
    /// is parked.
    fn park_beside_pins(&self, locked: Locked<'_>, entries: Range<usize>) -> bool {
        let (site, runs) = (self.site(), self.beside_pins(entries.clone()).count());
        // The mappings of all runs, here and in the parking.
        if !self.pool().sys.budget().fits(2 * MAPPINGS_OF_A_RUN * runs) {
            return false;
        }
        let parked = self.beside_pins(entries.clone()).take_while(|bytes| site.park(locked, bytes)).count();
        if parked < runs {
            self.beside_pins(entries).take(parked).for_each(|bytes| site.unpark(locked, &bytes));
        }
        parked == runs
    }

    /// Moves these pages back to the region's own addresses. The threads that wait for them are woken with all others.
    fn unpark_beside_pins(&self, locked: Locked<'_>, entries: Range<usize>) {
        self.beside_pins(entries).for_each(|bytes| self.site().unpark(locked, &bytes));
    }

    /// Makes these pages read-only. The mappings that this adds stay counted until the caller counts all mappings anew.
    fn protect_beside_pins(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
        self.beside_pins(entries).try_for_each(|bytes| {
            let closed = self.site().reprotect(locked, bytes, Access::Read)?;
            Ok(closed.published(Recount { before: 0, after: MAPPINGS_OF_A_RUN })?)
        })
    }

    /// Makes these pages writable again.
    fn allow_beside_pins(&self, locked: Locked<'_>, entries: Range<usize>) {
        for index in self.pins.pinned(entries) {
            if self.allow_all(locked, index).is_err() && self.allow_all(locked, index).is_err() {
                self.pins.note_lack_of_right();
            }
        }
    }

    /// Makes sure that a `Private` block is writable: after a failure, its pages beside pinned ones may be read-only.
    pub(in crate::region) fn see_to_right(&self, locked: Locked<'_>, index: EntryIndex) -> Result<(), Unresolved> {
        if self.pins.may_lack_right() { self.allow_all(locked, index) } else { Ok(()) }
    }

    fn allow_all(&self, locked: Locked<'_>, index: EntryIndex) -> Result<(), Unresolved> {
        let block = self.bytes_of(&(index.0..index.0 + 1));
        Ok(self.site().reprotect(locked, block, Access::ReadWrite)?.published(Recount::default())?)
    }
}
