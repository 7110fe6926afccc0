//! The work of the pool's thread on the CoW mappings of a region (pool/maintenance.rs).
//!
//! | CoW mapping | work of the thread |
//! |---|---|
//! | the region alone holds its block | writes it back: the kernel gets its pages back, and the block is huge again |
//! | others hold it, and it has many private pages | promotes it: gives the region a block of its own |
//! | others hold it, and it has even more private pages | write-protects it: the next write copies the block |
//! | others hold it, and most such CoW mappings are dense | write-protects all, and copies blocks beside writers |
//! | several snapshots hold it, and the last set has most of its pages | promotes it, if the pool has room |
//!
//! If the program is paced (pool/maintenance.rs), the thread leaves no copies to writers, and promotes a block that was
//! dense before as soon as it has private pages. If copies would need memory that was never used, it leaves none to
//! writers either.

use std::ops::Range;

use crate::pool::density;
use crate::pool::holders::CowMappingHolder;
use crate::region::private::{PAGES_AT_ONCE, Quiesced, WrittenBack};
use crate::region::state::RegionCore;
use crate::region::write::{Become, Resolution};
use crate::stats::counters::count;
use crate::sys::linux::schedule::yield_now;
use crate::sys::{Access, PageRun, ScanFor, Shows, Sys, SystemError};
use crate::table::transition::Event;
use crate::table::{Entry, Locked, Origin, Reserved};
use crate::types::options::{CopyGrain, Writers};
use crate::units::{BlockId, EntryIndex};

/// The bytes that one visit covers. If the program is paced, a visit covers one block.
const LOOKED_AT_ONCE_BYTES: usize = 8 << 20;

/// The time after which a visit to a program's memory begins no more work, so that a thread that waits for this
/// processor gets it.
const VISIT_OF_A_PROGRAM_NS: u64 = 300_000;

/// The number of CoW mappings in the sample that stands for all.
const SAMPLED_COW_MAPPINGS: usize = 16;

// The caller has blocked the program's signals.
impl<S: Sys> CowMappingHolder for RegionCore<S> {
    fn has_cow_mappings(&self) -> bool {
        self.accounts.has_cow_mappings()
    }

    fn waited_for(&self) -> usize {
        if self.accounts.writers == Writers::Fault { self.table.len() } else { 0 }
    }

    fn maintain(&self, from: usize) -> Option<usize> {
        // A thread that takes a snapshot holds this lock and writes back itself. The check is enough here, because a
        // write-back needs only the locks of its windows.
        if self.captured.freezing.is_taken() {
            return None;
        }
        // A reset must not meet a write-back half done.
        let _not_beside_a_reset = self.maintenance.lock();
        let at_once = if self.pool().maintenance.is_paced() { 0 } else { LOOKED_AT_ONCE_BYTES };
        let end = self.table.len().min(from + self.pool().block_size.count(at_once).max(1));
        let (began, is_a_program) = (self.pool().sys.now(), self.accounts.writers == Writers::NeverFault);
        let is_over = || is_a_program && self.pool().sys.now().saturating_sub(began) >= VISIT_OF_A_PROGRAM_NS;
        let mut next = from;
        while next < end && (next == from || !is_over()) {
            // A call that fails leaves everything as it was, and the next visit tries it again.
            next = self.maintain_some(next..end).unwrap_or(next + 1).max(next + 1);
        }
        (next < self.table.len()).then_some(next)
    }

    fn are_alike(&self, mean: usize) -> bool {
        if self.has_history() {
            let is_due = |index: usize| self.is_mostly_captured(EntryIndex(index)) || self.may_write_back(index);
            return !(0..self.table.len()).any(is_due);
        }
        if self.expects_promotions() {
            return false;
        }
        let Some(usual) = self.usual_pages() else { return false };
        let is_dense = usual >= density::dense_everywhere_pages(self.pool().block_size);
        let is_beside = self.copies_beside();
        if is_dense && !is_beside && self.may_promote() && self.accounts.limit.is_none() {
            self.leave_all_to_writers();
            return false;
        }
        2 * usual >= mean && !(is_dense && is_beside)
    }
}

impl<S: Sys> RegionCore<S> {
    /// Maintains the first of `entries`, and those that are written back with it. Returns the entry to go on with.
    fn maintain_some(&self, entries: Range<usize>) -> Result<usize, SystemError> {
        let (first, entry) = (EntryIndex(entries.start), self.table.get(EntryIndex(entries.start)));
        if !entry.is_cow_mapping() || self.captured.is_prepared(first) {
            return Ok(entries.start + 1);
        }
        if self.shares_cow_mapping(first) {
            if !entry.is_writable_cow_mapping() && self.captured.is_dense(first) {
                self.copy_beside(first);
            } else if self.may_promote() {
                match self.has_history() {
                    true if self.is_mostly_captured(first) && self.pool().maintenance.take_spare() => {
                        self.promote(first)
                    }
                    true => {}
                    false => self.maintain_shared(first, entry, self.count_not_captured(first)?),
                }
            }
            return Ok(entries.start + 1);
        }
        let (mut end, mut sum) = (entries.start, 0);
        while end < entries.end && (end == entries.start || self.may_write_back(end)) {
            let pages = self.count_pages(ScanFor::Private, EntryIndex(end))?;
            if end > entries.start && sum + pages > PAGES_AT_ONCE {
                break;
            }
            self.note_density(EntryIndex(end), pages);
            (end, sum) = (end + 1, sum + pages);
        }
        Ok(self.write_back_run(entries.start..end, WrittenBack::Blocks).map_or(end, |run| run.end))
    }

