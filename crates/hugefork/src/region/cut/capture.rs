//! What a snapshot does before its pause with private pages over a block that others hold too: it copies out what was
//! written since the last one, and the region keeps its pages and its mapping.
//!
//! ```text
//!   write-protected since the last set was made ─▶ that set
//!   else: private pages ─▶ as in the last set?  yes: the slot that is there  no: a new slot ─▶ a new set
//! ```
//! So it costs what was written, however many snapshots hold the block, and some nanoseconds for each other page of a
//! set that changes. A block with many such pages is copied instead
//! ([`PageSet::most_pages`]), and so is one that a limit counts as a whole. What is reserved for a
//! block stays so, and pays for the copy where no slot is left.
//!
//! Where the kernel tracks writes, nobody is kept off, and CoW mappings stay writable. A page is marked and then
//! copied. Only pages without a mark are looked at: those that were written since. What loses its mark before the pause
//! is found there (freeze.rs), and captured with what was prepared for that ([`Spare`]), or copied by the block.
//!
//! Elsewhere the CoW mapping is write-protected under its window's lock while all its pages are compared. Whoever
//! writes to it before the pause makes it writable again, and then the pause copies the block.

use std::ops::Range;

use super::ahead::Look;
use crate::mapping::addresses::Place;
use crate::mem::{EngineArc, EngineVec, Own};
use crate::pool::core::PoolCore;
use crate::pool::page_set::{PageSet, Pages};
use crate::pool::slots::Slot;
use crate::region::private::{PAGES_AT_ONCE, Patched};
use crate::region::state::{RegionCore, Unresolved};
use crate::snapshot::core::SnapshotCore;
use crate::sync::SignalsBlocked;
use crate::sys::racing::PageBytes;
use crate::sys::{MOST_RUNS, PageRun, Sys};
use crate::table::transition::Held;
use crate::table::{Entry, Locked};
use crate::types::error::RegionError;
use crate::types::options::Writers;
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// So many pages may have become private since they were counted.
const MORE_PAGES: usize = 16;

/// The pause captures at most so many blocks, and copies the others.
const MOST_SPARE_SETS: usize = 4096;

/// A block with more is copied: of 1 GiB, a set has up to 229 376.
const MOST_SPARE_PAGES: usize = 512;

/// For more runs of pages of a block, the kernel is asked for all private pages of the block, which takes as long.
const MAX_ASKED_ONE_BY_ONE: usize = 16;

/// Pages that are written again and again are few.
const SPARE_SLOTS_A_SET: usize = 4;

/// What was found over a block.
struct Found {
    base: BlockId,
    /// How many of the free slots were used.
    new: usize,
}

/// How a block is captured.
#[derive(Clone, Copy, Debug)]
enum Looks<'a> {
    /// It is write-protected, and all its pages are looked at.
    Protected,
    /// The same, but it stays as it is: marks tell what is written from now on.
    All,
    /// Only these can have been written to since the last set was made.
    OnlyAt(&'a [Range<usize>]),
}

/// Pages of a block, as they are captured.
struct Copies<'a, S: Sys> {
    region: &'a RegionCore<S>,
    /// The block below, which others hold too.
    base: BlockId,
    /// Where the block begins.
    start: usize,
    last: Option<&'a PageSet<S>>,
    /// Slots to copy to, of which the first `new` are used.
    free: &'a [Slot],
    new: usize,
    /// There were slots enough, and room.
    are_few: bool,
    pages: &'a mut Pages,
}

/// What the pause captures with, where nothing is allocated or freed.
pub(crate) struct Spare<S: Sys> {
    pool: EngineArc<PoolCore<S>>,
    /// The first `used` belong to sets.
    slots: EngineVec<Slot>,
    used: usize,
    /// Empty ones, each with room for its pages.
    sets: EngineVec<(EngineArc<PageSet<S>>, Pages)>,
    /// What had become private since the look ahead, before the pause.
    pub(super) open: Range<usize>,
    /// For the pages that a scan finds.
    pub(super) runs: EngineVec<PageRun>,
    /// What goes when the pause is over: sets, and room.
    replaced: EngineVec<EngineArc<PageSet<S>>>,
    unused: EngineVec<Pages>,
}

