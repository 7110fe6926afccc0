//! Room for a region that has to write to a block which its forks and snapshots hold too, and finds no other free.
//!
//! ```text
//!   fault: pool full ─▶ drop lazily freed blocks of all regions, oldest first ─▶ again
//!                  └ none ─▶ the writer wrote this block before it was shared, and all others may lose it:
//!                              revoke it from them ─▶ again: held once, reused
//!                  └ none of it ─▶ the write fails, loudly
//! ```
//! The rule: a region may take a block away from those who have it from there: its forks and snapshots, and the forks
//! and snapshots of those. That helps only if nobody else has the block, and if none of them has a reservation. It
//! helps for what the region wrote itself, and for what its parent has left to it.
//!
//! A holder with a reservation keeps that very block. The kernel may have taken the pages of the block, and reads them
//! much later (`O_DIRECT`, `vmsplice(2)`), whatever is shown in their place by then.
//!
//! All this happens after the fault has released its own lock, so it may wait for any other. The window is locked again
//! inside the visit to the holders. A region whose window is taken is asked again a moment later. This file has what a
//! region does when it is asked, snapshot/revoke.rs what a snapshot does.

use std::sync::atomic::Ordering;

use super::fault::Turns;
use crate::mapping::addresses::Place;
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

/// What came of asking all holders of a block to let go of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// There is no need any more: the block is not shared, or a block is reserved for the write.
    Changed,
    /// Nobody was asked, because that would not help: a holder has the block from another region, or keeps it.
    Strangers,
    /// All were asked, and `holders` of them have kept it, this region included.
    Kept { block: BlockId, holders: u32 },
    /// Somebody who has it could not be asked just then.
    Busy,
}

impl<S: Sys> RegionCore<S> {
    /// Makes room after a write to `index` found no block. Says whether the write may find one now, or need none.
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

    /// Takes the block at `index` away from forks and snapshots without a reservation. True if anybody lost it, or may
    /// lose it the next time.
    pub(crate) fn revoke_from_others(&self, index: EntryIndex) -> bool {
        let (asked, has_lost) = self.ask_all(index);
        has_lost || asked == Asked::Busy
    }

    /// Asks the holders, under the window's lock, for the block at `index`, if there are others, all of them have it
    /// from here, and none of them keeps it: no holder is to lose it in vain. Returns what came of it, and whether a
    /// holder lost the block.
    ///
    /// This is one visit: between two, a new holder would come that is not asked, or one would go that is counted. The
    /// window is locked inside the visit: whoever adds a holder waits for all visits and lets no other begin, and one
    /// of them may wait for the window.
    fn ask_all(&self, index: EntryIndex) -> (Asked, bool) {
        let visit = self.pool().holders.visit();
        let _window = self.table.lock(index);
        let Some(block) = self.shared_block(index) else { return (Asked::Changed, false) };
        let id = self.accounts.cow.id();
        let others = || visit.family.members().filter(|holder| holder.id() != Some(id));
        let is_of_here = self.table.get(index).is_owner() || visit.family.is_all_of(id, index, block);
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

    /// Whether a write to `index` that found no room may find some now: others have made it meanwhile, or a holder was
    /// just coming or going and so was not asked.
    fn may_have_changed(&self, index: EntryIndex, asked: Asked) -> bool {
        let pool = self.pool();
        if pool.frames.available() > 0 || self.table.is_reserved(index) {
            return true;
        }
        let Some(block) = self.table.get(index).block() else { return false };
        let holders = pool.frames.references(block);
        match asked {
            _ if holders == 1 => true,
            Asked::Changed => true,
            Asked::Busy => {
                pool.frames.given_back.wait_a_moment();
                true
            }
            Asked::Strangers => false,
            // Those who leaked the block will never let go of it.
            Asked::Kept { .. } if asked == Asked::Kept { block, holders } => false,
            Asked::Kept { .. } if pool.leaked.load(Ordering::Relaxed) > 0 => false,
            Asked::Kept { .. } => {
                pool.frames.given_back.wait_a_moment();
                true
            }
        }
    }

    /// The block at `index`, if others hold it too and no block is reserved for a write there.
    fn shared_block(&self, index: EntryIndex) -> Option<BlockId> {
        let block = self.table.get(index).block().filter(|block| !self.is_alone_with(*block))?;
        (!self.table.is_reserved(index)).then_some(block)
    }

    fn hide(&self, locked: Locked<'_>, index: EntryIndex) -> bool {
        let only = index.0..index.0 + 1;
        let Ok(remapped) = self.remap(locked, Place::Own, &only, Shows::Hidden) else { return false };
        remapped.published(self.store(locked, Event::Revoke, only, |_, _| Entry::Revoked));
        true
    }
}

impl<S: Sys> Holder for RegionCore<S> {
    fn id(&self) -> Option<RegionId> {
        Some(self.accounts.cow.id())
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
        // Looked at without the lock first: a region without this block may wait for the asker.
        if self.on_revoke(index, block) == OnRevoke::Nothing {
            return Answer::No;
        }
        // Whoever has the window may wait for the asker's: those of several regions are locked oldest first, and an
        // older region may have a block of the asker's from a reset.
        let Some(window) = self.table.try_lock(index) else { return Answer::Busy };
        let publishing = self.lock.shared();
        let lets_go = self.on_revoke(index, block) == OnRevoke::Hide;
        if lets_go && self.hide(Locked::windows(&window, &publishing), index) { Answer::Done } else { Answer::No }
    }
}
