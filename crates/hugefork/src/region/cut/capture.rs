//! Captures the private pages over a block that others hold too, before the pause of a snapshot: copies the pages that
//! were written since the last snapshot. The region keeps its pages and its mapping.
//!
//! ```text
//!   write-protected since the last set was made ─▶ that set
//!   otherwise: each private page ─▶ as in the last set?  yes: the slot of that set  no: a new slot ─▶ a new set
//! ```
//! So a capture costs as much as was written, however many snapshots hold the block, and some nanoseconds for each
//! other page of a set that changes. A block with many such pages is copied instead ([`density::most_captured_pages`]),
//! and so is a block that a limit charges as a whole. A reservation of a block stays, and pays for the copy if no slot
//! is left.
//!
//! If the kernel tracks writes, no writer is kept off, and CoW mappings stay writable. A page is marked and then
//! copied. Only pages without a mark are visited: those that were written since. Pages that lose their mark before the
//! pause are found there (freeze.rs), and captured behind it (behind.rs).
//!
//! Otherwise the CoW mapping is write-protected under its window's lock while all its pages are compared. A thread that
//! writes to it before the pause makes it writable again, and then its pages are compared behind the pause.

use std::ops::Range;

use crate::mapping::addresses::Place;
use crate::mem::{EngineArc, EngineVec, Own};
use crate::pool::density;
use crate::pool::free_slots::FreeSlots;
use crate::pool::page_set::PageSet;
use crate::region::private::{PAGES_AT_ONCE, Patched};
use crate::region::state::{RegionCore, Unresolved};
use crate::sync::SignalsBlocked;
use crate::sys::racing::PageBytes;
use crate::sys::{PageRun, ScanFor, Sys, SystemError};
use crate::table::transition::Held;
use crate::table::{Locked, WindowsGuard};
use crate::types::options::Writers;
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// A run of pages over one CoW mapping, as a scan has found them.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    pub(super) bytes: Range<usize>,
    /// Whether the pages may have been written since they were marked. If not, they are as in the last set.
    pub(super) are_written: bool,
    /// Whether all private pages of the block were found, and not only those that have lost their marks.
    pub(super) are_all: bool,
}

/// The way in which pages of a block are captured.
#[derive(Clone, Copy, Debug)]
pub(super) enum Looks<'a> {
    /// The block is write-protected, and all its private pages are compared.
    Protected,
    /// No writer is kept off, and marks show what is written from now on. These pages were found, by block and in
    /// order: the pages that were written since the last set was made, or all private pages where there is no set.
    /// Pages that were only read may be among them.
    Marked(&'a [Pages]),
}

/// A capture of pages of a block.
struct Copies<'a, 'p, S: Sys> {
    region: &'a RegionCore<S>,
    /// The block below, which others hold too.
    base: BlockId,
    /// The offset in the region at which the block begins.
    start: usize,
    set: &'a mut EngineArc<PageSet<S>>,
    free: &'a mut FreeSlots<'p, S>,
    /// The number of slots that were used.
    new: usize,
    are_slots_left: bool,
}

