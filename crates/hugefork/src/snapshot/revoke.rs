//! Gives a snapshot's block back to the region that has to write to it. region/write/revoke.rs asks for that.
//!
//! The snapshot's addresses of the block are hidden before the region writes, so a reader by address faults instead of
//! seeing the write. A reader that copies (read.rs) holds the block.

use std::sync::atomic::{Ordering, fence};

use super::core::SnapshotCore;
use crate::mapping::addresses::Place;
use crate::mapping::change::{Recount, Refused, Site};
use crate::mapping::edges::Shown;
use crate::pool::holders::{Answer, Holder, Seat};
use crate::pool::lineage::{Derived, RegionId};
use crate::sys::Sys;
use crate::table::transition::{OnRevoke, on_revoke};
use crate::table::{Entry, Locked};
use crate::types::options::Reserve;
use crate::units::{BlockId, EntryIndex};

impl<S: Sys> SnapshotCore<S> {
    /// Gives up the block at `index`: the entry becomes `Revoked`, or `Zero` if the block has only zeros. The addresses
    /// change first. False if the kernel refuses; then nothing has changed.
    pub(super) fn let_go(&self, locked: Locked<'_>, index: EntryIndex) -> bool {
        if self.zeros.has(index.0) {
            let count = || _ = self.zeros_held.fetch_sub(1, Ordering::Relaxed);
            return self.store(locked, index, Entry::Zero, count).is_ok();
        }
        // The count rises before the entry changes, so a reader that sees the entry revoked also sees that count.
        let count = || _ = self.revoked.fetch_add(1, Ordering::Release);
        let revoked = self.store(locked, index, Entry::Revoked, count).is_ok();
        // The pages over the block are of no use any more (pages.rs).
        self.pool().unheld.note();
        revoked
    }

    /// Stores an entry, after its addresses show the same, if the bytes have addresses. Calls `count` before. If the
    /// kernel refuses, nothing has changed.
    pub(super) fn store(
        &self,
        locked: Locked<'_>,
        index: EntryIndex,
        entry: Entry,
        count: impl FnOnce(),
    ) -> Result<(), Refused> {
        let (shown, only) = (Shown::of_snapshot(self.pool(), &self.entries), index.0..index.0 + 1);
        let before = shown.edges(only.clone());
        let site =
            self.view.get().map(|view| Site { addresses: &view.addresses, shown, observer: None, place: Place::Own });
        let remapped = match (&site, entry.shows()) {
            (Some(site), Some(shows)) => Some(site.remap(locked, &only, shows)?),
            (None, _) | (_, None) => None,
        };
        count();
        self.entries.set(index, entry);
        if let Some(remapped) = remapped {
            remapped.published(Recount { before, after: shown.edges(only) });
        }
        Ok(())
    }
}

impl<S: Sys> Holder for SnapshotCore<S> {
    fn id(&self) -> Option<RegionId> {
        None
    }

    fn seat(&self) -> Option<&Seat> {
        Some(&self.seat)
    }

    fn parent(&self) -> Option<&Derived> {
        Some(&self.parent)
    }

    fn holds(&self, index: EntryIndex, block: BlockId) -> bool {
        index.0 < self.entries.len() && self.entries.get(index).block() == Some(block)
    }

    fn on_revoke(&self, index: EntryIndex, block: BlockId) -> OnRevoke {
        if !self.holds(index, block) {
            return OnRevoke::Nothing;
        }
        let entry = self.entries.get(index);
        on_revoke(entry.state(), entry.origin(), if self.is_irrevocable() { Reserve::Full } else { Reserve::None }).1
    }

    fn give_up(&self, index: EntryIndex, block: BlockId) -> Answer {
        if self.on_revoke(index, block) == OnRevoke::Nothing {
            return Answer::No;
        }
        let alone = self.lock.exclusive();
        let is_hidden = || self.let_go(Locked::alone(&alone), index) || seeded!("revoked-though-it-is-not-hidden");
        if self.on_revoke(index, block) == OnRevoke::Nothing || !is_hidden() {
            return Answer::No;
        }
        // Readers must see that the entry has changed before the writer can change the block.
        fence(Ordering::SeqCst);
        self.pool().release(block);
        Answer::Done
    }

    fn drop_zeros(&self) -> usize {
        SnapshotCore::drop_zeros(self)
    }
}
