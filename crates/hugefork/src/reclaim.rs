//! What a region gives when blocks are short: what was lazily freed, and, if it is a fork, what it has borrowed.
//!
//! ```text
//!   fault: pool full ─▶ drop lazily freed blocks of all regions, oldest first ─▶ again
//!                  └ none ─▶ the writer wrote this block before it was shared:
//!                              revoke it from forks and snapshots without a reservation; those with one
//!                              copy it into what they have booked ─▶ again: held once, reused
//!                  └ none of it ─▶ the write fails, loudly
//! ```
//! A region may take a block away from those who have it from there: forks and snapshots of it, and of those. That helps
//! if nobody else has it, as it is with all that the region wrote itself, and with what the region that it was made from has
//! left to it.
//!
//! All this happens after the fault has let go of its own lock, so that it may wait for any other. Revoking takes it again,
//! inside of the visit to the holders: a writer then waits for the windows of regions that were forked from its own, never
//! the other way round.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::cow::{Derived, RegionId};
use crate::options::Reserve;
use crate::pool::frames::Content;
use crate::pool::holders::{Droppable, Dropped, Enough, Holder};
use crate::pool::room::{Found, LOOKED_AT_ONCE};
use crate::space::Space;
use crate::stats::count;
use crate::sys::Sys;
use crate::table::Entry;
use crate::table::split::{Split, SplitPage};
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// What came of asking all holders of a block to let go of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Nobody was asked, since there is no need any more: the block is not shared, or one is booked for the write.
    Changed,
    /// Nobody was asked, since it would not help: somebody has the block from another region.
    Strangers,
    /// All were asked. So many have kept it, this region among them.
    Kept { block: BlockId, holders: u32 },
}

impl<S: Sys> Space<S> {
    /// After a write to `index` found no block: whether it may find one now, or need none.
    pub(crate) fn make_room(&self, index: EntryIndex) -> Found {
        match self.pool().drop_some_lazy() {
            Found::None => {}
            found => return found,
        }
        // In one visit: between two, holders come that would not be asked, and go that would be counted.
        let (mut revoked, mut copied) = (0, false);
        let asked = self.ask_all(index, |holder, block| match holder.revoke(index, block) {
            true => revoked += 1,
            false => copied |= holder.copy_from_booking(index, block),
        });
        count(&self.counters.blocks_revoked, revoked);
        if revoked > 0 || copied || self.may_have_changed(index, asked) { Found::Some } else { Found::None }
    }

    /// Takes the block at `index` away from forks and snapshots; true if anybody lost it.
    pub(crate) fn revoke_from_others(&self, index: EntryIndex) -> bool {
        let mut revoked = 0;
        self.ask_all(index, |holder, block| revoked += u64::from(holder.revoke(index, block)));
        count(&self.counters.blocks_revoked, revoked);
        revoked > 0
    }

    /// Has `ask` asked of the holders, under the window's lock, if others hold the block at `index` and all of them have it
    /// from here.
    ///
    /// The window is locked inside of the visit: who adds a holder waits for all visits and lets no other begin, and one of
    /// those may be waiting for the window.
    fn ask_all(&self, index: EntryIndex, mut ask: impl FnMut(&dyn Holder, BlockId)) -> Asked {
        let (mut locked, mut asked) = (None, Asked::Changed);
        self.pool().holders.visit(|holder, family| {
            let (_, block) = locked.get_or_insert_with(|| {
                let window = self.table.lock(index);
                let shared = self.lendable(index);
                let is_ours = |block: &BlockId| {
                    self.table.get(index).is_owner() || family.is_all_of(self.cow.id(), index, *block)
                };
                let block = shared.filter(is_ours);
                asked = match (shared, block) {
                    (Some(_), None) => Asked::Strangers,
                    (_, None) => Asked::Changed,
                    (_, Some(block)) => Asked::Kept { block, holders: 0 },
                };
                (window, block)
            });
            let Some(block) = *block else { return Enough::Yes };
            if holder.id() != Some(self.cow.id()) {
                ask(holder, block);
            }
            if let Asked::Kept { holders, .. } = &mut asked {
                *holders += u32::from(holder.holds(index, block));
            }
            Enough::No
        });
        asked
    }

