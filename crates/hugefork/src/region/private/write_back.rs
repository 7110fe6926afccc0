//! Write-back: the private pages of CoW mappings go back into blocks, and the region shows the blocks themselves again.
//!
//! ```text
//!   keep writers off: no more pages become private ─▶ find the private pages ─▶ copy them ─▶ show the block itself
//! ```
//! The pages go into the CoW mapping's own block if this region alone holds it, and otherwise into a copy of the block,
//! which the caller makes. Only the kernel knows which pages are private ([`Sys::scan`]). The scan comes after writers
//! are kept off, so it finds all private pages.
//!
//! This happens under the locks of the windows. A snapshot of a region with CoW mappings holds the locks of all
//! windows, so it meets no write-back half done.

use std::ops::Range;

use super::quiesce::Quiesced;
use crate::mapping::addresses::Place;
use crate::mapping::change::Recount;
use crate::mem::{EngineVec, Own};
use crate::region::state::{RegionCore, Unresolved};
use crate::stats::counters::count;
use crate::sync::SharedGuard;
use crate::sys::{Access, MOST_RUNS, PageRun, ScanFor, Shows, Sys, SystemError};
use crate::table::transition::{Event, Held};
use crate::table::{Entry, Locked, State, WindowsGuard};
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// The most pages that are written back at once, so that a writer there waits for at most a quarter of a millisecond.
/// One block may have more.
pub(in crate::region) const PAGES_AT_ONCE: usize = 256;

/// The bytes that one call scans for private pages. During a call, no thread of the process can change mappings.
const SCANNED_AT_ONCE_BYTES: usize = 128 << 20;

/// A block with private pages over it.
#[derive(Clone, Copy, Debug)]
pub(in crate::region) struct Patched {
    pub(in crate::region) index: EntryIndex,
    pub(in crate::region) pages: usize,
}

/// The memory that the region shows after private pages were written back into their own blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::region) enum WrittenBack {
    /// The blocks themselves.
    Blocks,
    /// The same CoW mappings, write-protected and without private pages, because a snapshot is about to share the
    /// blocks again.
    CowMappings,
}

impl<S: Sys> RegionCore<S> {
    /// Copies the private pages over `entries`, which are in `place`, to memory that begins at `to`. Each page keeps
    /// its offset from the start of `entries`. `runs` is room for the runs of one scan.
    ///
    /// # Safety
    /// Writers are kept off the entries. `to` is valid for writes of as many bytes as the entries have, and nobody else
    /// uses these bytes.
    pub(in crate::region) unsafe fn copy_private(
        &self,
        runs: &mut [PageRun],
        entries: &Range<usize>,
        place: Place,
        to: *mut u8,
    ) -> Result<(), SystemError> {
        let (bytes, mut pages) = (self.bytes_of(entries), 0);
        self.scan(ScanFor::Private, (&bytes, place), runs, |run, _| {
            let part = self.addresses.part_at(place, &run);
            // SAFETY: pages of these entries can be read and nobody writes to them; their places lie behind `to`.
            unsafe { self.pool().sys.copy_shown(part, to.add(run.start - bytes.start)) };
            pages += run.len() / BASE_PAGE;
            Ok::<(), SystemError>(())
        })?;
        count(&self.counters.pages_written_back, pages as u64);
        Ok(())
    }

    /// Scans a range of bytes, whose CoW mappings are in `place`. Calls `each` for every run of pages found, with its
    /// bytes in the region, and whether they may have been written since they were marked. Other threads may write
    /// meanwhile. One call of the kernel finds as many runs as `runs` has room for.
    pub(in crate::region) fn scan<E: From<SystemError>>(
        &self,
        wanted: ScanFor,
        (bytes, place): (&Range<usize>, Place),
        runs: &mut [PageRun],
        mut each: impl FnMut(Range<usize>, bool) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = bytes.start;
        while at < bytes.end {
            let part = self.addresses.part_at(place, &(at..bytes.end));
            let scanned = self.pool().sys.scan(part, wanted, runs);
            if wanted.marks() && !scanned.is_ok_and(|scanned| scanned.are_marked) {
                self.captured.set_tracked(false);
            }
            let scanned = scanned?;
            for run in &runs[..scanned.runs] {
                let start = at + (run.start as usize - part.at());
                each(start..start + (run.end - run.start) as usize, run.is_written())?;
            }
            at += scanned.looked_at;
        }
        Ok(())
    }

