//! Revocation takes a block away from forks and snapshots, so that the region that wrote it can go on when no block is
//! free.
//!
//! ```text
//!   fault: pool full ─▶ drop lazily freed blocks of all regions, oldest first ─▶ again
//!                  └ none ─▶ the writer wrote this block before it was shared:
//!                              revoke it from forks and snapshots without a reservation; those with one
//!                              copy it into what is reserved for them ─▶ again: held once, reused
//!                  └ none of it ─▶ the write fails, loudly
//! ```
//! The rule: a region may take a block away from those who have it from there: its forks and snapshots, and the forks
//! and snapshots of those. That helps only if nobody else has the block. It always helps for what the region wrote
//! itself, and for what its parent has left to it.
//!
//! All this happens after the fault has released its own lock, so it may wait for any other. The window is locked again
//! inside the visit to the holders. A region whose window is taken is asked again a moment later. This file has what a
//! region does when it is asked, snapshot/revoke.rs what a snapshot does.

use std::sync::atomic::Ordering;

use super::core::RegionCore;
use crate::pool::holders::{Ask, Family, Holder, LazyHolder, LetGo, OverlayHolder};
use crate::pool::lineage::{Derived, RegionId};
use crate::pool::shortage::Found;
use crate::stats::counters::count;
use crate::sys::{Shows, Sys};
use crate::table::transition::{Event, OnRevoke, Owner, on_revoke};
use crate::table::{Entry, Locked, WindowsGuard};
use crate::units::{BlockId, EntryIndex};

/// What came of asking all holders of a block to let go of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Nobody was asked, because there is no need any more: the block is not shared, or a block is reserved for the
    /// write.
    Changed,
    /// Nobody was asked, because it would not help: somebody has the block from another region, or for good.
    Strangers,
    /// All were asked, and `holders` of them have kept it, this region included.
    Kept { block: BlockId, holders: u32 },
    /// Somebody who has it could not be asked just then.
    Busy,
}

/// A visit to all who may hold the block of an entry.
struct Asking<'a, S: Sys> {
    region: &'a RegionCore<S>,
    index: EntryIndex,
    ask: Ask,
    _window: WindowsGuard<'a>,
    asked: Asked,
    has_lost: bool,
}

impl<'a, S: Sys> Asking<'a, S> {
    /// Locks the window, and finds out whether asking may help.
    fn begin(region: &'a RegionCore<S>, index: EntryIndex, ask: Ask, family: Family<'_>) -> Asking<'a, S> {
        let window = region.table.lock(index);
        let is_ours =
            |block| region.table.get(index).is_owner() || family.is_all_of(region.books.cow.id(), index, block);
        let asked = match region.lendable(index) {
            None => Asked::Changed,
            Some(block) if !family.keeps(index, block) && is_ours(block) => Asked::Kept { block, holders: 0 },
            Some(_) => Asked::Strangers,
        };
        Asking { region, index, ask, _window: window, asked, has_lost: false }
    }

    /// Asks one holder.
    fn ask(&mut self, holder: &dyn Holder) {
        let Asked::Kept { block, .. } = self.asked else { return };
        if holder.id() != Some(self.region.books.cow.id()) {
            match holder.let_go(self.index, block, self.ask) {
                LetGo::Revoked => {
                    self.has_lost = true;
                    count(&self.region.counters.blocks_revoked, 1);
                }
                LetGo::Copied => self.has_lost = true,
                LetGo::No => {}
                LetGo::Busy => return self.asked = Asked::Busy,
            }
        }
        self.count(holder);
    }

    /// Counts a holder that has kept the block.
    #[inline(never)] // Not on the stack below a copy.
    fn count(&mut self, holder: &dyn Holder) {
        if let Asked::Kept { block, holders } = &mut self.asked {
            *holders += u32::from(holder.holds(self.index, *block));
        }
    }
}

