//! Blocks of zeros that a snapshot takes where it has none.
//!
//! A region that is reset to the snapshot again and again then finds a block to share there. The snapshot's bytes stay
//! the same.
//!
//! | when | the entry |
//! |---|---|
//! | the region is reset again and again (region/reset/exchange.rs) | `Zero` ─▶ a block that both hold |
//! | the region no longer holds the block, and the pool needs blocks | the block ─▶ `Zero` |
//!
//! An entry takes a block of zeros at most once. So a comparison that sees the same block twice (changes.rs) knows that
//! the snapshot held it in between.

use std::sync::atomic::Ordering;

use super::core::SnapshotCore;
use crate::pool::lineage::RegionId;
use crate::sys::Sys;
use crate::table::{Entry, Locked, Origin};
use crate::units::{BlockId, EntryIndex};

impl<S: Sys> SnapshotCore<S> {
    /// Whether the region `id` may give this snapshot a block of zeros at `index`. The snapshot must be one of that
    /// region, may not be irrevocable, and may have no address; the entry may never have had such a block.
    pub(crate) fn may_take_zeros_of(&self, id: RegionId, index: EntryIndex) -> bool {
        let is_plain = self.parent.account.id == id && !self.is_irrevocable() && self.view.get().is_none();
        is_plain && !self.zeros.has(index.0)
    }

    /// Stores a block of zeros, and takes over one reference to it.
    pub(crate) fn take_zeros(&self, _locked: Locked<'_>, index: EntryIndex, block: BlockId) {
        self.entries.set(index, Entry::Shared(block, Origin::Parent));
        self.note_own(index);
        self.zeros.put(index.0, Ordering::Relaxed);
        self.zeros_held.fetch_add(1, Ordering::Relaxed);
    }

    /// Releases each block of zeros that nobody else holds, and returns how many. The caller has blocked the program's
    /// signals.
    pub(super) fn drop_zeros(&self) -> usize {
        if self.zeros_held.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let (alone, mut dropped) = (self.lock.exclusive(), 0);
        for index in self.zeros.each().map(EntryIndex) {
            let Some(block) = self.entries.get(index).block() else { continue };
            // A new holder takes its reference under this lock, so the count cannot rise meanwhile.
            let is_alone = self.pool().frames.references(block) == 1 || seeded!("zeros-taken-from-two");
            if is_alone && self.let_go(Locked::alone(&alone), index) {
                self.parent.account.freed(usize::from(self.pool().release(block)));
                dropped += 1;
            }
        }
        dropped
    }
}
