//! Entries that do not show the snapshot's block, in a reset.
//!
//! If the region has a block of its own at an entry in reset after reset, the block stays: the reset copies the
//! snapshot's bytes into it. This ends when the program has not written to the block for some resets.
//!
//! If the program wrote only a few pages of such a block, copies of single pages are better. They lie over the
//! snapshot's block or, if the snapshot has none there, over the region's block, which both hold from then on. All
//! other blocks are exchanged for the snapshot's, in runs.

use std::ops::Range;

use hugefork_kernels::{Target, Use};

use super::{Reset, Stop};
use crate::mapping::addresses::Place;
use crate::mapping::change::Recount;
use crate::region::state::Unresolved;
use crate::stats::counters::count;
use crate::sys::restore::restore;
use crate::sys::{Access, Shows, Sys};
use crate::table::transition::{Event, Goal, OnDiscard, OnReset, on_discard, on_reset};
use crate::table::{Entry, Origin, State};
use crate::types::options::{CopyGrain, Reserve};
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// A block of the region's own is exchanged after this many resets without a write to it.
const IDLE_RESETS: u8 = 4;

/// Blocks of at most this many bytes stay the region's own from the first reset on, because it takes as long to
/// exchange one as to copy it.
const SMALL_BLOCK_BYTES: usize = 64 << 10;

/// Copies of single pages are better for a block if fewer than one in this many of its pages were written.
const SPARSE_ONE_IN: usize = 8;

/// A reset shares blocks of zeros with a snapshot only while one in this many blocks of the pool is free.
const FREE_ONE_IN: usize = 3;

/// The mappings that staged blocks take, in the staging and at the region's own addresses.
const STAGED_MAPPINGS: usize = 4;

static ZEROS: [u8; BASE_PAGE] = [0; BASE_PAGE];

/// The action of a reset at an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Nothing,
    /// Cancel lazy free.
    Keep,
    /// Copy the bytes of this block into the entry's own block, or zeros.
    InPlace(Option<BlockId>),
    /// Show zeros.
    Zeros,
    /// Show the snapshot's block.
    Exchange {
        block: BlockId,
        origin: Origin,
        by_page: bool,
    },
}

impl Step {
    /// The step that the entry `by` places further must need, so that it joins the run that this step begins. `None` if
    /// this one is a run of its own.
    fn along(self, by: usize) -> Option<Step> {
        match self {
            Step::Exchange { block, origin, by_page } => {
                Some(Step::Exchange { block: block.offset(by), origin, by_page })
            }
            Step::Zeros => Some(Step::Zeros),
            Step::Nothing | Step::Keep | Step::InPlace(_) => None,
        }
    }
}