    /// Whether a write to `index` that found no room may find some now: others have made it meanwhile, or the block has a
    /// holder that was just coming or going and so was not asked.
    fn may_have_changed(&self, index: EntryIndex, asked: Asked) -> bool {
        let pool = self.pool();
        if pool.frames.available() > 0 || self.table.is_booked(index) {
            return true;
        }
        let Some(block) = self.table.get(index).block() else { return false };
        let holders = pool.frames.references(block);
        match asked {
            _ if holders == 1 => true,
            Asked::Changed => true,
            Asked::Strangers => false,
            // Those who have leaked a block are gone for good.
            Asked::Kept { .. } if asked == Asked::Kept { block, holders } => false,
            Asked::Kept { .. } if pool.leaked.load(Ordering::Relaxed) > 0 => false,
            Asked::Kept { .. } => {
                pool.frames.given_back.wait_a_moment();
                true
            }
        }
    }

    /// The block at `index`, if others hold it too and a write there has no block booked.
    fn lendable(&self, index: EntryIndex) -> Option<BlockId> {
        let block = self.table.get(index).block().filter(|block| !self.is_alone_with(*block))?;
        (!self.table.is_booked(index)).then_some(block)
    }

    /// Whether the block that holds byte `offset` was taken away. Waits for one who is just doing it.
    pub(crate) fn is_revoked_at(&self, offset: usize) -> bool {
        let index = EntryIndex(self.pool().block_size.count(offset));
        let _window = self.table.lock(index);
        self.table.get(index) == Entry::Revoked
    }

    /// Whether the block of a lazily freed entry may be dropped: nobody else holds it. Nobody uses it either: what is pinned
    /// is not lazily freed.
    fn may_drop(&self, index: EntryIndex, block: BlockId) -> bool {
        debug_assert!(!self.pins.has(index), "a pinned block is writable, and no more");
        self.is_alone_with(block)
    }

    /// Looks at windows that were taken out of the line, and drops what is lazily freed there.
    fn drop_windows(&self, windows: Range<usize>, bytes: usize, what: Droppable, look: &mut usize) -> Dropped {
        let _windows = self.table.lock_windows(windows.clone());
        let _publishing = self.lock.shared();
        let size = self.pool().block_size;
        let entries = self.table.entries_of(windows.clone());
        let mut dropped = Dropped::default();
        let mut next = entries.start;
        while next < entries.end && dropped.bytes < bytes && *look > 0 {
            let may = |index: usize| match self.table.get(EntryIndex(index)) {
                Entry::Lazy(block) => self.may_drop(EntryIndex(index), block),
                Entry::Zero
                | Entry::Private(_)
                | Entry::Shared(_)
                | Entry::Borrowed(_)
                | Entry::Split(_)
                | Entry::Revoked => false,
            };
            let start = next;
            let most = entries.end.min(start.saturating_add((bytes - dropped.bytes).div_ceil(size.bytes())));
            let end = (start..most).find(|&index| !may(index)).unwrap_or(most);
            if start < end {
                if self.drop_run(start..end) {
                    dropped.blocks += end - start;
                    dropped.bytes += size.len_of(end - start);
                }
                next = end;
            } else {
                self.drop_split(EntryIndex(start), what, &mut dropped);
                next = start + 1;
            }
            *look = look.saturating_sub(next - start);
        }
        for window in windows.rev() {
            let mut entries = self.table.entries_of(window..window + 1);
            if entries.end > next {
                self.table.waiting.put_back(window);
            } else if entries.any(|index| self.has_lazy(EntryIndex(index))) {
                self.table.waiting.set_aside(window);
            } else {
                self.table.waiting.leave(window);
            }
        }
        dropped
    }