impl<S: Sys> RegionCore<S> {
    /// Captures the private pages over a block. False if the block is to be copied.
    pub(super) fn capture(&self, patched: Patched) -> Result<bool, RegionError> {
        let most = self.most_captured();
        if !self.may_capture(patched, most) {
            return Ok(false);
        }
        // Whoever goes past write-protection, as debuggers do, has made a page private.
        let is_the_same = patched.pages == self.captured.pages_of(patched.index);
        let may_be_kept = |entry: Entry| !entry.is_writable_cow_mapping() && self.captured.is_current(patched.index);
        if is_the_same && self.keeps_last(patched.index, may_be_kept) {
            return Ok(true);
        }
        self.capture_as(patched, Looks::Protected, most)
    }

    /// The same, and keeps nobody off. `written` are all pages of blocks with a set that may have been written to since
    /// they were marked, by block and in order.
    pub(super) fn capture_tracked(&self, patched: Patched, written: &[Range<usize>]) -> Result<bool, RegionError> {
        let most = if self.captured.may_copy() { self.most_captured() } else { self.pages_of_a_block() };
        let is_captured = self.capture_tracked_at_most(patched, written, most)?;
        if !is_captured {
            self.captured.note_copy();
        }
        Ok(is_captured)
    }

    fn capture_tracked_at_most(
        &self,
        patched: Patched,
        written: &[Range<usize>],
        most: usize,
    ) -> Result<bool, RegionError> {
        if !self.may_capture(patched, most) {
            return Ok(false);
        }
        let block = self.bytes_of(&(patched.index.0..patched.index.0 + 1));
        let first = written.partition_point(|run| run.start < block.start);
        let written = &written[first..][..written[first..].partition_point(|run| run.start < block.end)];
        let is_known = self.captured.has_all_marked(patched.index);
        if is_known && self.capture_as(patched, Looks::OnlyAt(written), most)? {
            return Ok(true);
        }
        // Pages were dropped meanwhile, or there are too many; and others have written since they were counted.
        let pages = self.count_private(patched.index).map_err(RegionError::System)?;
        let patched = Patched { pages, ..patched };
        Ok(self.may_capture(patched, most) && self.capture_as(patched, Looks::All, most)?)
    }

    fn capture_as(&self, patched: Patched, looks: Looks<'_>, most: usize) -> Result<bool, RegionError> {
        let (pool, index) = (self.pool(), patched.index);
        let (most_new, more) = match looks {
            Looks::Protected => (patched.pages, 0),
            // Somebody may write to more.
            Looks::All => (patched.pages, MORE_PAGES),
            Looks::OnlyAt(written) => (written.iter().map(|run| run.len() / BASE_PAGE).sum(), 0),
        };
        let free = pool.take_slots(most_new + more);
        let last = self.captured.last(index);
        let room = free.len() + last.as_ref().map_or(0, |last| last.len());
        let mut pages = EngineVec::with_capacity_in(room, Own);
        let signals = SignalsBlocked::new();
        let found = self.capture_pages(index, looks, last.as_deref(), &free, &mut pages);
        drop(signals);
        let new = found.as_ref().ok().and_then(Option::as_ref).map_or(0, |found| found.new);
        let is_found = matches!(found, Ok(Some(_))) && pages.len() <= most;
        pool.give_up_slots(free[if is_found { new } else { 0 }..].iter().copied());
        if !is_found {
            // Pages may count as not written by now that the last set has as they were before.
            self.captured.forget(index);
        }
        let found = found.map_err(|reason| self.error(reason))?.filter(|_| is_found);
        let Some(Found { base, new }) = found else { return Ok(false) };
        let same = last.as_ref().filter(|last| new == 0 && last.base == base && last.len() == pages.len());
        let set = same.cloned().unwrap_or_else(|| {
            let is_shared = |slot| free[..new].binary_search(&slot).is_err();
            EngineArc::new(PageSet::new(pool, base, &pages, last.as_deref(), is_shared))
        });
        self.captured.keep(index, set);
        if !matches!(looks, Looks::Protected) {
            self.note_density(index, new);
        }
        Ok(true)
    }

    /// In debug builds, checks that captured pages to which nobody has written since show what was captured. The
    /// program may have dropped some by `madvise`, which the kernel does not refuse. Not in the engine's own tests,
    /// which count calls.
    pub(super) fn check_captured(&self) {
        if cfg!(test) || !cfg!(debug_assertions) || !self.captured.are_tracked() {
            return;
        }
        for index in (0..self.table.len()).map(EntryIndex).filter(|&index| self.captured.pages_of(index) > 0) {
            let Some(last) = self.captured.last(index) else { continue };
            let mut gone = EngineVec::with_capacity_in(last.len(), Own);
            self.find_gone(index, &last, &mut gone);
            let count = gone.len();
            assert!(
                count == 0,
                "{count} pages of the block at {:#x} are not what was written there: give memory of a region back by \
                 `discard` or `lazy_free`, not by `madvise`, and pin what is written past the page table",
                self.addresses.base() + self.bytes_of(&(index.0..index.0 + 1)).start,
            );
        }
    }