impl<S: Sys> RegionCore<S> {
    /// Captures the private pages over a block; `patched` has their approximate number. If the caller has locked the
    /// block's window, writers wait, and the block is not copied for them. False if the block has to be copied instead.
    pub(super) fn capture(
        &self,
        patched: Patched,
        looks: Looks<'_>,
        free: &mut FreeSlots<'_, S>,
        window: Option<&WindowsGuard<'_>>,
    ) -> Result<bool, Unresolved> {
        let Patched { index, pages } = patched;
        let most = self.most_captured(looks, window.is_some());
        let is_known = self.captured.has_all_marked(index);
        if most.is_none_or(|most| most < if is_known { self.captured.pages_of(index) } else { pages }) {
            return Ok(false);
        }
        let signals = SignalsBlocked::new();
        let own = window.is_none().then(|| self.table.lock(index));
        // The number also changes if a debugger writes past the write-protection, which makes one more page private.
        let is_the_same = matches!(looks, Looks::Protected) && pages == self.captured.pages_of(index);
        if is_the_same && own.is_some() && self.keeps_last(index) {
            return Ok(true);
        }
        let captured = match window.or(own.as_ref()) {
            Some(window) => self.capture_pages(window, index, looks, free, most),
            None => Ok(None),
        };
        if !matches!(captured, Ok(Some(_))) {
            // The marks may say of some pages that they were not written, while the last set has older bytes of them.
            self.captured.forget(index);
        }
        drop((own, signals));
        let new = captured?;
        if let Some(new) = new.filter(|_| !matches!(looks, Looks::Protected)) {
            self.note_density(index, new);
        }
        Ok(new.is_some())
    }

    /// Captures the pages that were found over a block. Returns how many were copied; none if the block has to be
    /// copied instead.
    fn capture_pages(
        &self,
        window: &WindowsGuard<'_>,
        index: EntryIndex,
        looks: Looks<'_>,
        free: &mut FreeSlots<'_, S>,
        most: Option<usize>,
    ) -> Result<Option<usize>, Unresolved> {
        let only = index.0..index.0 + 1;
        let publishing = self.lock.shared();
        let entry = self.table.get(index);
        let is_shared =
            entry.is_cow_mapping() && self.held(entry) == Held::ByOthersToo && !self.captured.is_prepared(index);
        let Some(base) = entry.block().filter(|_| is_shared) else { return Ok(None) };
        let is_protected = matches!(looks, Looks::Protected);
        if is_protected {
            self.write_protect(Locked::windows(window, &publishing), only.clone())?;
        }
        let was_known = self.captured.has_all_marked(index);
        let is_told = self.captured.begin_block(index, is_protected);
        drop(publishing);
        let (bytes, mut new, mut runs) = (self.bytes_of(&only), 0, [PageRun::default(); PAGES_AT_ONCE]);
        let empty = || PageSet::empty(self.pool(), base);
        let is_captured = self.captured.change(index, empty, is_told.then_some(base), |set| {
            let start = bytes.start;
            let mut copies = Copies { region: self, base, start, set, free, new: 0, are_slots_left: true };
            let found = match looks {
                Looks::Marked(found) => found,
                Looks::Protected => &[],
            };
            let found = &found[found.partition_point(|pages| pages.bytes.start < bytes.start)..];
            let found = &found[..found.partition_point(|pages| pages.bytes.start < bytes.end)];
            // If pages were dropped meanwhile, the pages that have lost their marks are not all that changed.
            if !is_protected && (was_known || found.first().is_some_and(|pages| pages.are_all)) {
                found.iter().for_each(|pages| copies.add_each(pages.bytes.clone(), pages.are_written));
            } else {
                self.scan(ScanFor::PrivateAndMark, (&bytes, Place::Own), &mut runs, |run, is_written| {
                    copies.add_each(run, is_written);
                    Ok::<(), SystemError>(())
                })?;
            }
            new = copies.new;
            Ok::<bool, Unresolved>(copies.are_slots_left && most.is_some_and(|most| copies.set.len() <= most))
        })?;
        Ok(is_captured.then_some(new))
    }

    /// In debug builds, checks that captured pages still show what was captured, unless they were written since. The
    /// program may have dropped some by `madvise`, which the kernel does not refuse. The engine's own tests count calls
    /// and go without this.
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

