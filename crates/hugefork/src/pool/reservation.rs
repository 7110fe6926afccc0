//! Reservations: blocks of the pool that only certain entries may take.
//!
//! The rule: one bit of an entry says that a block is reserved for it, by number, not by name, and the pool counts as many out of what
//! others may have. Who takes a block for such an entry uses the reservation up; who gives one back for an entry of a region that
//! was promised all its blocks keeps it (region/store.rs). A snapshot has one for each block of its own, for the copies that it may
//! have to make when its region needs a block back.

use std::ops::Range;

use super::core::PoolCore;
use super::shortage::Found;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::table::{Entries, Reserved};
use crate::terms::error::RegionError;
use crate::terms::options::Reserve;
use crate::units::EntryIndex;

/// So many blocks that were reserved and that no entry has yet.
#[must_use = "the pool counts them until an entry has them"]
pub(crate) struct Unassigned(usize);

impl Unassigned {
    /// Gives one to each of those of `range` that is `due` and has none. Nobody else changes these entries.
    pub(crate) fn give_to<S: Sys>(
        self,
        pool: &PoolCore<S>,
        entries: &Entries,
        range: Range<usize>,
        due: impl Fn(EntryIndex) -> bool,
    ) {
        let due = range.map(EntryIndex).filter(|&index| due(index)).take(self.0);
        let given = due.filter(|&index| entries.set_reserved(index, Reserved::Yes)).count();
        pool.frames.unreserve(self.0 - given);
    }
}

impl<S: Sys> PoolCore<S> {
    /// Reserves blocks for `count` entries if that is asked for, dropping what is lazily freed if need be. Not in a fault.
    pub(crate) fn reserve(&self, reserve: Reserve, count: usize) -> Result<Unassigned, RegionError> {
        if reserve == Reserve::None {
            return Ok(Unassigned(0));
        }
        if self.try_to_reserve(count) {
            return Ok(Unassigned(count));
        }
        // Allocates: not with signals blocked.
        Err(RegionError::NotReservable {
            pool: self.name.clone(),
            wanted: count,
            available: self.frames.available(),
            block_size: self.block_size,
        })
    }

    fn try_to_reserve(&self, count: usize) -> bool {
        let _signals = SignalsBlocked::new();
        while self.frames.reserve(count).is_none() {
            if self.drop_some_lazy() == Found::None {
                return false;
            }
        }
        true
    }

    /// Gives up what the entries of a region or snapshot have that goes.
    pub(crate) fn unreserve_all(&self, entries: &Entries) {
        self.frames.unreserve(entries.reserved());
    }
}