    /// Lists the pages of the last set that show something else, though they have their marks. A write takes the mark
    /// away first, so the marks are looked at last.
    fn find_gone(&self, index: EntryIndex, last: &PageSet<S>, gone: &mut EngineVec<usize>) {
        let _signals = SignalsBlocked::new();
        let _window = self.table.lock(index);
        let entry = self.table.get(index);
        if !self.captured.has_all_marked(index) || !entry.is_cow_mapping() || entry.block() != Some(last.base) {
            return;
        }
        let (only, sys) = (index.0..index.0 + 1, &self.pool().sys);
        let shown = |at: &usize| self.addresses.part(&(*at..*at + BASE_PAGE));
        let bytes = self.bytes_of(&only);
        gone.extend(bytes.clone().step_by(BASE_PAGE).filter(|at| {
            let slot = last.slot_of((at - bytes.start) / BASE_PAGE);
            // SAFETY: the window's lock keeps the CoW mapping as it is, and readable.
            slot.is_some_and(|slot| unsafe { sys.shown_differs(shown(at), last.bytes(slot)) })
        }));
        let looked = self.each_unmarked(&mut [PageRun::default(); PAGES_AT_ONCE], &only, |_, written| {
            gone.retain(|at| !written.contains(at));
            Ok(())
        });
        if looked.is_err() {
            gone.clear();
        }
    }

    /// Has the last set of a block for this cut, if nobody has written to the block since that was made. True if so.
    fn keeps_last(&self, index: EntryIndex, is_kept: impl Fn(Entry) -> bool) -> bool {
        let _signals = SignalsBlocked::new();
        let _window = self.table.lock(index);
        let entry = self.table.get(index);
        let base = entry.block().filter(|_| entry.is_cow_mapping() && is_kept(entry));
        base.is_some_and(|base| self.captured.keep_last(index, base))
    }

    /// Whether a snapshot may capture what is private without keeping anybody off, if writes are tracked.
    pub(super) fn may_capture_tracked(&self) -> bool {
        let accounts = &self.accounts;
        let may_write = !accounts.calls_wait && accounts.limit.is_none() && accounts.writers == Writers::Fault;
        let may_capture = || self.captured.are_any() || self.shares_cow_mappings();
        may_write && !self.shows_by_page() && accounts.has_cow_mappings() && may_capture()
    }

    /// Whether others hold the block of a CoW mapping, so that its private pages cannot go back into it.
    fn shares_cow_mappings(&self) -> bool {
        (0..self.table.len())
            .map(|index| self.table.get(EntryIndex(index)))
            .any(|entry| entry.is_cow_mapping() && self.held(entry) == Held::ByOthersToo)
    }

    fn most_captured(&self) -> usize {
        PageSet::<S>::most_pages(self.pool().block_size, self.captured.are_tracked())
    }

    fn pages_of_a_block(&self) -> usize {
        self.pool().block_size.bytes() / BASE_PAGE
    }

    fn may_capture(&self, patched: Patched, most: usize) -> bool {
        let accounts = &self.accounts;
        patched.pages <= most && !accounts.calls_wait && accounts.limit.is_none() && accounts.writers == Writers::Fault
    }

