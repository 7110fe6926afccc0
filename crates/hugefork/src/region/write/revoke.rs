//! Makes room for a write to a block that forks and snapshots hold too, when the pool has no block for a copy.
//!
//! ```text
//!   fault: pool full ─▶ drop lazily freed blocks of all regions, oldest first ─▶ try again
//!              └ none ─▶ drop captured pages that no snapshot holds ─▶ try again
//!              └ none ─▶ revoke this block from all other holders, if the rule allows it ─▶ try again: reuse it
//!              └ else ─▶ the write fails, with an error or a signal
//! ```
//! The rule: a region may take a block away from its forks and snapshots, and from the forks and snapshots of those. It
//! does so only if these are all other holders of the block, and none of them has a reservation: else the block would
//! stay shared. The block may be one that the region wrote, or one of its parent that the parent holds no longer.
//!
//! A holder with a reservation keeps the block itself, and gets no copy in its place. The kernel may have taken
//! references to the pages of the block and read them much later (`O_DIRECT`, `vmsplice(2)`), whichever block the
//! addresses show then.
//!
//! The fault has released its own lock before all this, so it may wait for any other. The visit to the holders locks
//! the window again. If the window of another region is locked, the writer asks that region again a moment later. This
//! file has the answer of a region that is asked, and snapshot/revoke.rs that of a snapshot.

use std::sync::atomic::Ordering;

use super::fault::Turns;
use crate::pool::holders::{Answer, CowMappingHolder, Holder, LazyHolder};
use crate::pool::lineage::{Derived, RegionId};
use crate::pool::shortage::Found;
use crate::region::state::RegionCore;
use crate::stats::counters::count;
use crate::sys::{Shows, Sys};
use crate::table::transition::{Event, OnRevoke, on_revoke};
use crate::table::{Entry, Locked};
use crate::types::options::Reserve;
use crate::units::{BlockId, EntryIndex};

/// The outcome of asking all holders of a block to give it up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// No holder has to be asked any more: the block is not shared, or a block is reserved for the write.
    Changed,
    /// No holder was asked, because one of them has the block from another region or keeps it.
    Strangers,
    /// All holders were asked, and `holders` of them still have the block, this region included.
    Kept { block: BlockId, holders: u32 },
    /// A holder could not be asked, because its window was locked.
    Busy,
}

impl<S: Sys> RegionCore<S> {
    /// Makes room after a write to `index` found no block. Returns whether the write may find one now, or need none.
    pub(super) fn make_room(&self, index: EntryIndex, turns: Turns) -> Found {
        match self.pool().drop_some_lazy() {
            Found::None => {}
            found @ (Found::Some | Found::LookAgain) => return found,
        }
        match self.pool().have_unheld_dropped() {
            Found::None => {}
            Found::LookAgain if turns == Turns::Taken => {}
            found @ (Found::Some | Found::LookAgain) => return found,
        }
        let (asked, has_lost) = self.ask_all(index);
        if has_lost || self.may_have_changed(index, asked) { Found::Some } else { Found::None }
    }

    /// Takes the block at `index` away from forks and snapshots without a reservation. True if a holder lost it, or may
    /// lose it at the next try.
    pub(crate) fn revoke_from_others(&self, index: EntryIndex) -> bool {
        let (asked, has_lost) = self.ask_all(index);
        has_lost || asked == Asked::Busy
    }

