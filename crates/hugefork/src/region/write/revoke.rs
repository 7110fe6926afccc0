//! Room for a region that has to write to a block which its forks and snapshots hold too, and finds no other free.
//!
//! ```text
//!   fault: pool full ─▶ drop lazily freed blocks of all regions, oldest first ─▶ again
//!                  └ none ─▶ the writer wrote this block before it was shared:
//!                              a snapshot with a reservation lends that ─▶ again: a copy for the writer
//!                            └ none ─▶ revoke the block from forks and snapshots without a reservation
//!                                        all have let go ─▶ again: held once, reused
//!                                        a fork with a reservation lends that ─▶ again: a copy for the writer
//!                  └ none of it ─▶ the write fails, loudly
//! ```
//! The rule: a region may take a block away from those who have it from there: its forks and snapshots, and the forks
//! and snapshots of those. That helps only if nobody else has the block. It always helps for what the region wrote
//! itself, and for what its parent has left to it.
//!
//! Who was promised a block keeps that very block, and the copy is the writer's. The kernel may have taken the pages of
//! the block, and reads them much later (`O_DIRECT`, `vmsplice(2)`), whatever is shown in their place by then.
//!
//! A snapshot is never written to, so it can do without what it lends. A fork cannot, unless it is left alone with the
//! block. So a fork lends only where the others who stay have a block reserved, too: of those who share a block, all
//! but one have one then. The one that has none ([`RegionCore::is_owed`]) may ask all others, whoever they come from.
//!
//! All this happens after the fault has released its own lock, so it may wait for any other. The window is locked again
//! inside the visit to the holders. A region whose window is taken is asked again a moment later. This file has what a
//! region does when it is asked, snapshot/revoke.rs what a snapshot does.

use std::sync::atomic::Ordering;

use super::fault::Turns;
use crate::mapping::addresses::Place;
use crate::pool::holders::{Answer, CowMappingHolder, Family, Holder, LazyHolder, Offer};
use crate::pool::lineage::{Derived, RegionId};
use crate::pool::shortage::Found;
use crate::region::state::RegionCore;
use crate::stats::counters::count;
use crate::sys::{Shows, Sys};
use crate::table::transition::{Event, OnRevoke, on_revoke};
use crate::table::{Entry, Locked, Origin, Reserved};
use crate::types::options::Reserve;
use crate::units::{BlockId, EntryIndex};

/// What a write needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The block for itself: a copy would cost too much.
    ThisBlock,
    /// This block for itself, or another for a copy.
    AnyBlock,
}

/// What came of asking all holders of a block to let go of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// There is no need any more: the block is not shared, or a block is reserved for the write.
    Changed,
    /// Nobody was asked, because it would not help: somebody has the block from another region, or keeps it.
    Strangers,
    /// All were asked, and `holders` of them have kept it, this region included.
    Kept { block: BlockId, holders: u32 },
    /// Somebody who has it could not be asked just then.
    Busy,
}

/// What the other holders of a block offer.
#[derive(Default)]
struct Offers<'a> {
    keeps: bool,
    /// One who lends, a snapshot if there is one.
    lender: Option<&'a dyn Holder>,
}

impl<'a> Offers<'a> {
    fn of(others: impl Iterator<Item = &'a dyn Holder>, index: EntryIndex, block: BlockId) -> Offers<'a> {
        let mut offers = Offers::default();
        for holder in others {
            match holder.offer(index, block) {
                Offer::Nothing | Offer::LetsGo => {}
                Offer::Keeps => offers.keeps = true,
                Offer::Lends if offers.lender.is_none() || is_snapshot(holder) => offers.lender = Some(holder),
                Offer::Lends => {}
            }
        }
        offers
    }
}

fn is_snapshot(holder: &dyn Holder) -> bool {
    holder.id().is_none()
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
        let (asked, has_lost) = self.ask_all(index, Need::AnyBlock);
        if has_lost || self.may_have_changed(index, asked) { Found::Some } else { Found::None }
    }

    /// Takes the block at `index` away from forks and snapshots without a reservation. True if anybody lost it, or may
    /// lose it the next time.
    pub(crate) fn revoke_from_others(&self, index: EntryIndex) -> bool {
        let (asked, has_lost) = self.ask_all(index, Need::ThisBlock);
        has_lost || asked == Asked::Busy
    }

