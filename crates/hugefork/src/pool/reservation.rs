//! Reservations: blocks of the pool that only certain entries may take.
//!
//! One bit of an entry says that a block is reserved for it. This does not name a block: the pool only lowers the
//! number of blocks that others may take. A block that is taken for such an entry uses up its reservation. In a region
//! that was promised all its blocks, an entry that gives its block back stays reserved (region/state/store.rs). A
//! snapshot has no reservations, because nothing writes to it.

use std::ops::Range;

use super::core::PoolCore;
use crate::sys::Sys;
use crate::table::{Entries, Reserved};
use crate::types::error::RegionError;
use crate::types::options::Reserve;
use crate::units::EntryIndex;

/// Reservations that no entry has yet.
#[must_use = "the pool counts them until an entry has them"]
pub(crate) struct Unassigned(usize);

impl Unassigned {
    /// Gives one reservation to each entry of `range` that is `due` and has none, and gives up the rest. No other
    /// thread may change these entries meanwhile.
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
    /// necessary. Not for fault handlers.
    pub(crate) fn reserve(&self, reserve: Reserve, count: usize) -> Result<Unassigned, RegionError> {
        if reserve == Reserve::None {
            return Ok(Unassigned(0));
        }
        while self.frames.reserve(count).is_none() {
            if !self.make_room() {
                return Err(RegionError::NotReservable {
                    pool: self.name.clone(),
                    wanted: count,
                    available: self.frames.available(),
                    block_size: self.block_size,
                });
            }
        }
        Ok(Unassigned(count))
    }
}