    /// Asks all other holders of the block at `index` to give it up, under the window's lock. It asks only if all of
    /// them have the block from this region and none of them keeps it, so that no holder loses the block in vain.
    /// Returns the outcome, and whether a holder lost the block.
    ///
    /// All this is one visit to the holders. Between two visits a new holder could come that is not asked, or one could
    /// go that is counted. The window is locked inside the visit: a thread that adds a holder waits for all visits and
    /// lets no other begin, and one of those visits may wait for the window.
    fn ask_all(&self, index: EntryIndex) -> (Asked, bool) {
        let visit = self.pool().holders.visit();
        let _window = self.table.lock(index);
        let Some(block) = self.shared_block(index) else { return (Asked::Changed, false) };
        let id = self.accounts.cow.id;
        let others = || visit.members().filter(|holder| holder.id() != Some(id));
        let is_of_here = self.table.get(index).is_owner() || visit.is_all_of(id, index, block);
        if !is_of_here || others().any(|holder| holder.keeps(index, block)) {
            return (Asked::Strangers, false);
        }
        let (mut holders, mut has_lost) = (1, false);
        for holder in others() {
            match holder.give_up(index, block) {
                Answer::Done => {
                    has_lost = true;
                    count(&self.counters.blocks_revoked, 1);
                }
                Answer::No => {}
                Answer::Busy => return (Asked::Busy, has_lost),
            }
            holders += u32::from(holder.holds(index, block));
        }
        (Asked::Kept { block, holders }, has_lost)
    }

    /// Whether a write to `index` that found no block may find one now: other threads have freed one meanwhile, or a
    /// holder was just coming or going and so was not asked.
    fn may_have_changed(&self, index: EntryIndex, asked: Asked) -> bool {
        let pool = self.pool();
        if pool.frames.available() > 0 || self.table.is_reserved(index) {
            return true;
        }
        let Some(block) = self.table.get(index).block() else { return false };
        let holders = pool.frames.references(block);
        if holders == 1 || asked == Asked::Changed {
            return true;
        }
        let is_final = match asked {
            Asked::Changed | Asked::Busy => false,
            Asked::Strangers => true,
            // All holders have refused, or some references were leaked and will never go.
            Asked::Kept { .. } => asked == Asked::Kept { block, holders } || pool.leaked.load(Ordering::Relaxed) > 0,
        };
        if !is_final {
            pool.frames.given_back.wait_a_moment();
        }
        !is_final
    }

    /// The block at `index`, if others hold it too and no block is reserved for a write there.
    fn shared_block(&self, index: EntryIndex) -> Option<BlockId> {
        let block = self.table.get(index).block().filter(|block| !self.is_alone_with(*block))?;
        (!self.table.is_reserved(index)).then_some(block)
    }
}

impl<S: Sys> Holder for RegionCore<S> {
    fn id(&self) -> Option<RegionId> {
        Some(self.accounts.cow.id)
    }

    fn parent(&self) -> Option<&Derived> {
        self.accounts.parent.as_ref()
    }

    fn lazy(&self) -> Option<&dyn LazyHolder> {
        Some(self)
    }

    fn with_cow_mappings(&self) -> Option<&dyn CowMappingHolder> {
        Some(self)
    }

    fn holds(&self, index: EntryIndex, block: BlockId) -> bool {
        index.0 < self.table.len() && self.table.get(index).block() == Some(block)
    }

    fn on_revoke(&self, index: EntryIndex, block: BlockId) -> OnRevoke {
        if !Holder::holds(self, index, block) {
            return OnRevoke::Nothing;
        }
        let entry = self.table.get(index);
        let reserved = if self.table.is_reserved(index) { Reserve::Full } else { self.accounts.reserve };
        on_revoke(entry.state(), entry.origin(), reserved).1
    }

    fn give_up(&self, index: EntryIndex, block: BlockId) -> Answer {
        // Checked before the lock is tried: a region without this block may wait for the asker, and must not answer
        // `Busy`.
        if self.on_revoke(index, block) == OnRevoke::Nothing {
            return Answer::No;
        }
        // This only tries the lock, since the thread that has it may wait for the asker's window. Windows of several
        // regions are locked oldest region first, and an older region may have a block of the asker's from a reset.
        let Some(window) = self.table.try_lock(index) else { return Answer::Busy };
        let publishing = self.lock.shared();
        if self.on_revoke(index, block) != OnRevoke::Hide {
            return Answer::No;
        }
        let (locked, only) = (Locked::windows(&window, &publishing), index.0..index.0 + 1);
        let hidden = self.replace(locked, only, Shows::Hidden, Event::Revoke, |_, _| Entry::Revoked);
        if hidden.is_ok() { Answer::Done } else { Answer::No }
    }
}
