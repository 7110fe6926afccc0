//! A reset: the region has the bytes of a snapshot again, at the cost of what was written since.
//!
//! ```text
//!   hold writers ─▶ look which pages are private ─▶ put those back ─▶ exchange the other blocks ─▶ let writers go on
//! ```
//! | entry | what |
//! |---|---|
//! | shows the snapshot's block | nothing |
//! | … with private pages over it | they get the block's bytes and stay, so that the next write there takes no fault |
//! | shows something else | the block is exchanged for the snapshot's, as if it were a fork's |
//! | … its own block, again and again | that gets the snapshot's bytes and stays |
//! | pinned | it gets the snapshot's bytes and stays |
//!
//! If no other thread of the program runs, nobody has to be held, and most of the calls are saved. The engine's own
//! threads change entries only under the region lock, or the lock of their own that a reset takes. Otherwise writers
//! are held as at a snapshot, and with the locks of all windows: a fault that copies a block must not publish what was
//! there before. Where the kernel is to copy whatever comes ([`CopyGrain::Page`]), they wait while all lies aside, and
//! the pages are put back there. Elsewhere pages cannot be written to then, but by way of the kernel; where it refuses,
//! they are dropped in place of being put back.
//!
//! A page that was not written to for some resets goes back to the kernel, and a block that was not written to is
//! exchanged after all. So what is not written any more soon costs nothing.
//!
//! The cut is consistent both ways, by the argument of freeze.rs: a write that lands before its page is protected is
//! gone, and a thread that writes later waits until the region is reset.

use std::ops::Range;
use std::sync::atomic::Ordering;

use hugefork_kernels::{Target, Use};

use super::core::RegionCore;
use super::returns::{Known, NoRoom, Page};
use super::unresolved::Unresolved;
use crate::mapping::addresses::Place;
use crate::mapping::change::Recount;
use crate::pool::holders::Holder;
use crate::snapshot::core::SnapshotCore;
use crate::stats::counters::count;
use crate::sync::SignalsBlocked;
use crate::sys::restore::restore;
use crate::sys::{Access, Shows, Sys, SystemError};
use crate::table::transition::{Event, Goal, OnDiscard, OnReset, OnShare, on_discard, on_reset, on_share};
use crate::table::{Entry, Locked, Origin, State, WindowsGuard};
use crate::terms::error::{RegionError, ResetError};
use crate::terms::options::{CopyGrain, Reserve};
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// A page goes back to the kernel when it was not written to for so many resets: to look at it costs a tenth of the
/// fault that it saves.
const IDLE: u8 = 8;

/// After so many already if most pages are not written to again: then they are others each time.
const IDLE_AMONG_MANY: u8 = 2;

/// A block of the region's own is exchanged when it was not written to for so many resets.
const IDLE_BLOCK: u8 = 4;

/// Blocks of at most so many bytes stay the region's own from the first reset on: to exchange one takes as long as to
/// copy it.
const SMALL: usize = 64 << 10;

/// A block of which fewer pages than one in so many were written is better written to by page.
const SPARSE: usize = 8;

/// If more pages than one in so many are private, a block of its own may do the region better.
const MANY: usize = 4;

static ZEROS: [u8; BASE_PAGE] = [0; BASE_PAGE];

/// Why a reset ends before its end.
enum Stop {
    /// Nothing has changed: there are more private pages than there is room for in the list.
    NoRoom(NoRoom),
    /// The snapshot that the region was forked from is there no more.
    NoOrigin,
    /// What comes before `done` bytes is as the snapshot.
    At { done: usize, reason: Unresolved },
}

impl From<Unresolved> for Stop {
    fn from(reason: Unresolved) -> Stop {
        Stop::At { done: 0, reason }
    }
}

impl From<SystemError> for Stop {
    fn from(error: SystemError) -> Stop {
        Unresolved::Unmappable(error).into()
    }
}

impl From<NoRoom> for Stop {
    fn from(no_room: NoRoom) -> Stop {
        Stop::NoRoom(no_room)
    }
}

impl<S: Sys> RegionCore<S> {
    /// Gives the region the bytes of a snapshot.
    pub(crate) fn reset_to(&self, frozen: &SnapshotCore<S>) -> Result<(), ResetError> {
        self.check_goal(frozen).map_err(|reason| ResetError { done: 0, reason })?;
        self.reset_by(|known| self.go_back(frozen, known))
    }