    /// Asks the holders, under the window's lock, for the block at `index` or for what is reserved for it, if there are
    /// others and all of them have it from here. Returns what came of it, and whether anybody lost the block.
    ///
    /// This is one visit: between two, a new holder would come that is not asked, or one would go that is counted. The
    /// window is locked inside the visit: whoever adds a holder waits for all visits and lets no other begin, and one
    /// of them may wait for the window.
    fn ask_all(&self, index: EntryIndex, need: Need) -> (Asked, bool) {
        let visit = self.pool().holders.visit();
        let _window = self.table.lock(index);
        let Some(block) = self.lendable(index) else { return (Asked::Changed, false) };
        if !self.may_ask(visit.family, index, block) {
            return (Asked::Strangers, false);
        }
        let others = || visit.family.members().filter(|holder| holder.id() != Some(self.accounts.cow.id()));
        let offers = Offers::of(others(), index, block);
        match offers.lender {
            Some(snapshot) if need == Need::AnyBlock && is_snapshot(snapshot) => {
                return (self.borrow_from(snapshot, index, block), false);
            }
            // Nobody is to lose the block in vain.
            Some(_) if need == Need::ThisBlock => return (Asked::Strangers, false),
            Some(_) | None if offers.keeps => return (Asked::Strangers, false),
            Some(_) | None => {}
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
            if offers.lender.is_none() && holder.offer(index, block) == Offer::Lends {
                // A fork that was just coming: it had nothing to offer when it was asked, and has the block now.
                return (Asked::Changed, has_lost);
            }
            holders += u32::from(holder.holds(index, block));
        }
        match offers.lender {
            Some(fork) => (self.borrow_from(fork, index, block), has_lost),
            None => (Asked::Kept { block, holders }, has_lost),
        }
    }

    /// Whether all others who hold the block have it from here, or are to make room for what was promised.
    fn may_ask(&self, family: Family<'_>, index: EntryIndex, block: BlockId) -> bool {
        self.table.get(index).is_owner()
            || self.is_owed(index)
            || family.is_all_of(self.accounts.cow.id(), index, block)
    }

    /// Whether a write here was promised a block, which has been lent to another since.
    fn is_owed(&self, index: EntryIndex) -> bool {
        let entry = self.table.get(index);
        self.accounts.reserve == Reserve::Full
            && entry.block().is_some()
            && entry.origin() == Origin::Parent
            && !self.table.is_reserved(index)
    }

    /// Takes over what is reserved for the lender's entry. The caller holds the window.
    fn borrow_from(&self, lender: &dyn Holder, index: EntryIndex, block: BlockId) -> Asked {
        match lender.lend(index, block) {
            Answer::Done => {
                let _publishing = self.lock.shared();
                self.table.set_reserved(index, Reserved::Yes);
                Asked::Changed
            }
            // It has used it just now.
            Answer::No => Asked::Changed,
            Answer::Busy => Asked::Busy,
        }
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
    fn lendable(&self, index: EntryIndex) -> Option<BlockId> {
        let block = self.table.get(index).block().filter(|block| !self.is_alone_with(*block))?;
        (!self.table.is_reserved(index)).then_some(block)
    }

    /// What has to be done to let go of `block` at `index`.
    fn on_revoke(&self, index: EntryIndex, block: BlockId) -> OnRevoke {
        if !Holder::holds(self, index, block) {
            return OnRevoke::Nothing;
        }
        let entry = self.table.get(index);
        let reserved = if self.table.is_reserved(index) { Reserve::Full } else { self.accounts.reserve };
        on_revoke(entry.state(), entry.origin(), reserved).1
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

    fn offer(&self, index: EntryIndex, block: BlockId) -> Offer {
        Offer::while_it_holds(
            || Holder::holds(self, index, block),
            || Offer::of_holder(self.on_revoke(index, block), self.table.reservation(index)),
        )
    }

    fn give_up(&self, index: EntryIndex, block: BlockId) -> Answer {
        // Looked at without the lock first: whoever has not borrowed this block may be waiting for us.
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

    fn lend(&self, index: EntryIndex, block: BlockId) -> Answer {
        // As above. Who works on the entry may be taking the block that is reserved for it.
        let Some(_window) = self.table.try_lock(index) else { return Answer::Busy };
        let _publishing = self.lock.shared();
        let lends = self.offer(index, block) == Offer::Lends && self.table.set_reserved(index, Reserved::No);
        if lends { Answer::Done } else { Answer::No }
    }
}
