//! What a region gives when blocks are short: what was lazily freed, and, if it is a fork, what it has borrowed.
//!
//! ```text
//!   fault: pool full ─▶ drop lazily freed blocks of all regions, oldest first ─▶ again
//!                  └ none ─▶ the writer wrote this block before it was shared:
//!                              revoke it from forks and snapshots without a reservation ─▶ again: held once, reused
//!                            └ all have one ─▶ use what one of them booked for this copy ─▶ again
//!                  └ none of it ─▶ the write fails, loudly
//! ```
//! All this happens after the fault has let go of its own lock, so that it may wait for any other. Revoking takes it again,
//! inside of the visit to the holders: a writer then waits for the windows of regions that were forked from its own, never
//! the other way round.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::options::Reserve;
use crate::pool::frames::Content;
use crate::pool::holders::{Droppable, Dropped, Enough, Holder};
use crate::space::Space;
use crate::stats::count;
use crate::sys::Sys;
use crate::table::split::{Split, SplitPage};
use crate::table::{Booked, Entry};
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// A block that a region wrote, and how many hold it, in spite of having been asked to let go of it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kept {
    block: BlockId,
    holders: u32,
}

impl<S: Sys> Space<S> {
    /// After a write to `index` found no block: true if it may find one now, or need none.
    pub(crate) fn make_room(&self, index: EntryIndex) -> bool {
        if self.pool().drop_some_lazy() {
            return true;
        }
        let (revoked, kept) = self.revoke(index);
        revoked > 0 || self.take_over_booking(index) || self.may_have_changed(index, kept)
    }

    /// Takes the block at `index` away from forks and snapshots, if this region wrote it; true if anybody lost it.
    pub(crate) fn revoke_from_others(&self, index: EntryIndex) -> bool {
        self.revoke(index).0 > 0
    }

    /// How many lost it, and who has kept it.
    fn revoke(&self, index: EntryIndex) -> (u64, Option<Kept>) {
        let mut revoked = 0;
        let kept = self.ask_all(index, |holder, block| {
            revoked += u64::from(holder.revoke(index, block));
            Enough::No
        });
        count(&self.counters.blocks_revoked, revoked);
        (revoked, kept)
    }

    /// Has a block that a fork or snapshot booked for this copy booked for this region instead.
    fn take_over_booking(&self, index: EntryIndex) -> bool {
        let mut lent = false;
        self.ask_all(index, |holder, block| {
            lent = holder.lend_booking(index, block);
            if !lent {
                return Enough::No;
            }
            let _publishing = self.lock.shared();
            self.table.set_booked(index, Booked::Yes);
            Enough::Yes
        });
        lent
    }

    /// Has `ask` asked of the holders, under the window's lock, if this region wrote the block at `index` and others hold it.
    /// Returns who held it when it had been asked, this region among them.
    ///
    /// The window is locked inside of the visit: who adds a holder waits for all visits and lets no other begin, and one of
    /// those may be waiting for the window.
    fn ask_all(&self, index: EntryIndex, mut ask: impl FnMut(&dyn Holder, BlockId) -> Enough) -> Option<Kept> {
        let (mut locked, mut holders) = (None, 0);
        self.pool().holders.visit(|holder| {
            let (_, block) = locked.get_or_insert_with(|| (self.table.lock(index), self.lendable(index)));
            let Some(block) = *block else { return Enough::Yes };
            let enough = ask(holder, block);
            holders += u32::from(holder.holds(index, block));
            enough
        });
        let block = locked?.1?;
        Some(Kept { block, holders })
    }

    /// Whether a write to `index` that found no room may find some now: others have made it meanwhile, or the block has a
    /// holder that was just coming or going and so was not asked. `kept` says who was.
    fn may_have_changed(&self, index: EntryIndex, kept: Option<Kept>) -> bool {
        let pool = self.pool();
        if pool.frames.available() > 0 || self.table.is_booked(index) {
            return true;
        }
        let entry = self.table.get(index);
        let Some(block) = entry.block() else { return false };
        let holders = pool.frames.references(block);
        if holders == 1 {
            return true;
        }
        // Those who have leaked a block are gone for good.
        let is_final = kept == Some(Kept { block, holders }) || pool.leaked.load(Ordering::Relaxed) > 0;
        if is_final || !entry.is_owner() {
            return false;
        }
        pool.frames.given_back.wait_a_moment();
        true
    }