    /// Gives the region the bytes of the snapshot that it was forked from.
    pub(crate) fn reset(&self) -> Result<(), ResetError> {
        self.reset_by(|known| {
            // A snapshot that goes waits until the visit is over.
            let visit = self.pool().holders.visit();
            let snapshots = visit.family.members().filter_map(Holder::snapshot);
            let mut snapshots = snapshots.filter_map(|snapshot| snapshot.downcast_ref::<SnapshotCore<S>>());
            // Others of this id may be empty: the beginnings of forks.
            let is_origin =
                |snapshot: &&SnapshotCore<S>| snapshot.id == self.forked_from && snapshot.second_of.is_none();
            let origin = snapshots.find(|snapshot| self.forked_from.is_some() && is_origin(snapshot));
            origin.map_or(Err(Stop::NoOrigin), |frozen| self.go_back(frozen, known))
        })
    }

    /// Bytes that resets and promises take.
    pub(crate) fn bytes_for_resets(&self) -> usize {
        self.promises.bytes() + self.returns.known().bytes()
    }

    fn check_goal(&self, frozen: &SnapshotCore<S>) -> Result<(), RegionError> {
        if !self.pool().is(frozen.pool()) {
            return Err(RegionError::AnotherPool { pool: self.pool().name.clone(), other: frozen.pool().name.clone() });
        }
        if self.len() != frozen.len() {
            return Err(RegionError::AnotherLength { len: self.len(), other: frozen.len() });
        }
        Ok(())
    }

    fn reset_by(&self, go_back: impl Fn(&mut Known) -> Result<(), Stop>) -> Result<(), ResetError> {
        let mut room = 0;
        loop {
            let signals = SignalsBlocked::new();
            let one_at_a_time = self.freezing.lock();
            let mut known = self.returns.known();
            known.prepare(room, self.table.len());
            let came = go_back(&mut known);
            drop((known, one_at_a_time, signals));
            // From here on, no lock is held: errors allocate.
            let (done, reason) = match came {
                Ok(()) => break,
                Err(Stop::NoRoom(NoRoom(pages))) => {
                    room = 2 * pages.max(512);
                    continue;
                }
                Err(Stop::NoOrigin) => (0, RegionError::NoOrigin),
                Err(Stop::At { done, reason }) => (done, self.error(reason)),
            };
            return Err(ResetError { done, reason });
        }
        if self.books.reserve == Reserve::Full {
            let done = self.len();
            self.reserve_again(0..self.table.len()).map_err(|reason| ResetError { done, reason })?;
        }
        Ok(())
    }

    /// One try, under the lock that keeps snapshots and resets apart.
    fn go_back(&self, frozen: &SnapshotCore<S>, known: &mut Known) -> Result<(), Stop> {
        let is_held = !self.pool().sys.is_alone();
        let tending = self.tending.lock();
        let windows = if is_held { self.table.lock_windows(0..self.table.windows()) } else { WindowsGuard::default() };
        let alone = self.lock.exclusive();
        // Whoever wants a block of the snapshot back waits until the region has it, too.
        let frozen_alone = frozen.lock.exclusive();
        let (locked, frozen_locked) = (Locked::alone(&alone), Locked::alone(&frozen_alone));
        let place = Place::Own;
        let came = Reset { region: self, frozen, locked, frozen_locked, known, is_held, place, done: 0 }.run();
        drop((frozen_alone, alone, windows, tending));
        came
    }
}

/// A reset under way. Nobody else changes an entry of the region or the snapshot.
struct Reset<'a, S: Sys> {
    region: &'a RegionCore<S>,
    frozen: &'a SnapshotCore<S>,
    locked: Locked<'a>,
    frozen_locked: Locked<'a>,
    known: &'a mut Known,
    /// Whether others may write, so that they have to be held.
    is_held: bool,
    /// Where overlays are meanwhile.
    place: Place,
    /// How far blocks were exchanged, in bytes.
    done: usize,
}

/// What is done at an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Nothing,
    /// To take back that it was lazily freed.
    Keep,
    /// To give its own block the snapshot's bytes: those of a block, or zeros.
    InPlace(Option<BlockId>),
    /// To show zeros.
    Zeros,
    /// To show the snapshot's block.
    Exchange {
        block: BlockId,
        origin: Origin,
        by_page: bool,
    },
}

