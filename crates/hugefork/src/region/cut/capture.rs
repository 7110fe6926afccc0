//! What a snapshot does before its pause with private pages over a block that others hold too: it copies out what was
//! written since the last one, and the region keeps its pages and its mapping.
//!
//! ```text
//!   write-protected since the last set was made ─▶ that set
//!   else: private pages ─▶ as in the last set?  yes: the slot that is there  no: a new slot ─▶ a new set
//! ```
//! So it costs what was written, however many snapshots hold the block. A block with many such pages is copied instead
//! ([`PageSet::most_pages`]), and so is one that a limit or a reservation counts as a whole.
//!
//! The CoW mapping is write-protected under its window's lock while it is looked at. Whoever writes to it before the
//! pause makes it writable again, and then the pause copies the block. If nobody can write to it before the pause is
//! over, it stays writable, and nothing has to be done for the next write.
//!
//! Where the kernel tracks writes, only pages that were written since are compared: at the first look after tracking
//! has begun these are all.

use crate::mem::{EngineArc, EngineVec, Own};
use crate::pool::page_set::PageSet;
use crate::pool::slots::Slot;
use crate::region::private::{PAGES_AT_ONCE, Patched};
use crate::region::state::{RegionCore, Unresolved};
use crate::sync::SignalsBlocked;
use crate::sys::{PageRun, Sys, SystemError};
use crate::table::Locked;
use crate::table::transition::Held;
use crate::types::error::RegionError;
use crate::types::options::Writers;
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// What was found over a block.
struct Found {
    base: BlockId,
    /// How many of the free slots were used.
    new: usize,
}

impl<S: Sys> RegionCore<S> {
    /// Captures the private pages over a block, which nobody can write to if this thread `is_alone`. False if the block
    /// is to be copied.
    pub(super) fn capture(&self, patched: Patched, is_alone: bool) -> Result<bool, RegionError> {
        let (pool, index) = (self.pool(), patched.index);
        if !self.may_capture(patched) {
            return Ok(false);
        }
        // Whoever goes past write-protection, as debuggers do, has made a page private.
        if patched.pages == self.captured.pages_of(index) && self.is_as_captured(patched, is_alone) {
            return Ok(true);
        }
        let Ok(free) = pool.take_slots(patched.pages) else { return Ok(false) };
        let last = self.captured.last(index);
        let mut pages = EngineVec::with_capacity_in(self.most_captured(), Own);
        let signals = SignalsBlocked::new();
        let found = self.capture_pages(index, is_alone, last.as_deref(), &free, &mut pages);
        drop(signals);
        let new = found.as_ref().ok().and_then(Option::as_ref).map_or(0, |found| found.new);
        pool.give_up_slots(free[new..].iter().copied());
        if !matches!(found, Ok(Some(_))) {
            // Pages may count as not written by now that the last set has as they were before.
            self.captured.forget(index);
        }
        let Some(Found { base, new }) = found.map_err(|reason| self.error(reason))? else { return Ok(false) };
        let last = last.filter(|last| new == 0 && last.base == base && last.len() == pages.len());
        let set = last
            .unwrap_or_else(|| EngineArc::new(PageSet::new(pool, base, pages, |slot| !free[..new].contains(&slot))));
        self.captured.keep(index, set);
        Ok(true)
    }

    /// Whether nobody has written to a block since it was captured. Then its set is this cut's, too.
    fn is_as_captured(&self, patched: Patched, is_alone: bool) -> bool {
        let index = patched.index;
        let _signals = SignalsBlocked::new();
        let _window = self.table.lock(index);
        let entry = self.table.get(index);
        // Beside others, somebody may have written since the pages were looked at.
        let is_unwritten = if is_alone { !patched.are_written } else { self.captured.is_current(index) };
        let is_kept = entry.is_cow_mapping() && (is_alone || !entry.is_writable_cow_mapping());
        entry.block().is_some_and(|base| is_kept && is_unwritten && self.captured.keep_last(index, base))
    }