    /// Lists the pages of the last set that show other bytes, though they have their marks. A write takes the mark away
    /// first, so the marks are read last.
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
        let mut runs = [PageRun::default(); PAGES_AT_ONCE];
        let looked = self.scan(ScanFor::Unmarked, (&bytes, Place::Own), &mut runs, |written, _| {
            gone.retain(|at| !written.contains(at));
            Ok::<(), SystemError>(())
        });
        if looked.is_err() {
            gone.clear();
        }
    }

    /// Makes the last set of a write-protected block the set for this cut, if nobody has written to the block since.
    /// True if so. The caller has the window's lock.
    fn keeps_last(&self, index: EntryIndex) -> bool {
        let entry = self.table.get(index);
        let is_as_before =
            entry.is_cow_mapping() && !entry.is_writable_cow_mapping() && self.captured.is_current(index);
        entry.block().filter(|_| is_as_before).is_some_and(|base| self.captured.keep_last(index, base))
    }

    /// Whether a snapshot may capture private pages without keeping writers off, if the kernel tracks writes.
    pub(super) fn may_capture_tracked(&self) -> bool {
        let accounts = &self.accounts;
        let may_write = !accounts.calls_wait && accounts.limit.is_none() && accounts.writers == Writers::Fault;
        let may_capture = || self.captured.are_any() || self.shares_cow_mappings();
        may_write && !self.shows_by_page() && accounts.has_cow_mappings() && may_capture()
    }

    /// Whether a CoW mapping has a block with other holders, so that its private pages cannot go back into it.
    fn shares_cow_mappings(&self) -> bool {
        (0..self.table.len())
            .map(|index| self.table.get(EntryIndex(index)))
            .any(|entry| entry.is_cow_mapping() && self.held(entry) == Held::ByOthersToo)
    }

    /// The most pages that are captured over one block. With more pages, the block is copied, unless writers wait.
    /// `None` if pages must not be captured.
    fn most_captured(&self, looks: Looks<'_>, do_writers_wait: bool) -> Option<usize> {
        let (accounts, size) = (&self.accounts, self.pool().block_size);
        let may_capture = !accounts.calls_wait && accounts.limit.is_none() && accounts.writers == Writers::Fault;
        let are_tracked = matches!(looks, Looks::Marked(_));
        let may_copy = !do_writers_wait && (!are_tracked || self.captured.may_copy());
        let most = if may_copy { density::most_captured_pages(size, are_tracked) } else { size.bytes() / BASE_PAGE };
        may_capture.then_some(most)
    }
}

impl<S: Sys> Copies<'_, '_, S> {
    /// Adds a run of pages.
    fn add_each(&mut self, run: Range<usize>, are_written: bool) {
        run.step_by(BASE_PAGE).for_each(|at| self.add(at, are_written));
    }

    /// Adds the page at `at`. Copies it, unless it is as in the set, or as in the block if the set does not have it.
    fn add(&mut self, at: usize, is_written: bool) {
        let pool = self.region.pool();
        let (page, part) = ((at - self.start) / BASE_PAGE, self.region.addresses.part(&(at..at + BASE_PAGE)));
        // SAFETY: the window's lock keeps the CoW mapping as it is, and readable.
        let differs = |from: &PageBytes| unsafe { pool.sys.shown_differs(part, from) };
        let is_new = match self.set.slot_of(page) {
            Some(slot) => is_written && !seeded!("written-page-counts-as-before") && differs(self.set.bytes(slot)),
            // A page that was only read, or that a reset has put back, is as in the block.
            // SAFETY: the page lies in the block, which the region and others hold, so that nobody writes to it.
            None => differs(unsafe { &*pool.direct(self.base).add(page * BASE_PAGE).cast::<PageBytes>() }),
        };
        if !is_new {
            return;
        }
        let Some(slot) = self.free.next() else {
            self.are_slots_left = false;
            return;
        };
        // SAFETY: the window's lock keeps the CoW mapping as it is, and readable. Nobody uses the slot yet. A thread
        // that writes to the page meanwhile takes its mark away, so the page is copied again before the cut is made.
        unsafe { pool.sys.copy_shown_page(part, pool.slot(slot)) };
        self.set.make_mut().put(page, slot);
        self.new += 1;
    }
}