    /// Copies to `free` what is not in the last set, and lists all pages. None if the block is to be copied.
    fn capture_pages(
        &self,
        index: EntryIndex,
        looks: Looks<'_>,
        last: Option<&PageSet<S>>,
        free: &[Slot],
        pages: &mut Pages,
    ) -> Result<Option<Found>, Unresolved> {
        let only = index.0..index.0 + 1;
        let window = self.table.lock(index);
        let publishing = self.lock.shared();
        let entry = self.table.get(index);
        let is_shared = entry.is_cow_mapping() && self.held(entry) == Held::ByOthersToo && !self.prepared.has(index);
        let Some(base) = entry.block().filter(|_| is_shared) else { return Ok(None) };
        let is_protected = matches!(looks, Looks::Protected);
        if is_protected {
            self.write_protect(Locked::windows(&window, &publishing), only.clone())?;
        }
        let is_told = self.captured.begin_block(index, is_protected);
        drop(publishing);
        let last = last.filter(|last| is_told && last.base == base);
        let bytes = self.bytes_of(&only);
        let mut copies = Copies { region: self, base, start: bytes.start, last, free, new: 0, are_few: true, pages };
        let mut runs = [PageRun::default(); PAGES_AT_ONCE];
        match (looks, last) {
            (Looks::OnlyAt(written), Some(last)) => {
                copies.add_all_written(&mut runs, last, written)?;
                copies.add_others(last);
            }
            (Looks::OnlyAt(_), None) => return Ok(None),
            (Looks::Protected | Looks::All, _) => copies.mark_and_add(&mut runs, &bytes)?,
        }
        Ok(copies.are_few.then_some(Found { base, new: copies.new }))
    }

    /// What the pause may capture blocks with that are written to until it begins: twice as many as are expected.
    pub(super) fn spare_sets(&self, look: Option<&Look>) -> Spare<S> {
        let (pool, expected) = (self.pool(), look.map(|look| look.expected).unwrap_or_default());
        let count = (2 * expected.blocks).min(MOST_SPARE_SETS).min(self.table.len());
        // Without any, blocks are copied.
        let slots = pool.take_ready_slots((count * SPARE_SLOTS_A_SET).max(2 * expected.pages));
        let mut runs = EngineVec::new_in(Own);
        runs.resize(if look.is_some() { MOST_RUNS } else { 0 }, PageRun::default());
        let mut spare = Spare {
            open: 0..0,
            runs,
            pool: pool.clone(),
            slots,
            used: 0,
            sets: EngineVec::with_capacity_in(count, Own),
            replaced: EngineVec::with_capacity_in(2 * count, Own),
            unused: EngineVec::with_capacity_in(count, Own),
        };
        spare.sets.resize_with(count, || {
            let most = self.pages_of_a_block().min(MOST_SPARE_PAGES);
            (EngineArc::new(PageSet::empty(pool)), EngineVec::with_capacity_in(most, Own))
        });
        spare
    }

    /// In the pause, captures a block that is write-protected: what was written since it was captured, or all that is
    /// private. Marks nothing, which takes longer than the rest: the next snapshot finds these pages to be as they
    /// were. False if the block is to be copied. The caller has the locks that keep the entry as it is.
    pub(super) fn capture_again(
        &self,
        index: EntryIndex,
        frozen: &SnapshotCore<S>,
        spare: &mut Spare<S>,
    ) -> Result<bool, Unresolved> {
        let last = self.captured.last(index);
        let Some(base) = self.table.get(index).block() else { return Ok(false) };
        let Some((mut set, mut pages)) = spare.sets.pop() else { return Ok(false) };
        let (free, bytes) = (&spare.slots[spare.used..], self.bytes_of(&(index.0..index.0 + 1)));
        let is_told = self.captured.begin_block(index, true);
        let known = last.as_deref().filter(|last| is_told && last.base == base);
        let (start, pages_of) = (bytes.start, &mut pages);
        let mut copies =
            Copies { region: self, base, start, last: known, free, new: 0, are_few: true, pages: pages_of };
        let looked = match known {
            Some(last) => {
                let mut runs = [PageRun::default(); 1];
                let add = |_, written: Range<usize>| copies.add_written(&mut runs, last, &written);
                self.each_unmarked(&mut spare.runs, &(index.0..index.0 + 1), add).map(|()| copies.add_others(last))
            }
            None => copies.add_private(&mut spare.runs, &bytes),
        };
        let (new, is_found) = (copies.new, copies.are_few && looked.is_ok());
        let mut fill =
            |set: &mut PageSet<S>| set.fill(base, &mut pages, |slot| free[..new].binary_search(&slot).is_err());
        let is_filled = is_found && set.get_mut().is_some_and(&mut fill);
        if is_filled {
            spare.used += new;
            frozen.set_pages(index, Some(set.clone()));
            self.captured.keep(index, set.clone());
        } else {
            self.captured.forget(index);
        }
        // Nothing is freed here.
        spare.replaced.extend(last.into_iter().chain([set]));
        spare.unused.push(pages);
        looked.map(|()| is_filled)
    }
}

