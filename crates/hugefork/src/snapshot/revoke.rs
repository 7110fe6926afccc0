//! Gives a block back to the region that needs it: region/revoke.rs asks for that.
//!
//! A reader by address has faulted before the region writes again. A reader that copies (read.rs) looks at the entry
//! afterwards.

use std::any::Any;
use std::sync::atomic::{Ordering, fence};

use super::core::{Keeping, SnapshotCore};
use crate::mapping::addresses::Place;
use crate::mapping::change::{Recount, Site};
use crate::mapping::edges::Shown;
use crate::pool::holders::{Ask, Holder, LetGo};
use crate::pool::lineage::{Derived, RegionId};
use crate::sys::{Access, Shows, Sys};
use crate::table::transition::{OnRevoke, Owner, on_revoke};
use crate::table::{Entry, Locked, Reserved};
use crate::units::{BlockId, EntryIndex};

impl<S: Sys> SnapshotCore<S> {
    /// What has to be done to let go of `block` at `index`.
    fn on_revoke(&self, index: EntryIndex, block: BlockId) -> OnRevoke {
        if !self.holds(index, block) {
            return OnRevoke::Nothing;
        }
        if self.keeping == Keeping::ForGood {
            return OnRevoke::Nothing;
        }
        let (entry, reserved) = (self.entries.get(index), self.entries.reservation(index));
        if self.is_reserved() && reserved == Reserved::No {
            // It has made its copy, which a reset has shared with a region since.
            return OnRevoke::Nothing;
        }
        on_revoke(entry.state(), entry.origin(), reserved, Owner::Snapshot).1
    }

    /// Stores another entry and, if the bytes are visible at an address, shows what it says. False if that cannot be
    /// done.
    fn replace(&self, locked: Locked<'_>, index: EntryIndex, new: Entry) -> bool {
        let store = || {
            if new == Entry::Revoked {
                // Counted first, so that whoever sees the entry gone finds out why.
                self.revoked.fetch_add(1, Ordering::Release);
            }
            self.entries.set(index, new);
        };
        let Some(addresses) = self.view.get() else {
            store();
            return true;
        };
        let (shown, only) = (Shown::of_snapshot(self.pool(), &self.entries), index.0..index.0 + 1);
        let shows = match new.block() {
            Some(start) => Shows::Memory { start, access: Access::Read },
            None => Shows::Hidden,
        };
        let site = Site { addresses, shown, observer: None, place: Place::Own };
        let Ok(remapped) = site.remap(locked, &only, shows) else { return false };
        let before = shown.edges(only.clone());
        store();
        remapped.published(Recount { before, after: shown.edges(only) });
        true
    }

    fn copy_into_reserved(&self, locked: Locked<'_>, index: EntryIndex, block: BlockId) -> bool {
        let Ok(copy) = self.pool().copy_of(block, Reserved::Yes) else { return false };
        if !self.replace(locked, index, Entry::Borrowed(copy)) {
            self.pool().release_and(copy, Reserved::Yes);
            return false;
        }
        self.entries.set_reserved(index, Reserved::No);
        self.note_own(index);
        self.parent.keeps_alone();
        true
    }
}

impl<S: Sys> Holder for SnapshotCore<S> {
    fn id(&self) -> Option<RegionId> {
        None
    }

    fn parent(&self) -> Option<&Derived> {
        Some(&self.parent)
    }

    fn snapshot(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn holds(&self, index: EntryIndex, block: BlockId) -> bool {
        index.0 < self.entries.len() && self.entries.get(index).block() == Some(block)
    }

    fn keeps(&self, index: EntryIndex, block: BlockId) -> bool {
        self.keeping == Keeping::ForGood && self.holds(index, block)
    }

    fn let_go(&self, index: EntryIndex, block: BlockId, ask: Ask) -> LetGo {
        if !ask.is_met_by(self.on_revoke(index, block)) {
            return LetGo::No;
        }
        let alone = self.lock.exclusive();
        let locked = Locked::alone(&alone);
        let let_go = match self.on_revoke(index, block) {
            OnRevoke::Hide => LetGo::Revoked.if_done(self.replace(locked, index, Entry::Revoked)),
            OnRevoke::CopyIntoReserved if ask == Ask::RevokeOrCopy => {
                LetGo::Copied.if_done(self.copy_into_reserved(locked, index, block))
            }
            OnRevoke::CopyIntoReserved | OnRevoke::Nothing => LetGo::No,
        };
        if let_go != LetGo::No {
            // Readers must see the entry revoked or exchanged before the writer can change the block.
            fence(Ordering::SeqCst);
            self.pool().release(block);
        }
        let_go
    }
}