    /// Maintains a CoW mapping whose block others hold too, and which has `pages` private pages that no snapshot has.
    fn maintain_shared(&self, index: EntryIndex, entry: Entry, pages: usize) {
        if self.captured.is_by_page(index) || self.captured.is_prepared(index) {
            return;
        }
        let is_paced = self.pool().maintenance.is_paced();
        let is_enough = match is_paced && self.captured.is_dense(index) {
            true => pages > 0,
            false => pages >= density::promoted_pages(self.pool().block_size),
        };
        if !is_enough {
            return;
        }
        if !self.copies_beside()
            && pages >= density::left_to_writer_pages(self.pool().block_size)
            && entry.is_writable_cow_mapping()
        {
            self.leave_to_writer(index);
        } else {
            self.promote(index);
        }
    }

    /// Whether the thread copies dense blocks beside their writers, and leaves no copies to these. It does so where
    /// single waits matter, and where a copy would take memory that was never used: the kernel clears such memory
    /// first, which takes twice as long as the copy, and 20 times as long where a hypervisor has to find the memory.
    fn copies_beside(&self) -> bool {
        let frames = &self.pool().frames;
        self.pool().maintenance.is_paced() || frames.used_and_free() == 0 && frames.fresh() > 0
    }

    /// Whether a paced program has CoW mappings that were dense before. They are promoted as soon as they have private
    /// pages.
    fn expects_promotions(&self) -> bool {
        let is_expected = |index: EntryIndex| {
            let is_writable = self.table.get(index).is_writable_cow_mapping();
            is_writable && self.captured.is_dense(index) && self.shares_cow_mapping(index)
        };
        self.pool().maintenance.is_paced()
            && self.may_promote()
            && (0..self.table.len()).map(EntryIndex).any(is_expected)
    }

    /// The median of the number of private pages that no snapshot has, over a sample of CoW mappings whose blocks
    /// others hold too. None if there are so few of these that the thread can visit all.
    fn usual_pages(&self) -> Option<usize> {
        let is_shared = |index: &usize| {
            let index = EntryIndex(*index);
            let is_writable = self.table.get(index).is_writable_cow_mapping();
            is_writable && !self.captured.is_by_page(index) && self.shares_cow_mapping(index)
        };
        let count = (0..self.table.len()).filter(is_shared).count();
        let step = count.div_ceil(SAMPLED_COW_MAPPINGS);
        if step < 2 {
            return None;
        }
        let sampled = (0..self.table.len()).filter(is_shared).skip(step / 2).step_by(step).take(SAMPLED_COW_MAPPINGS);
        let mut samples = [0; SAMPLED_COW_MAPPINGS];
        let count = |index: usize| self.count_not_captured(EntryIndex(index)).unwrap_or(0);
        let taken = sampled.zip(&mut samples).map(|(index, sample)| *sample = count(index)).count();
        let samples = &mut samples[..taken];
        samples.sort_unstable();
        samples.get(taken / 2).copied()
    }

    /// Write-protects all CoW mappings without prepared writes, so that the next write to each copies the block. A
    /// program that writes by page all over a region would have paid for most page copies before the thread had visited
    /// all blocks.
    fn leave_all_to_writers(&self) {
        // No snapshot may begin until all are write-protected: it would miss the private pages of entries that are
        // write-protected after its scan. A snapshot that waits for operations sees by the number of turns that it has
        // to scan again.
        let Some(_no_snapshot) = self.captured.try_freezing() else { return };
        let cow_mappings =
            (0..self.table.len()).map(EntryIndex).filter(|index| self.table.get(*index).is_cow_mapping());
        let may_be_protected = cow_mappings.filter(|index| !self.captured.is_prepared(*index));
        may_be_protected.for_each(|index| self.captured.note_dense(index, true));
        // CoW mappings that stay writable after a failure are promoted one by one.
        let _ = self.write_protect_all();
    }

    /// Write-protects a CoW mapping with many private pages, so that the next write copies the block.
    fn leave_to_writer(&self, index: EntryIndex) {
        let Some(_no_snapshot) = self.captured.try_freezing() else { return };
        let Some(window) = self.table.try_lock(index) else { return };
        let publishing = self.lock.shared();
        let is_writable = self.table.get(index).is_writable_cow_mapping();
        if is_writable && self.shares_cow_mapping(index) && !self.captured.is_prepared(index) {
            self.captured.note_dense(index, true);
            // After a failure the CoW mapping counts as writable, as before.
            let _ = self.write_protect(Locked::windows(&window, &publishing), index.0..index.0 + 1);
        }
    }

