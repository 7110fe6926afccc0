//! Reclaim makes room in a full pool, and trim gives memory of free blocks back to the system.
//!
//! ```text
//!   drop_unheld   pages of snapshots that are gone or lost the block ─▶ free blocks (captured.rs)
//!                 pages over a block that one snapshot holds         ─▶ that block (snapshot/pages.rs)
//!   drop_zeros    blocks of zeros that only a snapshot holds         ─▶ free blocks
//!   drop_lazy     lazily freed blocks of all regions, oldest first   ─▶ free blocks (region/free/reclaim.rs)
//!   trim          free blocks                                        ─▶ memory of the system
//! ```

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::core::PoolCore;
use super::frames::Content;
use super::holders::{Droppable, Dropped, Holder};
use super::unheld::{UNHELD, WAITED_FOR};
use crate::sync::SignalsBlocked;
use crate::sys::{Merging, Sys, SystemError};
use crate::units::{BlockId, HUGE_PAGE};

/// A fault that finds no block drops at least this much, if there is as much. That is as quick as dropping one block,
/// and the next faults find room.
const DROPPED_AT_ONCE_BYTES: usize = 64 << 20;

/// For that, a fault inspects at most this many entries and holders, which takes half a millisecond. If it has found
/// none by then, it returns, so that signals can be delivered, and the write faults again.
pub(crate) const LOOKED_AT_ENTRIES: usize = 64 << 10;

/// The free blocks that give their memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// All that have memory.
    WithMemory,
    /// Those that no holder has used since they got their memory.
    Unused,
}

/// The result of a search for lazily freed blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Some blocks were dropped.
    Some,
    /// Nothing can be dropped.
    None,
    /// None of the inspected blocks could be dropped, but there are more.
    LookAgain,
}

/// Counts a write that has found no block, as long as the guard lives.
pub(crate) struct ShortOfBlocks<'a>(&'a AtomicU32);

impl Drop for ShortOfBlocks<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Trim gives free blocks back in runs of at most this size. A fault that needs one of them waits for its run.
const TRIMMED_AT_ONCE_BYTES: usize = 32 << 20;

impl<S: Sys> PoolCore<S> {
    /// Drops lazily freed blocks, so that others can have them. Either a fault handler calls this and holds no lock, or
    /// a call with signals blocked. The time is in proportion to the number of dropped blocks, and to that of blocks
    /// that holders have let go of since the last search. This inspects at most [`LOOKED_AT_ENTRIES`] entries.
    pub(crate) fn drop_some_lazy(&self) -> Found {
        let mut look = LOOKED_AT_ENTRIES;
        self.look_for_lazy(&mut look)
    }

    /// As [`PoolCore::drop_some_lazy`], but inspects at most `look` entries, and subtracts those that it inspected.
    pub(crate) fn look_for_lazy(&self, look: &mut usize) -> Found {
        if self.drop_zeros() > 0 {
            return Found::Some;
        }
        let mut dropped = self.drop_in_line(DROPPED_AT_ONCE_BYTES, Droppable::Blocks, look);
        if dropped.blocks == 0 && *look > 0 && self.recall_lazy(self.frames.changes()) {
            dropped = self.drop_in_line(DROPPED_AT_ONCE_BYTES, Droppable::Blocks, look);
        }
        match (dropped.blocks, *look) {
            (0, 0) => Found::LookAgain,
            (0, _) => Found::None,
            _ => Found::Some,
        }
    }

    /// Drops lazily freed contents, oldest first, until `bytes` are reached or nothing is left. The time is in
    /// proportion to all lazily freed contents.
    pub(crate) fn drop_lazy(&self, bytes: usize, what: Droppable) -> Dropped {
        // This makes the search inspect everything, even if nothing has changed since the last one.
        self.frames.note_change();
        self.recall_lazy(self.frames.changes());
        // No holder loses data by these two drops, so they come first.
        let first = self.drop_unheld() + self.drop_zeros();
        let first = Dropped { blocks: first, bytes: self.block_size.len_of(first) };
        let mut look = usize::MAX;
        let lazy = self.drop_in_line(bytes.saturating_sub(first.bytes), what, &mut look);
        Dropped { blocks: first.blocks + lazy.blocks, bytes: first.bytes + lazy.bytes }
    }

    /// Takes back the blocks of zeros that only a snapshot holds; the snapshot still reads zeros there. Returns the
    /// number of blocks. The caller has blocked signals and holds no lock.
    pub(crate) fn drop_zeros(&self) -> usize {
        let visit = self.holders.visit();
        visit.members().map(Holder::drop_zeros).sum()
    }