impl<S: Sys> RegionCore<S> {
    /// Makes room after a write to `index` found no block. Says whether the write may find one now, or need none.
    pub(super) fn make_room(&self, index: EntryIndex) -> Found {
        match self.pool().drop_some_lazy() {
            Found::None => {}
            found @ (Found::Some | Found::LookAgain) => return found,
        }
        let (asked, has_lost) = self.ask_all(index, Ask::RevokeOrCopy);
        if has_lost || self.may_have_changed(index, asked) { Found::Some } else { Found::None }
    }

    /// Takes the block at `index` away from forks and snapshots without a reservation. True if anybody lost it, or may
    /// lose it the next time.
    pub(crate) fn revoke_from_others(&self, index: EntryIndex) -> bool {
        let (asked, has_lost) = self.ask_all(index, Ask::Revoke);
        has_lost || asked == Asked::Busy
    }

    /// Asks the holders, under the window's lock, to let go of the block at `index`, if there are others and all of
    /// them have it from here. Returns what came of it, and whether anybody let go.
    ///
    /// This is one visit: between two, a new holder would come that is not asked, or one would go that is counted. The
    /// window is locked inside the visit: whoever adds a holder waits for all visits and lets no other begin, and one
    /// of them may wait for the window.
    fn ask_all(&self, index: EntryIndex, ask: Ask) -> (Asked, bool) {
        let visit = self.pool().holders.visit();
        let mut asking = Asking::begin(self, index, ask, visit.family);
        for holder in visit.family.members() {
            asking.ask(holder);
        }
        (asking.asked, asking.has_lost)
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
        if index.0 >= self.table.len() {
            return OnRevoke::Nothing;
        }
        let entry = self.table.get(index);
        if entry.block() != Some(block) {
            return OnRevoke::Nothing;
        }
        on_revoke(entry.state(), entry.origin(), self.table.reservation(index), Owner::Region).1
    }

    #[inline(never)] // Not on the stack below a copy.
    fn hide(&self, locked: Locked<'_>, index: EntryIndex) -> bool {
        let only = index.0..index.0 + 1;
        let Ok(remapped) = self.site().remap(locked, &only, Shows::Hidden) else { return false };
        remapped.published(self.store(locked, Event::Revoke, only, |_, _| Entry::Revoked));
        true
    }
}

impl<S: Sys> Holder for RegionCore<S> {
    fn id(&self) -> Option<RegionId> {
        Some(self.books.cow.id())
    }

    fn parent(&self) -> Option<&Derived> {
        self.books.parent.as_ref()
    }

    fn lazy(&self) -> Option<&dyn LazyHolder> {
        Some(self)
    }

    fn overlaid(&self) -> Option<&dyn OverlayHolder> {
        Some(self)
    }

    fn holds(&self, index: EntryIndex, block: BlockId) -> bool {
        index.0 < self.table.len() && self.table.get(index).block() == Some(block)
    }

    fn let_go(&self, index: EntryIndex, block: BlockId, ask: Ask) -> LetGo {
        // Looked at without the lock first: whoever has not borrowed this block may be waiting for us.
        if !ask.is_met_by(self.on_revoke(index, block)) {
            return LetGo::No;
        }
        // Whoever has the window may wait for the asker's: those of several regions are locked oldest first, and an
        // older region may have a block of the asker's from a reset.
        let Some(window) = self.table.try_lock(index) else { return LetGo::Busy };
        let publishing = self.lock.shared();
        match self.on_revoke(index, block) {
            OnRevoke::Hide => LetGo::Revoked.if_done(self.hide(Locked::windows(&window, &publishing), index)),
            OnRevoke::CopyIntoReserved if ask == Ask::RevokeOrCopy => {
                LetGo::Copied.if_done(self.copy_reserved(index, window, publishing))
            }
            OnRevoke::CopyIntoReserved | OnRevoke::Nothing => LetGo::No,
        }
    }
}