    /// Copies the block of a write-protected CoW mapping before a writer has to, unless a thread already works on it.
    fn copy_beside(&self, index: EntryIndex) {
        if self.may_promote() && self.table.try_lock(index).is_some() && !self.table.is_reserved(index) {
            let copied = self.try_to_make(Become::OwnUnlessPrepared, index, None, None);
            if copied == Ok(Resolution::Copied) {
                count(&self.counters.blocks_promoted, 1);
            }
            // The thread yields here, without a lock: a thread that holds one should not lose the processor.
            yield_now();
        }
    }

    fn is_mostly_captured(&self, index: EntryIndex) -> bool {
        self.captured.pages_of(index) > density::mostly_captured_pages(self.pool().block_size)
    }

    /// Whether the thread may copy blocks. It may not with page grain, where no write may find a CoW mapping
    /// write-protected; and where memory or blocks are short, since a block takes more memory than its private pages.
    fn may_promote(&self) -> bool {
        self.accounts.grain == CopyGrain::Auto
            && !self.pool().maintenance.is_short()
            && !self.pool().are_writers_short_of_blocks()
    }

    /// The number of private pages over a block that no snapshot has. If a set describes the pages with a mark, the
    /// pages without one are counted first, which takes a twentieth of the time. If these are few, their number is
    /// enough.
    fn count_not_captured(&self, index: EntryIndex) -> Result<usize, SystemError> {
        if self.captured.has_all_marked(index) {
            let unmarked = self.count_pages(ScanFor::Unmarked, index)?;
            if unmarked < density::never_promoted_pages(self.pool().block_size) {
                return Ok(unmarked);
            }
        }
        Ok(self.count_pages(ScanFor::Private, index)?.saturating_sub(self.captured.pages_of(index)))
    }

    /// Gives the region a block of its own in place of a CoW mapping with many private pages. The block below is copied
    /// first, while the program goes on. Then the private pages are copied, and a writer waits only for that. If
    /// another thread works on the entry or the pool has no block, a later visit tries again.
    fn promote(&self, index: EntryIndex) {
        let pool = self.pool();
        if self.table.is_reserved(index) {
            // The reserved block is for the entry's own write.
            return;
        }
        let Some((below, origin)) = self.hold_below(index) else { return };
        let own = pool.copy_near(self.placement.hint(index, pool.frames.len()), below, Reserved::No);
        // The thread yields here, without a lock: a thread that holds one should not lose the processor.
        yield_now();
        let promoted = own.is_ok_and(|own| self.exchange(index, below, own) || !pool.release(own));
        if promoted {
            self.captured.note_dense(index, true);
        }
        if pool.release(below) {
            // All other holders have released the block meanwhile, and took this reference for one of another holder.
            match (origin, &self.accounts.parent) {
                (Origin::Parent, Some(parent)) => parent.account.freed(1),
                (Origin::Own, _) | (Origin::Parent, None) => self.accounts.cow.freed(1),
            }
        }
    }

    /// Takes a reference to the block below a CoW mapping that others hold too. Returns the block and its origin.
    fn hold_below(&self, index: EntryIndex) -> Option<(BlockId, Origin)> {
        let _window = self.table.try_lock(index)?;
        let _publishing = self.lock.shared();
        let entry = self.table.get(index);
        let below = entry.block().filter(|_| self.shares_cow_mapping(index))?;
        self.pool().frames.add_reference(below);
        Some((below, entry.origin()))
    }

    /// Adds the private pages of a CoW mapping to `own`, a copy of its block `below`, and shows `own` in its place.
    /// False if the CoW mapping is gone or the kernel refuses.
    fn exchange(&self, index: EntryIndex, below: BlockId, own: BlockId) -> bool {
        let only = index.0..index.0 + 1;
        let Some(window) = self.table.try_lock(index) else { return false };
        let publishing = self.lock.shared();
        let entry = self.table.get(index);
        let is_same = entry.block() == Some(below) || seeded!("promotion-without-a-second-look");
        if !entry.is_cow_mapping() || !is_same || self.captured.is_prepared(index) {
            return false;
        }
        let held = &self.counters.held_by_promotion;
        let Ok(quiesced) = Quiesced::begin(self, &window, publishing, only.clone(), held) else { return false };
        if seeded!("promotion-without-write-protection") {
            let _ = quiesced.locked(|locked| self.allow_writes(locked, only.clone(), quiesced.place));
        }
        let mut runs = [PageRun::default(); 64];
        let to = self.pool().direct(own);
        // SAFETY: writers are kept off, the window lock keeps it so, and `own` is ours alone.
        let copied = seeded!("promotion-loses-pages")
            || unsafe { self.copy_private(&mut runs, &only, quiesced.place, to) }.is_ok();
        let shows = Shows::Memory { start: own, access: Access::ReadWrite };
        let show = |locked: Locked<'_>| self.replace(locked, only, shows, Event::Write, |_, _| Entry::Private(own));
        let is_shown = copied && quiesced.locked(show).is_ok();
        if is_shown {
            count(&self.counters.blocks_promoted, 1);
            quiesced.done();
        }
        is_shown
    }
}
