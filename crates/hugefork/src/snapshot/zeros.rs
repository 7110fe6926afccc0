//! Blocks of zeros that a snapshot takes where it has none.
//!
//! | when | the entry |
//! |---|---|
//! | the region goes back there again and again (region/reset/exchange.rs) | `Zero` ─▶ a block that both hold |
//! | the region has left the block, and somebody looks for blocks | the block ─▶ `Zero` |
//!
//! The bytes stay as they are. An entry takes such a block once: who reads the entry twice and finds the same block
//! (changes.rs) knows that the snapshot had it in between.

use std::sync::atomic::Ordering;

use super::core::SnapshotCore;
use crate::pool::lineage::RegionId;
use crate::sys::Sys;
use crate::table::{Entry, Locked, Origin};
use crate::units::{BlockId, EntryIndex};

impl<S: Sys> SnapshotCore<S> {
    /// Whether a region may have it take a block of zeros at `index`: it is a snapshot of that region, it may
    /// lose blocks, its bytes are visible nowhere, and it has had none there.
    pub(crate) fn may_take_zeros_of(&self, id: RegionId, index: EntryIndex) -> bool {
        let is_plain = self.parent.is_share_of(id) && !self.is_irrevocable() && self.view.get().is_none();
        is_plain && !self.zeros.has(index)
    }

    /// Takes a block of zeros, with a reference to it.
    pub(crate) fn take_zeros(&self, _locked: Locked<'_>, index: EntryIndex, block: BlockId) {
        self.entries.set(index, Entry::Shared(block, Origin::Parent));
        self.note_own(index);
        self.zeros.add(index);
        self.zeros_held.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives those blocks of zeros back that nobody else holds. Returns how many. The caller has blocked the program's
    /// signals.
    pub(super) fn drop_zeros(&self) -> usize {
        if self.zeros_held.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let (alone, mut dropped) = (self.lock.exclusive(), 0);
        for index in self.zeros.each() {
            let Some(block) = self.entries.get(index).block() else { continue };
            // Whoever comes to hold it takes its reference under the lock.
            let is_alone = self.pool().frames.references(block) == 1;
            if is_alone && self.let_go(Locked::alone(&alone), index) {
                self.parent.freed(usize::from(self.pool().release(block)));
                dropped += 1;
            }
        }
        dropped
    }
}