    /// Drops pages that were captured for snapshots that are gone or that have lost the block below, and pages for
    /// which a block that their snapshot alone holds has room. If a write has found no block, drops those of a cut that
    /// waits for operations, too: the cut can capture them again, but the write would fail. Returns how many blocks
    /// came back. Not for fault handlers.
    pub(crate) fn drop_unheld(&self) -> usize {
        let (before, _dropping) = (self.slots.given_back(), self.unheld.dropping.lock());
        let noted = self.unheld.noted.load(Ordering::SeqCst);
        let wanted = if self.are_writers_short_of_blocks() { UNHELD | WAITED_FOR } else { UNHELD };
        // If a thread has the turn of a region, or waits for it, some may be left.
        if self.unheld.may_be_any() && self.drop_sets(wanted) {
            self.unheld.dropped.store(noted, Ordering::SeqCst);
        }
        self.slots.given_back().wrapping_sub(before)
    }

    /// Drops the captured page sets of the kinds `wanted`. Returns false if another thread has the turn of a region,
    /// which drops the region's sets at the end of its turn, or if a cut keeps sets while it waits. Not for fault
    /// handlers.
    pub(super) fn drop_sets(&self, wanted: u32) -> bool {
        let _signals = SignalsBlocked::new();
        self.holders.visit().sets().filter(|sets| !sets.drop_sets(wanted, &self.frames)).count() == 0
    }

    /// Makes room for a call that found no block: drops lazily freed blocks, or pages that were captured for snapshots
    /// that are gone. Returns false if there are none. Not for fault handlers.
    pub(crate) fn make_room(&self) -> bool {
        let _signals = SignalsBlocked::new();
        self.drop_some_lazy() != Found::None || self.drop_unheld() > 0
    }

    /// Asks the pool's thread to drop such pages, for a fault that holds no lock, and waits for its answer. If another
    /// thread has the turn of a region, the fault must search again, because the sets of that region are dropped at the
    /// end of the turn.
    pub(crate) fn have_unheld_dropped(&self) -> Found {
        let unheld = &self.unheld;
        let is_served = || unheld.is_served.load(Ordering::SeqCst);
        if !unheld.may_be_any() || !is_served() {
            return Found::None;
        }
        let ticket = unheld.asked.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        self.maintenance.parker.wake();
        let is_answered = || unheld.answered.load(Ordering::SeqCst).wrapping_sub(ticket).cast_signed() >= 0;
        unheld.answers.until(|| (is_answered() || !is_served()).then_some(()));
        match self.frames.available() {
            // Another thread has the turn of a region whose sets may belong to no snapshot, or had it meanwhile: it may
            // have taken the blocks that came back.
            0 if unheld.may_be_any() => Found::LookAgain,
            0 => Found::None,
            1.. => Found::Some,
        }
    }