    /// Whether a snapshot may capture what is private without keeping anybody off.
    pub(super) fn may_capture_alone(&self) -> bool {
        let accounts = &self.accounts;
        let may_write = !accounts.calls_wait && accounts.limit.is_none() && accounts.writers == Writers::Fault;
        may_write && !self.shows_by_page() && accounts.has_cow_mappings() && self.captured.are_any()
    }

    /// Whether all private pages over CoW mappings that can be written to are captured for this cut, and none was
    /// written since.
    pub(super) fn is_all_captured(&self) -> Result<bool, SystemError> {
        let sets = self.captured.lock();
        let is_captured = |index: EntryIndex| {
            let entry = self.table.get(index);
            let is_open = entry.is_writable_cow_mapping();
            !is_open || entry.block().is_some_and(|base| sets.has_of_this_cut(index, base))
        };
        let (mut runs, mut all) = ([PageRun::default(); PAGES_AT_ONCE], true);
        for run in self.cow_mappings(0..self.table.len()) {
            self.each_private_with_marks(&mut runs, &self.bytes_of(&run), |pages, are_written| {
                all &= !are_written && self.touched(&pages).map(EntryIndex).all(is_captured);
            })?;
        }
        Ok(all)
    }

    fn most_captured(&self) -> usize {
        PageSet::<S>::most_pages(self.pool().block_size, self.captured.are_tracked())
    }

    fn may_capture(&self, patched: Patched) -> bool {
        let accounts = &self.accounts;
        patched.pages <= self.most_captured()
            && !accounts.calls_wait
            && accounts.limit.is_none()
            && accounts.writers == Writers::Fault
            && !self.table.is_reserved(patched.index)
    }

    /// Copies to `free` what is not in the last set, and lists all pages. None if the block is to be copied.
    fn capture_pages(
        &self,
        index: EntryIndex,
        is_alone: bool,
        last: Option<&PageSet<S>>,
        free: &[Slot],
        pages: &mut EngineVec<(u32, Slot)>,
    ) -> Result<Option<Found>, Unresolved> {
        let (pool, only) = (self.pool(), index.0..index.0 + 1);
        let window = self.table.lock(index);
        let publishing = self.lock.shared();
        let entry = self.table.get(index);
        let is_shared = entry.is_cow_mapping() && self.held(entry) == Held::ByOthersToo && !self.prepared.has(index);
        let Some(base) = entry.block().filter(|_| is_shared) else { return Ok(None) };
        if !is_alone {
            self.write_protect(Locked::windows(&window, &publishing), only.clone())?;
        }
        let is_told = self.captured.begin_block(index, !is_alone);
        drop(publishing);
        let last = last.filter(|last| is_told && last.base == base);
        let (bytes, mut new, mut are_few) = (self.bytes_of(&only), 0, true);
        let mut capture_page = |at: usize, is_written: bool| {
            let (page, part) = ((at - bytes.start) / BASE_PAGE, self.addresses.part(&(at..at + BASE_PAGE)));
            let before = last.and_then(|last| Some((last, last.slot_of(page)?)));
            let same = before.filter(|(last, slot)| {
                // SAFETY: the window's lock keeps the CoW mapping as it is, and readable.
                !is_written || !unsafe { pool.sys.shown_differs(part, last.bytes(*slot)) }
            });
            let slot = same.map(|(_, slot)| slot).or_else(|| free.get(new).copied());
            let Some(slot) = slot.filter(|_| pages.len() < pages.capacity()) else {
                are_few = false;
                return;
            };
            if same.is_none() {
                // SAFETY: the page can be read, and is write-protected. The slot is nobody's yet.
                unsafe { pool.sys.copy_shown(part, pool.slot(slot)) };
                new += 1;
            }
            pages.push((page as u32, slot));
        };
        let mut runs = [PageRun::default(); PAGES_AT_ONCE];
        let looked = self.mark_each_private(&mut runs, &bytes, |run, is_written| {
            run.step_by(BASE_PAGE).for_each(|at| capture_page(at, is_written));
        });
        looked.map_err(Unresolved::Unmappable)?;
        Ok(are_few.then_some(Found { base, new }))
    }
}