    /// The block at `index`, if others have it from here.
    fn lendable(&self, index: EntryIndex) -> Option<BlockId> {
        let entry = self.table.get(index);
        let block = entry.block().filter(|block| entry.is_owner() && !self.is_alone_with(*block))?;
        (!self.table.is_booked(index)).then_some(block)
    }

    /// Whether the block that holds byte `offset` was taken away. Waits for one who is just doing it.
    pub(crate) fn is_revoked_at(&self, offset: usize) -> bool {
        let index = EntryIndex(self.pool().block_size.count(offset));
        let _window = self.table.lock(index);
        self.table.get(index) == Entry::Revoked
    }

    /// Whether the block of a lazily freed entry may be dropped: nobody else holds or uses it.
    fn may_drop(&self, index: EntryIndex, block: BlockId) -> bool {
        self.is_alone_with(block) && !self.pins.has(index)
    }

    /// Drops what is lazily freed in these windows.
    fn drop_windows(&self, windows: Range<usize>, wanted: usize, what: Droppable, dropped: &mut Dropped) {
        let _windows = self.table.lock_windows(windows.clone());
        let _publishing = self.lock.shared();
        let entries = self.table.entries_of(windows.clone());
        let mut next = entries.start;
        while next < entries.end && dropped.blocks < wanted {
            let may = |index: usize| match self.table.get(EntryIndex(index)) {
                Entry::Lazy(block) => self.may_drop(EntryIndex(index), block),
                _ => false,
            };
            let Some(start) = (next..entries.end).find(|&index| may(index)) else { break };
            let most = entries.end.min(start.saturating_add(wanted - dropped.blocks));
            let end = (start..most).find(|&index| !may(index)).unwrap_or(most);
            next = end;
            if !self.drop_run(start..end) {
                break;
            }
            dropped.blocks += end - start;
            dropped.bytes += self.pool().block_size.len_of(end - start);
        }
        if self.lazy_pages.load(Ordering::Relaxed) > 0 {
            entries.clone().for_each(|index| self.drop_split(EntryIndex(index), what, dropped));
        }
        for window in windows {
            let mut entries = self.table.entries_of(window..window + 1);
            if !entries.any(|index| self.has_lazy(EntryIndex(index))) {
                self.table.set_mark(window, 0);
            }
        }
    }

    fn has_lazy(&self, index: EntryIndex) -> bool {
        match self.table.get(index) {
            Entry::Lazy(_) => true,
            Entry::Split(_) => self.table.split(index).is_some_and(|split| split.count(SplitPage::Lazy) > 0),
            _ => false,
        }
    }

    /// One system call for a run of blocks; false if it could not be made.
    fn drop_run(&self, entries: Range<usize>) -> bool {
        let pool = self.pool();
        if self.check_budget().is_err() {
            return false;
        }
        let _changing = self.changing(entries.clone());
        let len = pool.block_size.len_of(entries.len());
        if let Err(failure) = pool.sys.map_zeros(self.address_of(entries.start), len) {
            self.restore(entries, failure.left);
            return false;
        }
        self.publish(EntryIndex(entries.start), entries.len(), |_| Entry::Zero);
        count(&self.counters.blocks_reclaimed, entries.len() as u64);
        true
    }

    /// Drops the lazily freed pages of a split block; the block itself when none is left.
    fn drop_split(&self, index: EntryIndex, what: Droppable, dropped: &mut Dropped) {
        let (Entry::Split(block), Some(split)) = (self.table.get(index), self.table.split(index)) else { return };
        let is_all = split.count(SplitPage::Lazy) + split.count(SplitPage::Dropped) == split.len();
        if !self.may_drop(index, block) || (what == Droppable::Blocks && !is_all) {
            return;
        }
        let before = self.edges(index.0..index.0 + 1);
        for run in split.runs_of(0..split.len(), SplitPage::Lazy) {
            let bytes = run.len() * BASE_PAGE;
            if self.check_budget().is_err() || !self.drop_pages(index, block, split, run) {
                break;
            }
            dropped.bytes += bytes;
        }
        if split.count(SplitPage::Dropped) == split.len() {
            // All of it shows zeros already, and its memory has gone.
            self.pool().frames.set_content(block, Content::Fresh);
            split.set(0..split.len(), SplitPage::Readable);
            self.replace(index, Entry::Zero);
            dropped.blocks += 1;
            count(&self.counters.blocks_reclaimed, 1);
        }
        self.addresses.recount(before, self.edges(index.0..index.0 + 1));
    }