impl<S: Sys> Copies<'_, S> {
    /// Adds all private pages of a range of bytes, and marks them.
    fn mark_and_add(&mut self, runs: &mut [PageRun], wanted: &Range<usize>) -> Result<(), Unresolved> {
        self.region.mark_each_private(runs, wanted, |run, is_written| {
            run.step_by(BASE_PAGE).for_each(|at| self.add(at, is_written));
        })?;
        Ok(())
    }

    /// The same, and marks nothing.
    fn add_private(&mut self, runs: &mut [PageRun], wanted: &Range<usize>) -> Result<(), Unresolved> {
        self.region.each_private(runs, wanted, Place::Own, |run| {
            run.step_by(BASE_PAGE).for_each(|at| self.add(at, true));
            Ok(())
        })?;
        Ok(())
    }

    /// Adds the private pages of these ranges, which had no marks.
    fn add_all_written(
        &mut self,
        runs: &mut [PageRun],
        last: &PageSet<S>,
        written: &[Range<usize>],
    ) -> Result<(), Unresolved> {
        let unknown = written.iter().filter(|written| !self.are_private(last, written)).count();
        if unknown <= MAX_ASKED_ONE_BY_ONE {
            return written.iter().try_for_each(|written| self.add_written(runs, last, written));
        }
        let mut rest = written;
        let around = written[0].start..written[written.len() - 1].end;
        self.region.each_private(runs, &around, Place::Own, |private| {
            while let Some(next) = rest.first().filter(|next| next.start < private.end) {
                let both = next.start.max(private.start)..next.end.min(private.end);
                both.step_by(BASE_PAGE).for_each(|at| self.add(at, true));
                if next.end > private.end {
                    break;
                }
                rest = &rest[1..];
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Whether all these pages are in the last set, and so are private.
    fn are_private(&self, last: &PageSet<S>, pages: &Range<usize>) -> bool {
        pages.clone().step_by(BASE_PAGE).all(|at| last.slot_of((at - self.start) / BASE_PAGE).is_some())
    }

    /// Adds the private pages of a range that has no marks, or had none. What is in the last set is private still.
    fn add_written(
        &mut self,
        runs: &mut [PageRun],
        last: &PageSet<S>,
        written: &Range<usize>,
    ) -> Result<(), Unresolved> {
        if !self.are_private(last, written) {
            return self.add_private(runs, written);
        }
        written.clone().step_by(BASE_PAGE).for_each(|at| self.add(at, true));
        Ok(())
    }

    /// Adds the pages of the last set that are not there yet, which are as they were, if there is room.
    fn add_others(&mut self, last: &PageSet<S>) {
        self.are_few &= self.pages.len() + last.len() <= self.pages.capacity();
        if self.are_few {
            last.add_others(self.pages);
        }
    }

    /// Adds the private page at `at`: a new copy, unless it is as in the last set, or as in the block where the set has
    /// none.
    fn add(&mut self, at: usize, is_written: bool) {
        let pool = self.region.pool();
        let (page, part) = ((at - self.start) / BASE_PAGE, self.region.addresses.part(&(at..at + BASE_PAGE)));
        // SAFETY: the window's lock keeps the CoW mapping as it is, and readable.
        let differs = |from: &PageBytes| unsafe { pool.sys.shown_differs(part, from) };
        let before = self.last.and_then(|last| Some((last, last.slot_of(page)?)));
        // SAFETY: the page lies in the block, which the region and others hold, so that nobody writes to it.
        let below = || unsafe { &*pool.direct(self.base).add(page * BASE_PAGE).cast::<PageBytes>() };
        if before.is_none() && !differs(below()) {
            // A reset has put it back.
            return;
        }
        let same = before.filter(|(last, slot)| !is_written || !differs(last.bytes(*slot)));
        let slot = same.map(|(_, slot)| slot).or_else(|| self.free.get(self.new).copied());
        let Some(slot) = slot.filter(|_| self.pages.len() < self.pages.capacity()) else {
            self.are_few = false;
            return;
        };
        if same.is_none() {
            // SAFETY: the window's lock keeps the CoW mapping as it is, and readable. The slot is nobody's yet. Who
            // writes to the page meanwhile takes its mark away, and the pause finds that: then nobody sees this.
            unsafe { pool.sys.copy_shown_page(part, pool.slot(slot)) };
            self.new += 1;
        }
        self.pages.push((page as u32, slot));
    }
}

impl<S: Sys> Drop for Spare<S> {
    fn drop(&mut self) {
        self.pool.give_up_slots(self.slots[self.used..].iter().copied());
    }
}