impl<S: Sys> Reset<'_, S> {
    /// Changes all entries that do not show the snapshot's block.
    pub(super) fn change_all(&mut self) -> Result<(), Stop> {
        let (table, size) = (&self.region.table, self.region.pool().block_size);
        let mut next = table.first_unlike(&self.frozen.entries, 0..table.len());
        while next < table.len() {
            // Pages that sets describe are put back at the end, so with sets nothing counts as done before.
            let done = if self.goes_by_sets() { 0 } else { size.len_of(next) };
            let changed = self.change_some(next).map_err(|reason| Stop::At { done, reason })?;
            next = table.first_unlike(&self.frozen.entries, changed..table.len());
        }
        Ok(())
    }

    /// The step that an entry needs.
    fn step(&self, index: EntryIndex) -> Result<Step, Unresolved> {
        let region = self.region;
        let (entry, pinned) = (region.table.get(index), region.pins.of(index));
        match self.frozen.entries.get(index) {
            Entry::Zero => Ok(match on_discard(entry.state(), pinned).1 {
                OnDiscard::Nothing => Step::Nothing,
                OnDiscard::ShowZeros => Step::Zeros,
                OnDiscard::ZeroInPlace => Step::InPlace(None),
            }),
            Entry::Shared(block, Origin::Parent) | Entry::CowMapped(block, Origin::Parent, Access::Read) => {
                let goal = if entry.block() == Some(block) { Goal::Same } else { Goal::Other };
                let origin = self.frozen.origin(index, region.accounts.cow.id);
                Ok(match on_reset(entry.state(), goal, pinned).1 {
                    OnReset::Nothing | OnReset::PutBack => Step::Nothing,
                    OnReset::Keep | OnReset::KeepPages => Step::Keep,
                    OnReset::CopyInPlace => Step::InPlace(Some(block)),
                    OnReset::Exchange => {
                        let by_page = self.set_over(index.0).is_some() || self.is_by_page(index);
                        Step::Exchange { block, origin, by_page }
                    }
                })
            }
            Entry::Revoked => Err(Unresolved::Revoked),
            Entry::Private(_)
            | Entry::Shared(_, Origin::Own)
            | Entry::Lazy(_)
            | Entry::Split(_)
            | Entry::CowMapped(..) => unreachable!("a snapshot's blocks are its parent's"),
        }
    }

    /// Whether the entry at `index` becomes a CoW mapping when its block is exchanged.
    fn is_by_page(&self, index: EntryIndex) -> bool {
        let region = self.region;
        let is_wanted = region.accounts.grain == CopyGrain::Page || region.captured.is_by_page(index);
        is_wanted && region.accounts.limit.is_none() && region.may_cow_map()
    }

    /// Changes an entry and those that join its run. Returns the entry to go on with.
    fn change_some(&mut self, first: usize) -> Result<usize, Unresolved> {
        let (index, table) = (EntryIndex(first), &self.region.table);
        let mut step = self.step(index)?;
        if step.along(0).is_some() && self.may_stay(index) {
            if self.stays(index) {
                return Ok(first + 1);
            }
            // The block may be sparse, which changes the step.
            step = self.step(index)?;
        }
        let mut end = first + 1;
        while end < table.len()
            && self.dirty.blocks[end].is_parked == self.dirty.blocks[first].is_parked
            && !self.may_stay(EntryIndex(end))
            && Some(self.step(EntryIndex(end))?) == step.along(end - first)
        {
            end += 1;
        }
        match step {
            Step::Nothing => {}
            Step::Keep => self.keep(index),
            Step::InPlace(from) => self.copy_in_place(index, from),
            Step::Zeros => self.show_zeros(first..end)?,
            Step::Exchange { block, origin, by_page } => self.exchange(first..end, block, origin, by_page)?,
        }
        Ok(end)
    }

    /// Whether the region alone holds the entry's block, and shows it without private pages.
    fn is_own(&self, index: EntryIndex) -> bool {
        let entry = self.region.table.get(index);
        // If it is shared, this reset has marked the entry to keep writers off, or the last other holder has gone.
        let is_left = matches!(entry, Entry::Shared(block, Origin::Own) if self.region.is_alone_with(block));
        is_left || matches!(entry, Entry::Private(_))
    }

    /// Whether the entry's own block is worth keeping.
    fn may_stay(&mut self, index: EntryIndex) -> bool {
        let is_known = self.dirty.blocks[index.0].own > 0 || self.region.pool().block_size.bytes() <= SMALL_BLOCK_BYTES;
        let is_own = self.is_own(index) && self.set_over(index.0).is_none();
        if is_own && !is_known {
            // It is from the next reset on.
            self.dirty.blocks[index.0].own = 1;
        }
        is_own && is_known
    }

    /// Copies the snapshot's bytes into a block of the region's own. False if the block is to be exchanged all the
    /// same.
    fn stays(&mut self, index: EntryIndex) -> bool {
        let (region, pool) = (self.region, self.region.pool());
        let Some(block) = region.table.get(index).block() else { return false };
        let from = self.frozen.entries.get(index).block();
        let (pages, mut dirty) = (pool.block_size.bytes() / BASE_PAGE, 0);
        for page in 0..pages - usize::from(seeded!("reset-stays-a-page-too-few")) {
            let then =
                from.map_or(ZEROS.as_ptr(), |from| pool.direct(from).wrapping_add(page * BASE_PAGE).cast_const());
            // SAFETY: both pages lie in the direct map, or are zeros. The region alone holds `block`, and no other
            // thread writes to it; the snapshot holds the other block, to which nobody writes.
            let differed = unsafe { restore(pool.direct(block).add(page * BASE_PAGE), then, BASE_PAGE) };
            dirty += usize::from(differed);
        }
        count(&region.counters.pages_put_back, dirty as u64);
        let is_sparse = dirty > 0
            && dirty * SPARSE_ONE_IN < pages
            && region.may_cow_map()
            && (from.is_some() || self.lends_zeros(index, block));
        let own = &mut self.dirty.blocks[index.0].own;
        *own = if dirty > 0 { 1 } else { own.saturating_add(1) };
        if is_sparse {
            region.captured.keep_by_page(index);
        }
        let stays = *own <= IDLE_RESETS && !is_sparse;
        if !stays {
            *own = 0;
        }
        stays
    }

    /// Shares a block of the region's own, which has only zeros, with the snapshot, which has no block there. The next
    /// writes then make private pages over a block that both hold. False if that cannot be done; then the region is
    /// still the only holder.
    ///
    /// A region with a limit or a reservation shares no such block, because it would count as a block that copies may
    /// need. Nor does a region in a pool with few free blocks, because the shared block may be the one that a write
    /// lacks later.
    fn lends_zeros(&self, index: EntryIndex, block: BlockId) -> bool {
        let (region, only) = (self.region, index.0..index.0 + 1);
        let accounts = &region.accounts;
        let is_counted = accounts.limit.is_some() || accounts.reserve == Reserve::Full;
        let frames = &region.pool().frames;
        let are_few = FREE_ONE_IN * frames.available() < frames.len();
        let Some(frozen_locked) = self.frozen_locked else { return false };
        if is_counted || are_few || !self.frozen.may_take_zeros_of(accounts.cow.id, index) {
            return false;
        }
        let place = if self.dirty.blocks[index.0].is_parked { Place::Parked } else { Place::Own };
        // The entry changes as in a snapshot. Until the snapshot holds the block, the block may be writable.
        let access = if seeded!("zeros-lent-writable") { Access::ReadWrite } else { Access::Read };
        if region.reprotect(self.locked, place, only, access, Event::Snapshot, |_| State::Shared).is_err() {
            return false;
        }
        frames.add_reference(block);
        self.frozen.take_zeros(frozen_locked, index, block);
        true
    }

    /// Cancels the lazy free of an entry that shows the snapshot's block.
    fn keep(&mut self, index: EntryIndex) {
        let kept = self.region.keep(self.locked, index, 0..self.region.pool().block_size.bytes());
        count(&self.region.counters.bytes_cancelled, kept as u64);
    }

    /// Copies `from`, or zeros, into a pinned block, and the snapshot's pages over that. Others may write to its pinned
    /// pages meanwhile.
    fn copy_in_place(&mut self, index: EntryIndex, from: Option<BlockId>) {
        let (pool, len) = (self.region.pool(), self.region.pool().block_size.bytes());
        let Some(to) = self.region.table.get(index).block() else { return };
        match from {
            // SAFETY: both blocks lie in the direct map and are page-aligned. The region alone holds `to`; the snapshot
            // holds `from`. It is open which of the concurrent writes to pinned pages survive.
            Some(from) => unsafe {
                let kernel = pool.kernels.copy(len, Use::Whole);
                kernel.copy(pool.direct(to), pool.direct(from), len, Target::Unknown);
            },
            // SAFETY: as above.
            None => unsafe { pool.direct(to).write_bytes(0, len) },
        }
        for (at, page) in self.set_over(index.0).iter().flat_map(|set| set.pages()) {
            // SAFETY: as above.
            unsafe { pool.direct(to).add(at).copy_from_nonoverlapping(page.as_ptr(), page.len()) };
        }
    }

    fn show_zeros(&mut self, run: Range<usize>) -> Result<(), Unresolved> {
        let region = self.region;
        region.replace(self.locked, run.clone(), Shows::Zeros, Event::Discard, |_, _| Entry::Zero)?;
        count(&region.counters.blocks_exchanged, run.len() as u64);
        self.dirty.blocks[run].iter_mut().for_each(|block| block.is_parked = false);
        Ok(())
    }

    /// Shows the snapshot's blocks from `first` on, in place of what `run` shows.
    fn exchange(&mut self, run: Range<usize>, first: BlockId, origin: Origin, by_page: bool) -> Result<(), Unresolved> {
        let (region, locked, pool) = (self.region, self.locked, self.region.pool());
        let blocks = || (0..run.len()).map(|by| first.offset(by));
        blocks().for_each(|block| pool.frames.add_reference(block));
        let place = if self.dirty.blocks[run.start].is_parked { Place::Parked } else { Place::Own };
        // Other threads must not write before the reset is done.
        let access = match (self.is_held, place) {
            (true, Place::Own) => Access::Read,
            (true, Place::Parked | Place::Staging) | (false, _) => Access::ReadWrite,
        };
        let shows = match by_page {
            true => Shows::CowMapping { start: first, access },
            false => Shows::Memory { start: first, access: Access::Read },
        };
        let has_sets = run.clone().any(|index| self.set_over(index).is_some());
        let remapped = match self.is_held && has_sets {
            true => self.show_with_sets(&run, first).map(|()| None),
            false => region.remap(locked, place, &run, shows).map(Some).map_err(Unresolved::from),
        };
        let remapped = match remapped {
            Ok(remapped) => remapped,
            Err(reason) => {
                blocks().for_each(|block| _ = pool.release(block));
                return Err(reason);
            }
        };
        let back = |alike: Range<usize>, _: Entry| Entry::Shared(first.offset(alike.start - run.start), origin);
        let Recount { before, mut after } = region.store(locked, Event::Reset, run.clone(), back);
        let mut cow_mapped = |event, access| {
            let next = |_: Range<usize>, old: Entry| old.in_state(State::CowMapped(access));
            Recount { after, .. } = region.store(locked, event, run.clone(), next);
        };
        if by_page {
            cow_mapped(Event::Write, Access::ReadWrite);
            if access == Access::Read {
                cow_mapped(Event::WriteProtect, access);
            }
        }
        match remapped {
            Some(remapped) => {
                // If the right to write is missing, the next write asks for it.
                let _ = region.noted(remapped.right());
                remapped.published(Recount { before, after });
            }
            None => region.addresses.recount(before, after),
        }
        count(&region.counters.blocks_exchanged, run.len() as u64);
        if origin == Origin::Own {
            // The account counted these blocks as held by forks and snapshots only.
            region.accounts.cow.freed(run.len());
        }
        Ok(())
    }

    /// Shows blocks through a read-only private mapping, with the pages that the snapshot has over them. The mapping
    /// gets the pages in the staging, because other threads read during a reset and must never see a block without its
    /// pages.
    fn show_with_sets(&self, run: &Range<usize>, first: BlockId) -> Result<(), Unresolved> {
        let (region, pool) = (self.region, self.region.pool());
        let (sys, start) = (&pool.sys, pool.block_size.len_of(run.start));
        if !sys.budget().fits(STAGED_MAPPINGS) {
            return Err(Unresolved::TooManyMappings);
        }
        let staging = |bytes: Range<usize>| region.addresses.part_at(Place::Staging, &bytes);
        let all = staging(region.bytes_of(run));
        let shows = Shows::CowMapping { start: pool.offset(first), access: Access::ReadWrite };
        sys.show(all, shows).map_err(|failure| failure.error)?;
        for index in run.clone() {
            let (set, at) = (self.set_over(index), start + pool.block_size.len_of(index - run.start));
            for (by, page) in set.iter().flat_map(|set| set.pages()) {
                // SAFETY: the staging is a writable CoW mapping that nobody else knows, and nobody writes to the page.
                unsafe { sys.overwrite(staging(at + by..at + by + BASE_PAGE), page.as_ptr()) };
            }
        }
        sys.protect(all, Access::Read)?;
        Ok(region.site().bring_pages(self.locked, run)?)
    }
}