    /// Counts the `wanted` pages over a block. Other threads may change that meanwhile.
    pub(in crate::region) fn count_pages(&self, wanted: ScanFor, index: EntryIndex) -> Result<usize, SystemError> {
        let (mut runs, mut pages) = ([PageRun::default(); 64], 0);
        self.scan(wanted, (&self.bytes_of(&(index.0..index.0 + 1)), Place::Own), &mut runs, |run, _| {
            pages += run.len() / BASE_PAGE;
            Ok::<(), SystemError>(())
        })?;
        Ok(pages)
    }

    /// The CoW mappings among `entries` with private pages, in order. Other threads may change them meanwhile.
    ///
    /// Allocates from the engine's own memory, because what the program's allocator returns may lie in the region.
    pub(in crate::region) fn patched(&self, entries: Range<usize>) -> Result<EngineVec<Patched>, SystemError> {
        let (mut runs, mut found) = ([PageRun::default(); MOST_RUNS], EngineVec::new_in(Own));
        for cow_mappings in self.cow_mappings(entries) {
            let bytes = self.bytes_of(&cow_mappings);
            for at in bytes.clone().step_by(SCANNED_AT_ONCE_BYTES) {
                let part = at..bytes.end.min(at + SCANNED_AT_ONCE_BYTES);
                self.scan(ScanFor::Private, (&part, Place::Own), &mut runs, |run, _| {
                    for (index, over) in self.by_block(&run) {
                        let pages = over.len() / BASE_PAGE;
                        match found.last_mut() {
                            Some(Patched { index: last, pages: sum }) if *last == index => *sum += pages,
                            Some(_) | None => found.push(Patched { index, pages }),
                        }
                    }
                    Ok::<(), SystemError>(())
                })?;
            }
        }
        Ok(found)
    }

    /// Splits a run of pages at the bounds of blocks.
    pub(in crate::region) fn by_block(&self, run: &Range<usize>) -> impl Iterator<Item = (EntryIndex, Range<usize>)> {
        self.touched(run).map(EntryIndex).map(|index| {
            let block = self.bytes_of(&(index.0..index.0 + 1));
            (index, run.start.max(block.start)..run.end.min(block.end))
        })
    }

    /// Drops private pages of CoW mappings, which lie in `place`.
    pub(in crate::region) fn drop_private(&self, place: Place, bytes: &Range<usize>) -> Result<(), SystemError> {
        self.captured.outdate(self.touched(bytes));
        self.pool().sys.drop_private(self.addresses.part_at(place, bytes))
    }

    /// The number of private pages of the region.
    pub(crate) fn private_page_count(&self) -> Result<usize, SystemError> {
        Ok(self.patched(0..self.table.len())?.iter().map(|patched| patched.pages).sum())
    }

    pub(in crate::region) fn is_alone_with_cow_mapping(&self, index: usize) -> bool {
        let entry = self.table.get(EntryIndex(index));
        entry.is_cow_mapping() && self.held(entry) == Held::Alone
    }

    /// Whether the engine may write-protect a CoW mapping for a moment and write it back, without being asked to.
    pub(in crate::region) fn may_write_back(&self, index: usize) -> bool {
        self.is_alone_with_cow_mapping(index) && !self.captured.is_prepared(EntryIndex(index))
    }