impl Step {
    /// What the entry `by` places further needs, to go along with this one.
    fn along(self, by: usize) -> Step {
        match self {
            Step::Exchange { block, origin, by_page } => Step::Exchange { block: block.offset(by), origin, by_page },
            Step::Nothing | Step::Keep | Step::InPlace(_) | Step::Zeros => self,
        }
    }
}

impl<S: Sys> Reset<'_, S> {
    fn run(&mut self) -> Result<(), Stop> {
        if self.frozen.is_revoked() {
            return Err(Unresolved::Revoked.into());
        }
        if !self.is_held {
            return self.go_back();
        }
        let region = self.region;
        let came = match self.hold() {
            Ok(()) => self.go_back(),
            Err(reason) => Err(reason.into()),
        };
        self.let_back();
        match came {
            Ok(()) => self.let_go_on(),
            Err(_) => region.open_again(self.locked, 0..region.table.len(), Place::Own),
        }
        region.addresses.recount(region.addresses.mappings(), 1 + region.shown().edges(0..region.table.len()));
        came
    }

    fn go_back(&mut self) -> Result<(), Stop> {
        let faults = self.look()?;
        self.region.promises.end();
        // Until all is done, what is known may be less than what there is.
        self.known.seen_at = None;
        if !self.is_held {
            self.allow_writes()?;
        }
        self.put_back()?;
        self.change_all().map_err(|reason| Stop::At { done: self.done, reason })?;
        self.region.books.origin.set(self.frozen.id);
        count(&self.region.counters.resets, 1);
        // Faults of this call have made no page private.
        self.known.seen_at = Some(if self.is_held { faults } else { self.region.pool().sys.minor_faults() });
        Ok(())
    }

    /// Keeps writers off, as a snapshot does. If that fails, the entries are correct whether they are or not.
    fn hold(&mut self) -> Result<(), Unresolved> {
        let (region, locked, all) = (self.region, self.locked, 0..self.region.table.len());
        self.each_visible(|run| {
            region.store(locked, Event::Snapshot, run, |alike, old| {
                let (next, on) = on_share(old.state(), region.pins.of(EntryIndex(alike.start)));
                debug_assert!(!matches!(on, OnShare::GiveCopy | OnShare::Refuse));
                old.in_state(next)
            });
            Ok(())
        })?;
        if !region.shows_by_page() || !region.put_all_aside(locked, all.clone()) {
            return self.each_visible(|run| region.protect(locked, run));
        }
        self.place = Place::Aside;
        for index in all.clone() {
            self.known.aside[index] = match region.table.get(EntryIndex(index)) {
                Entry::Shared(_) | Entry::Borrowed(_) | Entry::Overlaid(..) | Entry::Sealed(..) => true,
                Entry::Zero | Entry::Private(_) | Entry::Lazy(_) | Entry::Split(_) | Entry::Revoked => false,
            };
        }
        let is_split = |index: &usize| matches!(region.table.get(EntryIndex(*index)), Entry::Split(_));
        let mut split = all.clone().filter(|index| region.table.has_splits() && is_split(index));
        split.try_for_each(|index| region.protect(locked, index..index + 1))?;
        let mut rest = all;
        while let Some(run) = region.next_overlays(rest.clone()) {
            rest.start = run.end;
            region.unseal(locked, run, self.place)?;
        }
        Ok(())
    }

    /// The entries that writers may write to or read: neither pinned nor taken away.
    fn each_visible(&self, mut each: impl FnMut(Range<usize>) -> Result<(), Unresolved>) -> Result<(), Unresolved> {
        let region = self.region;
        let is_hidden = |index: &usize| region.table.get(EntryIndex(*index)) == Entry::Revoked;
        region.pins.runs_between(0..region.table.len()).try_for_each(|between| {
            let mut rest = between;
            while let Some(start) = rest.clone().find(|index| !is_hidden(index)) {
                let end = (start..rest.end).find(is_hidden).unwrap_or(rest.end);
                rest.start = end;
                each(start..end)?;
            }
            Ok(())
        })
    }

    /// Shows what lies aside where it belongs, and lets all go who wait for it.
    fn let_back(&mut self) {
        if self.place == Place::Own {
            return;
        }
        let (region, aside, site) = (self.region, &self.known.aside, self.region.site());
        let mut rest = 0..region.table.len();
        while let Some(start) = rest.find(|&index| aside[index]) {
            let mut run = start..(start..rest.end).find(|&index| !aside[index]).unwrap_or(rest.end);
            rest.start = run.end;
            while let Some(one) = region.next_mapping(run.clone()) {
                site.put_back(self.locked, &one);
                run.start = one.end;
            }
        }
        site.let_go(&(0..region.table.len()));
        self.known.aside.fill(false);
        self.place = Place::Own;
    }

    /// Gives the right to write to overlays, as far as that can be done. The rest is left to faults.
    fn let_go_on(&mut self) {
        let region = self.region;
        if region.books.limit.is_some() {
            // Each is charged to the limit when it is written to.
            return;
        }
        let mut rest = 0..region.table.len();
        while let Some(run) = region.next_overlays(rest.clone()) {
            rest.start = run.end;
            let _ = region.unseal(self.locked, run, Place::Own);
        }
    }

    /// Sees to it that all that counts as writable is.
    fn allow_writes(&mut self) -> Result<(), Unresolved> {
        let region = self.region;
        if !region.books.unsure.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let is_open = |index: &usize| matches!(region.table.get(EntryIndex(*index)), Entry::Overlaid(..));
        let mut rest = 0..region.table.len();
        while let Some(start) = rest.find(is_open) {
            let end = (start..rest.end).find(|index| !is_open(index)).unwrap_or(rest.end);
            rest.start = end;
            region.unseal(self.locked, start..end, Place::Own)?;
        }
        Ok(())
    }

    /// Looks which pages are private, unless no fault has made any since the last look. Returns how many faults there
    /// were before.
    fn look(&mut self) -> Result<u64, Stop> {
        let (region, sys) = (self.region, &self.region.pool().sys);
        let faults = sys.minor_faults();
        if self.known.seen_at == Some(faults) {
            return Ok(faults);
        }
        self.known.begin();
        let (mut rest, mut last) = (0..region.table.len(), 0);
        while let Some(overlays) = region.next_overlays(rest.clone()) {
            rest.start = overlays.end;
            let bytes = region.bytes_of(&overlays);
            let mut at = bytes.start;
            while at < bytes.end {
                let part = region.addresses.part_at(self.place, &(at..bytes.end));
                let scanned = sys.private_pages(part, &mut self.known.runs)?;
                for nth in 0..scanned.runs {
                    let run = self.known.runs[nth];
                    let offset = |address: u64| at + (address as usize - part.at());
                    self.known.find(offset(run.start) / BASE_PAGE..offset(run.end) / BASE_PAGE, &mut last)?;
                }
                at += scanned.looked_at;
            }
        }
        Ok(faults)
    }

    /// Whether the entry shows the snapshot's block, with private pages over it.
    fn covers_same(&self, index: usize) -> bool {
        let entry = self.region.table.get(EntryIndex(index));
        entry.is_overlay() && entry.block() == self.frozen.entries.get(EntryIndex(index)).block()
    }

    /// The block that page `nth` of those that are known lies in.
    fn block_of(&self, nth: usize) -> usize {
        self.region.pool().block_size.count(self.known.pages[nth].number() * BASE_PAGE)
    }

    /// Puts all private pages back that cover a block of the snapshot. Those elsewhere go when the block is exchanged.
    fn put_back(&mut self) -> Result<(), Stop> {
        let (mut nth, mut kept, mut dirty) = (0, 0, 0);
        while nth < self.known.pages.len() {
            let (first, index) = (nth, self.block_of(nth));
            while nth < self.known.pages.len() && self.block_of(nth) == index {
                nth += 1;
            }
            let entry = self.region.table.get(EntryIndex(index));
            let Some(block) = entry.block().filter(|_| self.covers_same(index)) else { continue };
            let written = self.put_back_over(first..nth, kept, index, block);
            if nth - first <= self.region.pool().block_size.bytes() / BASE_PAGE / MANY {
                self.region.density.keep_by_page(EntryIndex(index));
            }
            match written {
                Ok(written) => (kept, dirty) = (kept + nth - first, dirty + written),
                // Where some cannot be put back, all go.
                Err(_) => {
                    self.drop_over(index, block)?;
                    dirty += nth - first;
                }
            }
        }
        self.known.pages.truncate(kept);
        count(&self.region.counters.pages_put_back, dirty as u64);
        self.drop_idle(if kept > 2 * dirty { IDLE_AMONG_MANY } else { IDLE });
        Ok(())
    }

    /// Puts some pages of one block back, and moves them to the place `to` of the list. Returns how many were written.
    fn put_back_over(
        &mut self,
        pages: Range<usize>,
        to: usize,
        index: usize,
        block: BlockId,
    ) -> Result<usize, SystemError> {
        let (region, pool) = (self.region, self.region.pool());
        let (start, from, mut dirty) = (pool.block_size.len_of(index), pool.direct(block), 0);
        let access = match region.table.get(EntryIndex(index)) {
            Entry::Overlaid(..) => Access::ReadWrite,
            Entry::Sealed(..)
            | Entry::Zero
            | Entry::Private(_)
            | Entry::Shared(_)
            | Entry::Borrowed(_)
            | Entry::Lazy(_)
            | Entry::Split(_)
            | Entry::Revoked => Access::Read,
        };
        for (by, nth) in pages.enumerate() {
            let page = self.known.pages[nth];
            let at = page.number() * BASE_PAGE;
            let part = region.addresses.part_at(self.place, &(at..at + BASE_PAGE));
            // SAFETY: the entry is an overlay of this block, with this access. Nobody writes to the block, since the
            // snapshot holds it, and no other thread writes to the region.
            let differed = unsafe { pool.sys.restore(part, access, from.add(at - start)) }?;
            dirty += usize::from(differed);
            let idle = if differed { 0 } else { page.idle().saturating_add(1) };
            self.known.pages[to + by] = Page::new(page.number(), idle);
        }
        Ok(dirty)
    }

    /// Gives pages back to the kernel that were not written to for so many resets. They show what they have shown.
    fn drop_idle(&mut self, limit: u8) {
        let (mut nth, mut kept) = (0, 0);
        while nth < self.known.pages.len() {
            let first = self.known.pages[nth];
            if first.idle() < limit {
                (self.known.pages[kept], kept, nth) = (first, kept + 1, nth + 1);
                continue;
            }
            let goes_along = |(by, page): (usize, Page)| page == Page::new(first.number() + by, page.idle().max(limit));
            let pages = self.known.pages[nth..].iter().copied().enumerate();
            let count = pages.take_while(|&page| goes_along(page)).count();
            let bytes = first.number() * BASE_PAGE..(first.number() + count) * BASE_PAGE;
            let part = self.region.addresses.part_at(self.place, &bytes);
            if self.region.pool().sys.drop_private(part).is_err() {
                self.known.pages.copy_within(nth..nth + count, kept);
                kept += count;
            }
            nth += count;
        }
        self.known.pages.truncate(kept);
    }

    /// Drops the private pages over one block.
    fn drop_over(&mut self, index: usize, block: BlockId) -> Result<(), Unresolved> {
        let (region, only) = (self.region, index..index + 1);
        let part = region.addresses.part_at(self.place, &region.bytes_of(&only));
        if region.pool().sys.drop_private(part).is_ok() {
            return Ok(());
        }
        // The kernel does not drop what mlock(2) has locked.
        let shows = Shows::Overlay { start: block, access: Access::Read };
        let remapped = region.site_at(self.place).remap(self.locked, &only, shows)?;
        remapped.published(region.store(self.locked, Event::Seal, only, |_, old| old.in_state(State::Sealed)));
        Ok(())
    }

    /// Changes all entries that do not show the snapshot's block.
    fn change_all(&mut self) -> Result<(), Unresolved> {
        let (table, size) = (&self.region.table, self.region.pool().block_size);
        let mut next = 0;
        loop {
            next = table.first_unlike(&self.frozen.entries, next..table.len());
            self.done = size.len_of(next);
            if next == table.len() {
                return Ok(());
            }
            next = self.change_some(next)?;
        }
    }

    /// What is done at an entry.
    fn step(&self, index: EntryIndex) -> Result<Step, Unresolved> {
        let region = self.region;
        let (entry, pinned) = (region.table.get(index), region.pins.of(index));
        match self.frozen.entries.get(index) {
            Entry::Zero => Ok(match on_discard(entry.state(), pinned).1 {
                OnDiscard::Nothing => Step::Nothing,
                OnDiscard::ShowZeros => Step::Zeros,
                OnDiscard::ZeroInPlace => Step::InPlace(None),
            }),
            Entry::Borrowed(block) => {
                let goal = if entry.block() == Some(block) { Goal::Same } else { Goal::Other };
                let origin = self.frozen.origin(index, region.books.cow.id());
                Ok(match on_reset(entry.state(), goal, pinned, origin).1 {
                    OnReset::Nothing | OnReset::PutBack => Step::Nothing,
                    OnReset::Keep | OnReset::KeepPages => Step::Keep,
                    OnReset::CopyInPlace => Step::InPlace(Some(block)),
                    OnReset::Exchange => Step::Exchange { block, origin, by_page: self.is_by_page(index) },
                })
            }
            Entry::Revoked => Err(Unresolved::Revoked),
            Entry::Private(_)
            | Entry::Shared(_)
            | Entry::Lazy(_)
            | Entry::Split(_)
            | Entry::Overlaid(..)
            | Entry::Sealed(..) => unreachable!("a snapshot's blocks are borrowed"),
        }
    }

    /// Whether the block at `index` is to be shown through a private mapping at once.
    fn is_by_page(&self, index: EntryIndex) -> bool {
        let region = self.region;
        let is_wanted = region.books.grain == CopyGrain::Page || region.density.is_by_page(index);
        is_wanted && region.books.limit.is_none() && region.may_overlay()
    }

    /// Changes an entry, and those that go along with it. Returns where to go on.
    fn change_some(&mut self, first: usize) -> Result<usize, Unresolved> {
        let (index, table) = (EntryIndex(first), &self.region.table);
        let mut step = self.step(index)?;
        match step {
            Step::Nothing => return Ok(first + 1),
            Step::Keep => {
                self.keep(index);
                return Ok(first + 1);
            }
            Step::InPlace(from) => {
                self.copy_in_place(index, from);
                return Ok(first + 1);
            }
            Step::Zeros | Step::Exchange { .. } => {}
        }
        if self.may_stay(index) {
            if self.stays(index) {
                return Ok(first + 1);
            }
            // It may have turned out to be sparse.
            step = self.step(index)?;
        }
        let mut end = first + 1;
        while end < table.len()
            && self.known.aside[end] == self.known.aside[first]
            && !self.may_stay(EntryIndex(end))
            && self.step(EntryIndex(end))? == step.along(end - first)
        {
            end += 1;
        }
        match step {
            Step::Exchange { block, origin, by_page } => self.exchange(first..end, block, origin, by_page)?,
            Step::Zeros => self.show_zeros(first..end)?,
            Step::Nothing | Step::Keep | Step::InPlace(_) => {}
        }
        Ok(end)
    }

    /// Whether the region alone holds the block, and nothing covers it.
    fn is_own(&self, index: EntryIndex) -> bool {
        match self.region.table.get(index) {
            Entry::Private(_) => true,
            // Held, or its last other holder has gone.
            Entry::Shared(block) => self.region.is_alone_with(block),
            Entry::Zero
            | Entry::Borrowed(_)
            | Entry::Lazy(_)
            | Entry::Split(_)
            | Entry::Overlaid(..)
            | Entry::Sealed(..)
            | Entry::Revoked => false,
        }
    }

    /// Whether the entry's own block is worth to be kept.
    fn may_stay(&mut self, index: EntryIndex) -> bool {
        let is_known = self.known.own[index.0] > 0 || self.region.pool().block_size.bytes() <= SMALL;
        let is_own = self.is_own(index);
        if is_own && !is_known {
            // From the next time on.
            self.known.own[index.0] = 1;
        }
        is_own && is_known
    }

    /// Gives a block of the region's own the snapshot's bytes. False if it is better exchanged all the same.
    fn stays(&mut self, index: EntryIndex) -> bool {
        let (region, pool) = (self.region, self.region.pool());
        let Some(block) = region.table.get(index).block() else { return false };
        let from = self.frozen.entries.get(index).block();
        let (pages, mut dirty) = (pool.block_size.bytes() / BASE_PAGE, 0);
        for page in 0..pages {
            let then =
                from.map_or(ZEROS.as_ptr(), |from| pool.direct(from).wrapping_add(page * BASE_PAGE).cast_const());
            // SAFETY: both pages lie in the direct map, or are zeros. The region alone holds `block`, and no other
            // thread writes to it; the snapshot holds the other.
            let differed = unsafe { restore(pool.direct(block).add(page * BASE_PAGE), then, BASE_PAGE) };
            dirty += usize::from(differed);
        }
        count(&region.counters.pages_put_back, dirty as u64);
        let own = &mut self.known.own[index.0];
        *own = if dirty > 0 { 1 } else { own.saturating_add(1) };
        let is_sparse = dirty > 0 && dirty * SPARSE < pages && from.is_some() && region.may_overlay();
        if is_sparse {
            region.density.keep_by_page(index);
        }
        let stays = *own <= IDLE_BLOCK && !is_sparse;
        if !stays {
            *own = 0;
        }
        stays
    }

    /// Takes back that an entry, which shows the snapshot's block, was lazily freed.
    fn keep(&mut self, index: EntryIndex) {
        let (region, size) = (self.region, self.region.pool().block_size);
        let kept = match region.split(index) {
            Some(split) => split.keep(0..size.bytes() / BASE_PAGE) * BASE_PAGE,
            None => {
                let kept = |_: Range<usize>, old: Entry| old.in_state(State::Shared);
                region.store(self.locked, Event::Reset, index.0..index.0 + 1, kept);
                size.bytes()
            }
        };
        count(&region.counters.bytes_cancelled, kept as u64);
    }

    /// Gives a pinned block the bytes of `from`, or zeros. Others may write to it meanwhile, past the page table.
    fn copy_in_place(&mut self, index: EntryIndex, from: Option<BlockId>) {
        let (pool, len) = (self.region.pool(), self.region.pool().block_size.bytes());
        let Some(to) = self.region.table.get(index).block() else { return };
        match from {
            // SAFETY: both blocks lie in the direct map and are page-aligned. The region alone holds `to`; the snapshot
            // holds `from`. Which of the writes of others stay is open.
            Some(from) => unsafe {
                let kernel = pool.kernels.copy(len, Use::Whole);
                kernel.copy(pool.direct(to), pool.direct(from), len, Target::Unknown);
            },
            // SAFETY: as above.
            None => unsafe { pool.direct(to).write_bytes(0, len) },
        }
    }

    fn show_zeros(&mut self, run: Range<usize>) -> Result<(), Unresolved> {
        let region = self.region;
        let remapped = region.site().remap(self.locked, &run, Shows::Zeros)?;
        self.known.aside[run.clone()].fill(false);
        count(&region.counters.blocks_exchanged, run.len() as u64);
        remapped.published(region.store(self.locked, Event::Discard, run, |_, _| Entry::Zero));
        Ok(())
    }

    /// Shows the snapshot's blocks from `first` on, in place of what is there.
    fn exchange(&mut self, run: Range<usize>, first: BlockId, origin: Origin, by_page: bool) -> Result<(), Unresolved> {
        let (region, locked, pool) = (self.region, self.locked, self.region.pool());
        let blocks = || (0..run.len()).map(|by| first.offset(by));
        blocks().for_each(|block| pool.frames.add_reference(block));
        let place = if self.known.aside[run.start] { Place::Aside } else { Place::Own };
        // Others are not to write before all is done.
        let (access, state) = match (self.is_held, place) {
            (true, Place::Own) => (Access::Read, State::Sealed),
            (true, Place::Aside) | (false, _) => (Access::ReadWrite, State::Overlaid),
        };
        let shows = match by_page {
            true => Shows::Overlay { start: first, access },
            false => Shows::Memory { start: first, access: Access::Read },
        };
        let remapped = match region.site_at(place).remap(locked, &run, shows) {
            Ok(remapped) => remapped,
            Err(refused) => {
                blocks().for_each(|block| _ = pool.release(block));
                return Err(refused.into());
            }
        };
        let back = |alike: Range<usize>, _: Entry| {
            let block = first.offset(alike.start - run.start);
            if origin == Origin::Own { Entry::Shared(block) } else { Entry::Borrowed(block) }
        };
        let Recount { before, mut after } = region.store(locked, Event::Reset, run.clone(), back);
        if by_page {
            let overlaid = |_: Range<usize>, old: Entry| old.in_state(State::Overlaid);
            Recount { after, .. } = region.store(locked, Event::Write, run.clone(), overlaid);
            if state == State::Sealed {
                let sealed = |_: Range<usize>, old: Entry| old.in_state(state);
                Recount { after, .. } = region.store(locked, Event::Seal, run.clone(), sealed);
            }
        }
        // The next write asks for a right that is missing.
        let _ = region.noted(remapped.right());
        remapped.published(Recount { before, after });
        count(&region.counters.blocks_exchanged, run.len() as u64);
        run.clone().for_each(|index| self.frozen.reserve_again(self.frozen_locked, EntryIndex(index)));
        if origin == Origin::Own {
            // They were counted as what forks and snapshots alone hold.
            region.books.cow.freed(run.len());
        }
        Ok(())
    }
}