    fn has_any_lazy(&self) -> bool {
        self.lazy_blocks.load(Ordering::Relaxed) > 0 || self.lazy_pages.load(Ordering::Relaxed) > 0
    }

    fn has_lazy(&self, index: EntryIndex) -> bool {
        match self.table.get(index) {
            Entry::Lazy(_) => true,
            Entry::Split(_) => self.table.split(index).is_some_and(|split| split.count(SplitPage::Lazy) > 0),
            _ => false,
        }
    }

    /// One system call for a run of blocks; false if it could not be made, which may be different the next time.
    fn drop_run(&self, entries: Range<usize>) -> bool {
        let pool = self.pool();
        if self.check_budget_for(entries.clone(), Entry::Zero).is_err() {
            pool.frames.note_change();
            return false;
        }
        let _changing = self.changing(entries.clone());
        let len = pool.block_size.len_of(entries.len());
        if let Err(failure) = pool.sys.map_zeros(self.address_of(entries.start), len) {
            self.restore(entries, failure.left);
            pool.frames.note_change();
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
                self.pool().frames.note_change();
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
    fn id(&self) -> Option<RegionId> {
        Some(self.cow.id())
    }

    fn origin(&self) -> Option<&Derived> {
        self.origin.as_ref()
    }

    fn oldest_lazy(&self, what: Droppable) -> Option<u32> {
        let keeps_its_blocks = what == Droppable::Blocks && self.reserve == Reserve::Full;
        if keeps_its_blocks || !self.has_any_lazy() {
            return None;
        }
        // Who has some in hand may be about to drop them.
        let _looking = self.table.waiting.look();
        self.table.waiting.oldest()
    }

    fn drop_lazy(&self, until: u32, bytes: usize, what: Droppable, look: &mut usize) -> Dropped {
        let mut dropped = Dropped::default();
        let mut slice = LOOKED_AT_ONCE.min(*look);
        let before = slice;
        let _looking = self.table.waiting.look();
        while dropped.bytes < bytes && slice > 0 {
            // No more than may be held at once, nor than will be needed or looked at.
            let needed = self.pool().block_size.count(bytes - dropped.bytes).min(slice);
            let most = (self.table.window(EntryIndex(needed)) + 1).min(self.most_held());
            let Some(windows) = self.table.waiting.take(until, most) else { break };
            let more = self.drop_windows(windows, bytes - dropped.bytes, what, &mut slice);
            dropped.blocks += more.blocks;
            dropped.bytes += more.bytes;
        }
        *look -= before - slice;
        dropped
    }

    fn recall_lazy(&self, changes: u64) -> bool {
        self.has_any_lazy() && self.table.waiting.recall(&self.table.waiting.look(), changes)
    }

    fn revoke(&self, index: EntryIndex, block: BlockId) -> bool {
        // Looked at without the lock first: whoever has borrowed nothing here may be waiting for us.
        if index.0 >= self.table.len() || self.table.get(index) != Entry::Borrowed(block) {
            return false;
        }
        let _window = self.table.lock(index);
        let _publishing = self.lock.shared();
        let is_due = self.table.get(index) == Entry::Borrowed(block) && !self.table.is_booked(index);
        if !is_due || self.check_budget_for(index.0..index.0 + 1, Entry::Revoked).is_err() {
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

    fn copy_from_booking(&self, index: EntryIndex, block: BlockId) -> bool {
        let is_due = || {
            index.0 < self.table.len() && self.table.get(index) == Entry::Borrowed(block) && self.table.is_booked(index)
        };
        // Looked at without the lock first, as when it is to be revoked.
        if !is_due() {
            return false;
        }
        let _window = self.table.lock(index);
        is_due() && self.copy_booked(index)
    }
}
