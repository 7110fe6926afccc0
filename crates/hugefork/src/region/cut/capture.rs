//! Captures the private pages over a block that others hold too, before or behind the pause of a snapshot: copies the
//! pages that were written since the last snapshot. The region keeps its pages and its mapping.
//!
//! ```text
//!   write-protected since the last set was made ─▶ that set
//!   otherwise: each private page ─▶ as in the last set?  yes: the slot of that set  no: a new slot ─▶ a new set
//! ```
//! So a capture costs as much as was written, however many snapshots hold the block, and some nanoseconds for each
//! other page of a set that changes. If most pages of a block were written since ([`density::mostly_captured_pages`]),
//! it is copied instead, and so is a block that a limit charges as a whole. A reservation of a block stays, and pays
//! for the copy if no slot is left.
//!
//! If the kernel tracks writes, no writer is kept off, and CoW mappings stay writable. A page is marked and then
//! copied. Only pages without a mark are visited: those that were written since. Pages that lose their mark before the
//! pause are found there (freeze.rs), and captured behind it, while other threads go on:
//! ```text
//!   pause    write-protect the CoW mappings that were written to ─▶ release all windows except theirs
//!   behind   capture the pages of one block after the other ─▶ release its window
//! ```
//! A thread that writes to such a block waits for its window. So the length of the pause depends neither on the number
//! of pages to copy nor on memory for them. If system calls wait, the pages are parked, and nothing is left for later.
//!
//! Otherwise the CoW mapping is write-protected under its window's lock while all its pages are compared. A block with
//! many of them is copied ([`density::most_captured_pages`]). A thread that writes to such a mapping before the pause
//! makes it writable again, and then its pages are compared behind the pause.

use std::ops::Range;

use super::part::{Keeps, Part};
use crate::mapping::addresses::Place;
use crate::mem::{EngineVec, Own};
use crate::pool::density;
use crate::pool::free_slots::FreeSlots;
use crate::pool::page_set::PageSet;
use crate::region::private::{PAGES_AT_ONCE, Patched, Quiesced};
use crate::region::state::{RegionCore, Unresolved};
use crate::sync::SignalsBlocked;
use crate::sys::racing::PageBytes;
use crate::sys::{PageRun, ScanFor, Sys, SystemError};
use crate::table::{Locked, WindowsGuard};
use crate::units::{BASE_PAGE, EntryIndex};

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

/// The windows of the blocks that are captured behind a pause, in order: one guard each.
pub(super) type Behind<'a> = EngineVec<WindowsGuard<'a>>;

impl<'a, S: Sys> Part<'a, S> {
    /// Ends the pause: releases all locks except the windows of the blocks that are left.
    pub(super) fn release(&self, alone: Quiesced<'a, S>) -> Behind<'a> {
        let mut left = self.behind.borrow_mut();
        left.sort_unstable();
        left.dedup();
        let window = |index: usize| self.region.table.window(EntryIndex(index));
        alone.done_but_for(|one| left.binary_search_by_key(&one, |index| window(*index)).is_ok())
    }
}

impl<S: Sys> RegionCore<S> {
    /// Gives the snapshot the pages of the blocks that were left, and releases their windows. After a failure, the
    /// snapshot is not as the region was.
    pub(super) fn capture_behind(&self, part: &Part<'_, S>, windows: Behind<'_>) -> Result<(), Unresolved> {
        let left = part.behind.replace(EngineVec::new_in(Own));
        let captured = self.capture_each(part, &left, windows);
        if captured.is_err() {
            // Pages may have marks by now that are not in their sets.
            left.iter().for_each(|index| self.captured.forget(EntryIndex(*index)));
        }
        captured
    }