    fn drop_pages(&self, index: EntryIndex, block: BlockId, split: &Split, run: Range<usize>) -> bool {
        let pool = self.pool();
        let (by, len) = (run.start * BASE_PAGE, run.len() * BASE_PAGE);
        let _changing = self.changing(index.0..index.0 + 1);
        if let Err(failure) = pool.sys.map_zeros(self.address_of(index.0) + by, len) {
            self.restore(index.0..index.0 + 1, failure.left);
            return false;
        }
        if pool.sys.punch(pool.offset(block) + by, len).is_err() {
            // The memory stays, but what was in it must not come back.
            // SAFETY: these pages of the block are this region's alone and mapped nowhere any more but here.
            unsafe { pool.direct(block).add(by).write_bytes(0, len) };
        }
        self.lazy_pages.fetch_sub(run.len(), Ordering::Relaxed);
        split.set(run, SplitPage::Dropped);
        true
    }
}

impl<S: Sys> Holder for Space<S> {
    fn oldest_lazy(&self, after: u32) -> Option<u32> {
        if self.lazy_blocks.load(Ordering::Relaxed) == 0 && self.lazy_pages.load(Ordering::Relaxed) == 0 {
            return None;
        }
        (0..self.table.windows()).map(|window| self.table.mark(window)).filter(|&mark| mark > after).min()
    }

    fn drop_lazy(&self, mark: u32, blocks: usize, what: Droppable) -> Dropped {
        let mut dropped = Dropped::default();
        let keeps_its_blocks = self.reserve == Reserve::Full;
        if what == Droppable::Blocks && keeps_its_blocks || self.oldest_lazy(0).is_none() {
            return dropped;
        }
        let windows = self.table.windows();
        let is_due = |window: &usize| (1..=mark).contains(&self.table.mark(*window));
        let mut next = 0;
        while dropped.blocks < blocks {
            let Some(start) = (next..windows).find(is_due) else { break };
            // No more than may be held at once, nor than will be needed.
            let needed = self.table.window(EntryIndex(blocks - dropped.blocks)) + 1;
            let most = self.windows_from(self.table.entries_of(start..start + 1).start, self.table.len()).end;
            let most = most.min(start.saturating_add(needed));
            let end = (start..most).find(|window| !is_due(window)).unwrap_or(most);
            self.drop_windows(start..end, blocks, what, &mut dropped);
            next = end;
        }
        dropped
    }

    fn revoke(&self, index: EntryIndex, block: BlockId) -> bool {
        // Looked at without the lock first: whoever has borrowed nothing here may be waiting for us.
        if index.0 >= self.table.len() || self.table.get(index) != Entry::Borrowed(block) {
            return false;
        }
        let _window = self.table.lock(index);
        let _publishing = self.lock.shared();
        let is_due = self.table.get(index) == Entry::Borrowed(block) && !self.table.is_booked(index);
        if !is_due || self.check_budget().is_err() {
            return false;
        }
        let _changing = self.changing(index.0..index.0 + 1);
        if let Err(failure) = self.pool().sys.hide(self.address_of(index.0), self.pool().block_size.bytes()) {
            self.restore(index.0..index.0 + 1, failure.left);
            return false;
        }
        self.publish(index, 1, |_| Entry::Revoked);
        true
    }

    fn holds(&self, index: EntryIndex, block: BlockId) -> bool {
        index.0 < self.table.len() && self.table.get(index).block() == Some(block)
    }

    fn lend_booking(&self, index: EntryIndex, block: BlockId) -> bool {
        if index.0 >= self.table.len() || self.table.get(index) != Entry::Borrowed(block) {
            return false;
        }
        let _window = self.table.lock(index);
        let _publishing = self.lock.shared();
        // With a third holder this fork may need it: its own copy would be one of two that are still to come.
        let is_other = self.table.get(index) == Entry::Borrowed(block) && self.pool().frames.references(block) == 2;
        is_other && self.table.set_booked(index, Booked::No)
    }
}
