//! Reservations: blocks of the pool that only certain entries may take.
//!
//! The rule: one bit of an entry says that a block is reserved for it. No certain block is: the pool only takes the
//! number of reservations off what others may have. Whoever takes a block for such an entry uses its reservation up. If
//! the region was promised all its blocks, an entry that gives its block back keeps one reserved
//! (region/state/store.rs). A snapshot, which is never written to, has none.

use std::ops::Range;

use super::core::PoolCore;
use super::shortage::Found;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::table::{Entries, Reserved};
use crate::types::error::RegionError;
use crate::types::options::Reserve;
use crate::units::EntryIndex;

/// Reservations that no entry has yet.
#[must_use = "the pool counts them until an entry has them"]
pub(crate) struct Unassigned(usize);

impl Unassigned {
    /// Gives one to each entry of `range` that is `due` and has none. Nobody else may change these entries meanwhile.
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
    /// Reserves blocks for `count` entries if `reserve` asks for that, and drops lazily freed blocks for it if
    /// necessary. Not for faults.
    pub(crate) fn reserve(&self, reserve: Reserve, count: usize) -> Result<Unassigned, RegionError> {
        if reserve == Reserve::None {
            return Ok(Unassigned(0));
        }
        if self.try_to_reserve(count) {
            return Ok(Unassigned(count));
        }
        // The error allocates, so signals must not be blocked.
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
            if self.drop_some_lazy() == Found::None && self.drop_unheld() == 0 {
                return false;
            }
        }
        true
    }

    /// Gives up all reservations of a region or snapshot that goes.
    pub(crate) fn unreserve_all(&self, entries: &Entries) {
        self.frames.unreserve(entries.reserved());
    }
}