    fn capture_each(&self, part: &Part<'_, S>, left: &[usize], windows: Behind<'_>) -> Result<(), Unresolved> {
        let (mut found, mut pages) = (EngineVec::new_in(Own), EngineVec::new_in(Own));
        for run in left.chunk_by(|one, next| one + 1 == *next) {
            let run = run[0]..run[run.len() - 1] + 1;
            match part.keeps {
                Keeps::Writable => self.mark_written(run, &mut found, &mut pages)?,
                Keeps::Protected => found.extend(self.patched(run)?.iter().copied()),
            }
        }
        let looks = if part.keeps == Keeps::Writable { Looks::Marked(&pages) } else { Looks::Protected };
        let mut free = FreeSlots::new(self.pool(), found.iter().map(|patched| patched.pages).sum());
        let window = |index: &usize| self.table.window(EntryIndex(*index));
        for (of_window, guard) in left.chunk_by(|one, next| window(one) == window(next)).zip(windows) {
            for index in of_window.iter().map(|index| EntryIndex(*index)) {
                let of = found.binary_search_by_key(&index.0, |patched: &Patched| patched.index.0);
                let patched = of.map_or(Patched { index, pages: 0 }, |at| found[at]);
                let may_have_pages = patched.pages > 0 || part.keeps == Keeps::Writable;
                if may_have_pages
                    && part.frozen.has_room_for_pages()
                    && self.capture(patched, looks, &mut free, Some(&guard))?
                {
                    part.frozen.set_pages(index, self.captured.last(index));
                } else if may_have_pages {
                    let publishing = self.lock.shared();
                    let locked = Locked::windows(&guard, &publishing);
                    self.write_back_for(locked, index, &part.frozen, Place::Own)?;
                }
                if self.shows_by_page() {
                    let publishing = self.lock.shared();
                    self.cow_map_each(Locked::windows(&guard, &publishing), index.0..index.0 + 1, Place::Own)?;
                }
            }
        }
        Ok(())
    }

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
        let size = self.pool().block_size;
        let known = self.captured.has_all_marked(index).then(|| self.captured.pages_of(index));
        // The number of pages that decides, its limit, and the most pages of the set.
        let (count, most, most_of_set) = match looks {
            _ if window.is_some() => (0, 0, usize::MAX),
            Looks::Protected => {
                let most = density::most_captured_pages(size);
                (known.unwrap_or(pages), most, most)
            }
            Looks::Marked(_) => {
                (pages.saturating_sub(known.unwrap_or(0)), density::mostly_captured_pages(size), usize::MAX)
            }
        };
        if !self.may_capture() || count > most {
            return Ok(false);
        }
        let signals = SignalsBlocked::new();
        let own = window.is_none().then(|| self.table.lock(index));
        // The number also changes if a debugger writes past the write-protection, which makes one more page private.
        let is_the_same = matches!(looks, Looks::Protected) && pages == self.captured.pages_of(index);
        if is_the_same && own.is_some() && self.keeps_last(index) {
            return Ok(true);
        }
        let Some(window) = window.or(own.as_ref()) else { return Ok(false) };
        let captured = self.capture_pages(window, index, looks, free, most_of_set);
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
        most: usize,
    ) -> Result<Option<usize>, Unresolved> {
        let only = index.0..index.0 + 1;
        let publishing = self.lock.shared();
        let is_shared = self.shares_cow_mapping(index) && !self.captured.is_prepared(index);
        let Some(base) = self.table.get(index).block().filter(|_| is_shared) else { return Ok(None) };
        let is_protected = matches!(looks, Looks::Protected);
        if is_protected {
            self.write_protect(Locked::windows(window, &publishing), only.clone())?;
        }
        let was_known = self.captured.has_all_marked(index);
        let is_told = self.captured.begin_block(index, is_protected);
        drop(publishing);
        let (pool, bytes, mut new) = (self.pool(), self.bytes_of(&only), 0);
        let is_captured = self.captured.change(
            index,
            || PageSet::empty(pool, base),
            is_told.then_some(base),
            |set| {
                let mut are_slots_left = true;
                // Copies each page, unless it is as in the set, or as in the block if the set does not have it.
                let mut add_each = |run: Range<usize>, are_written: bool| {
                    for at in run.step_by(BASE_PAGE) {
                        let (page, part) = ((at - bytes.start) / BASE_PAGE, self.addresses.part(&(at..at + BASE_PAGE)));
                        // SAFETY: the window's lock keeps the CoW mapping as it is, and readable.
                        let differs = |from: &PageBytes| unsafe { pool.sys.shown_differs(part, from) };
                        let is_written = are_written && !seeded!("written-page-counts-as-before");
                        let is_new = match set.slot_of(page) {
                            Some(slot) => is_written && differs(set.bytes(slot)),
                            // A page that was only read, or that a reset has put back, is as in the block.
                            // SAFETY: the page lies in the block, which the region and others hold, so that nobody
                            // writes to it.
                            None => differs(unsafe { &*pool.direct(base).add(page * BASE_PAGE).cast::<PageBytes>() }),
                        };
                        if !is_new {
                            continue;
                        }
                        let Some(slot) = free.next() else {
                            are_slots_left = false;
                            return;
                        };
                        // SAFETY: the window's lock keeps the CoW mapping as it is, and readable. Nobody uses the slot
                        // yet. A thread that writes to the page meanwhile takes its mark away, so the page is copied
                        // again before the cut is made.
                        unsafe { pool.sys.copy_shown_page(part, pool.slot(slot)) };
                        set.make_mut().put(page, slot);
                        new += 1;
                    }
                };
                let found = match looks {
                    Looks::Marked(found) => found,
                    Looks::Protected => &[],
                };
                let found = &found[found.partition_point(|pages| pages.bytes.start < bytes.start)..];
                let found = &found[..found.partition_point(|pages| pages.bytes.start < bytes.end)];
                // If pages were dropped meanwhile, the pages that have lost their marks are not all that changed.
                if !is_protected && (was_known || found.first().is_some_and(|pages| pages.are_all)) {
                    found.iter().for_each(|pages| add_each(pages.bytes.clone(), pages.are_written));
                } else {
                    let mut runs = [PageRun::default(); PAGES_AT_ONCE];
                    self.scan(ScanFor::PrivateAndMark, (&bytes, Place::Own), &mut runs, |run, is_written| {
                        add_each(run, is_written);
                        Ok::<(), SystemError>(())
                    })?;
                }
                Ok::<bool, Unresolved>(are_slots_left && set.len() <= most)
            },
        )?;
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
            let count = self.count_gone(index);
            assert!(
                count == 0,
                "{count} pages of the block at {:#x} are not what was written there: give memory of a region back by \
                 `discard` or `lazy_free`, not by `madvise`, and pin what is written past the page table",
                self.addresses.base() + self.bytes_of(&(index.0..index.0 + 1)).start,
            );
        }
    }

    /// Counts the pages of the last set that show other bytes, though they have their marks. A write takes the mark
    /// away first, so the marks are read last.
    fn count_gone(&self, index: EntryIndex) -> usize {
        let Some(last) = self.captured.last(index) else { return 0 };
        let mut gone = EngineVec::with_capacity_in(last.len(), Own);
        let _signals = SignalsBlocked::new();
        let _window = self.table.lock(index);
        let entry = self.table.get(index);
        if !self.captured.has_all_marked(index) || !entry.is_cow_mapping() || entry.block() != Some(last.base) {
            return 0;
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
        if looked.is_ok() { gone.len() } else { 0 }
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
        // Without a block that others hold too, all private pages can go back into their blocks.
        let are_shared = || (0..self.table.len()).any(|index| self.shares_cow_mapping(EntryIndex(index)));
        self.may_capture()
            && !self.shows_by_page()
            && self.accounts.has_cow_mappings()
            && (self.captured.are_any() || are_shared())
    }
}