    /// Writes back the CoW mappings at the start of `entries`, as far as this region alone holds their blocks and these
    /// are neighbours. Returns the entries that it has written back. The caller has blocked the program's signals.
    pub(in crate::region) fn write_back_run(
        &self,
        entries: Range<usize>,
        what: WrittenBack,
    ) -> Result<Range<usize>, Unresolved> {
        let windows = self.table.lock_windows(self.windows_of(&entries));
        let publishing = self.lock.shared();
        let mut run = entries.start..entries.start;
        let block = self.table.get(EntryIndex(entries.start)).block();
        let follows = |index: usize| {
            let by = (index - entries.start).cast_signed();
            self.table.get(EntryIndex(index)).block().zip(block).is_some_and(|(next, first)| first.is_by(by, next))
        };
        while run.end < entries.end && self.may_write_back(run.end) && follows(run.end) {
            run.end += 1;
        }
        if !run.is_empty() {
            // A block of the parent has to become this region's own, which the accounts record. And where a CoW mapping
            // stays write-protected, system calls that write would fail.
            let may_stay = run.clone().all(|index| self.table.get(EntryIndex(index)).is_owner());
            let what = if may_stay && !self.accounts.calls_wait { what } else { WrittenBack::Blocks };
            let mut runs = [PageRun::default(); PAGES_AT_ONCE];
            self.write_back_in_place(&windows, publishing, run.clone(), what, &mut runs)?;
        }
        Ok(run)
    }

    /// Writes back CoW mappings into their own blocks, which this region alone holds and which are neighbours. `runs`
    /// is room for the runs of one scan.
    pub(in crate::region) fn write_back_in_place(
        &self,
        windows: &WindowsGuard<'_>,
        publishing: SharedGuard<'_>,
        entries: Range<usize>,
        what: WrittenBack,
        runs: &mut [PageRun],
    ) -> Result<(), Unresolved> {
        let Some(start) = self.table.get(EntryIndex(entries.start)).block() else { return Ok(()) };
        let quiesced = Quiesced::begin(self, windows, publishing, entries.clone(), &self.counters.held_by_write_back)?;
        // SAFETY: writers are kept off, and the window locks keep it so, also from snapshots. Nobody else holds the
        // blocks, and this region shows them only through the CoW mapping, where the private pages cover what is
        // written.
        unsafe { self.copy_private(runs, &entries, quiesced.place, self.pool().direct(start)) }?;
        let shows = Shows::Memory { start, access: Access::ReadWrite };
        match what {
            WrittenBack::Blocks => quiesced.locked(|locked| {
                self.replace(locked, entries.clone(), shows, Event::Write, |_, old| old.in_state(State::Private))
            })?,
            // If the drop fails, the private pages stay and have the same bytes as the block.
            WrittenBack::CowMappings => _ = self.drop_private(Place::Own, &self.bytes_of(&entries)),
        }
        count(&self.counters.blocks_written_back, entries.len() as u64);
        quiesced.done();
        Ok(())
    }

    /// Writes a CoW mapping back into `own`, which is its own block or a copy of that, and shows `own` read-only.
    /// Writers are kept off the CoW mapping.
    pub(in crate::region) fn write_back_read_only(
        &self,
        locked: Locked<'_>,
        index: EntryIndex,
        own: BlockId,
        place: Place,
    ) -> Result<(), Unresolved> {
        let only = index.0..index.0 + 1;
        // SAFETY: a lock keeps all other threads out, and writers are kept off. Nobody else holds the block, which is a
        // new copy or is covered by the private pages where they are written.
        unsafe { self.copy_private(&mut [PageRun::default(); PAGES_AT_ONCE], &only, place, self.pool().direct(own)) }?;
        count(&self.counters.blocks_written_back, 1);
        let shows = Shows::Memory { start: own, access: Access::Read };
        let remapped = self.remap(locked, place, &only, shows)?;
        let Recount { before, .. } = self.store(locked, Event::Write, only.clone(), |_, _| Entry::Private(own));
        // From now on the snapshot holds the block, too.
        let Recount { after, .. } = self.store(locked, Event::Snapshot, only, |_, old| old.in_state(State::Shared));
        remapped.published(Recount { before, after });
        Ok(())
    }
}