    /// Counts the caller as a write that has found no block, until the guard is dropped.
    pub(crate) fn note_writer_short_of_blocks(&self) -> ShortOfBlocks<'_> {
        self.unheld.writers.fetch_add(1, Ordering::SeqCst);
        ShortOfBlocks(&self.unheld.writers)
    }

    /// Whether there are writes that look for a block and have found none. Other threads should then take none without
    /// need.
    pub(crate) fn are_writers_short_of_blocks(&self) -> bool {
        self.unheld.writers.load(Ordering::SeqCst) > 0
    }

    /// Drops sets if faults wait for that. The pool's thread calls this.
    pub(super) fn answer_shortage(&self) {
        if self.unheld.is_asked() {
            let until = self.unheld.asked.load(Ordering::SeqCst);
            self.drop_unheld();
            self.unheld.answered.store(until, Ordering::SeqCst);
            self.unheld.answers.ring();
        }
    }

    /// Drops lazily freed contents, beginning with the region that has the oldest.
    fn drop_in_line(&self, bytes: usize, what: Droppable, look: &mut usize) -> Dropped {
        let mut done = Dropped::default();
        while done.bytes < bytes && *look > 0 {
            let visit = self.holders.visit();
            // The region with the oldest contents, and the number of the `lazy_free` call of the next region's.
            let (mut oldest, mut until) = (None, u32::MAX);
            for holder in visit.regions().filter_map(Holder::lazy) {
                let Some(mark) = holder.oldest_lazy(what) else { continue };
                match oldest {
                    Some((first, _)) if first < mark => until = until.min(mark),
                    _ => {
                        until = oldest.map_or(u32::MAX, |(first, _)| first);
                        oldest = Some((mark, holder));
                    }
                }
            }
            let Some((_, holder)) = oldest else { break };
            let dropped = holder.drop_lazy(until, bytes - done.bytes, what, look);
            done.blocks += dropped.blocks;
            done.bytes += dropped.bytes;
            // The search for the next region inspects each region. Their number is subtracted only after a drop, so
            // that each call makes progress: a caller whose limit is used up searches again, and must find fewer
            // candidates then.
            *look = look.saturating_sub(visit.regions().count());
        }
        done
    }

    fn recall_lazy(&self, changes: u64) -> bool {
        let mut recalled = false;
        for holder in self.holders.visit().regions().filter_map(Holder::lazy) {
            recalled |= holder.recall_lazy(changes);
        }
        recalled
    }

    /// Gives the memory of free blocks back to the system until `bytes` are reached, or a little more. Returns the
    /// number of bytes. hugetlb pages are set aside for the pool and stay, because others might have them when the pool
    /// needs them again.
    pub(crate) fn trim(&self, bytes: usize) -> Result<usize, SystemError> {
        if self.sys.merging() == Merging::Separate {
            return Ok(0);
        }
        let _signals = SignalsBlocked::new();
        // The maintenance thread must not at once allocate again what this call gives back.
        self.ahead.rest();
        // Only whole huge pages go back, so that the kernel does not have to split them.
        let grain = (HUGE_PAGE / self.block_size.bytes()).max(1);
        let most = self.block_size.count(TRIMMED_AT_ONCE_BYTES.min(bytes)).max(grain);
        let wanted = bytes.div_ceil(self.block_size.bytes());
        let (blocks, mut next, mut trimmed) = (self.frames.len(), 0, 0);
        while next < blocks && trimmed < wanted {
            // The loop takes a run of free blocks that have memory out of the free list, so that no other thread gets
            // one meanwhile.
            let mut end = next;
            while end < blocks && end - next < most && self.take_idle(end..(end + grain).min(blocks), Idle::WithMemory)
            {
                end = (end + grain).min(blocks);
            }
            if end == next {
                next += grain;
                continue;
            }
            self.punch_taken(next..end)?;
            trimmed += end - next;
            next = end;
        }
        Ok(self.block_size.len_of(trimmed))
    }

    /// Gives the memory of blocks that [`PoolCore::take_idle`] took back to the system, and puts the blocks back into
    /// the free list.
    pub(super) fn punch_taken(&self, blocks: Range<usize>) -> Result<(), SystemError> {
        // SAFETY: these blocks were free and are out of the free list, so nothing holds or uses them.
        let punched =
            unsafe { self.sys.retire(self.block_size.len_of(blocks.start), self.block_size.len_of(blocks.len())) };
        for block in blocks.map(|index| BlockId(index as u32)) {
            let content = if punched.is_ok() { Content::Fresh } else { self.frames.content(block) };
            self.frames.put_back(block, content);
        }
        punched
    }

    /// Takes these blocks out of the free list, if all of them are free and `idle`, and at least one has memory.
    pub(super) fn take_idle(&self, blocks: Range<usize>, idle: Idle) -> bool {
        let id = |index: usize| BlockId(index as u32);
        let taken = blocks.clone().take_while(|&index| self.frames.take_exactly(id(index))).count();
        let all = blocks.start..blocks.start + taken;
        let has = |content: Content| all.clone().any(|index| self.frames.content(id(index)) == content);
        let is_idle = match idle {
            Idle::WithMemory => has(Content::Clean) || has(Content::Used),
            Idle::Unused => has(Content::Clean) && !has(Content::Used),
        };
        if taken == blocks.len() && is_idle {
            return true;
        }
        for index in all {
            self.frames.put_back(id(index), self.frames.content(id(index)));
        }
        false
    }

    /// Gives the memory of a block back to the system, after parts of it may have gone before. Only the caller holds
    /// the block, and no address shows it. The block is then marked fresh. Returns false if the kernel refuses; then no
    /// one may use the block again.
    pub(crate) fn give_memory_back(&self, block: BlockId) -> bool {
        // SAFETY: by this function's contract, only the caller holds the block, and no address shows it.
        let punched = unsafe { self.sys.retire(self.offset(block), self.block_size.bytes()) }.is_ok();
        if punched {
            self.frames.set_content(block, Content::Fresh);
        }
        punched
    }
}
