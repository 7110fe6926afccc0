//! A fork is a region that starts as a snapshot.

use crate::mapping::addresses::{Addresses, Place};
use crate::mapping::edges::Shown;
use crate::mem::pinned::PinnedBox;
use crate::region::state::RegionCore;
use crate::snapshot::core::SnapshotCore;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::table::{Entry, Locked, Origin};
use crate::types::error::RegionError;
use crate::types::options::{CopyGrain, RegionOptions};
use crate::units::EntryIndex;

impl<S: Sys> RegionCore<S> {
    /// Makes a region of the snapshot's blocks. The region takes over the references, so the snapshot holds nothing
    /// afterwards. Where the snapshot has pages over a block, the region gets copies of them.
    pub(crate) fn of_snapshot(
        frozen: &SnapshotCore<S>,
        options: RegionOptions,
    ) -> Result<PinnedBox<RegionCore<S>>, RegionError> {
        frozen.check()?;
        let pool = frozen.pool();
        let region = loop {
            let mappings = Shown::of_snapshot(pool, &frozen.entries).runs().count();
            let addresses = Addresses::claim(pool, frozen.len(), mappings)?;
            let region = Self::at(addresses, options, Some(&frozen.parent));
            if !frozen.has_pages() || region.may_take_pages() {
                break region;
            }
            // The blocks that the snapshot makes of its pages lie elsewhere in the pool, and take other mappings.
            drop(region);
            frozen.complete()?;
        };
        if let Some(captured) = frozen.captured.get() {
            let _ = region.captured_of_parent.set(captured.clone());
        }
        let reserved = pool.reserve(options.reserve, frozen.entries.len())?;
        region.accounts.origin.set(frozen.id.or(frozen.from.get()));
        reserved.give_to(pool, &region.table, 0..region.table.len(), |_| true);
        let turn = region.take_turn();
        let mut dirty = region.dirty_list(frozen);
        let signals = SignalsBlocked::new();
        let alone = frozen.lock.exclusive();
        // The new region is a holder already. A thread that wants to revoke one of its blocks waits until the blocks
        // are mapped.
        let unmapped = region.lock.exclusive();
        frozen.check()?;
        for index in (0..frozen.entries.len()).map(EntryIndex) {
            if let Some(block) = frozen.entries.get(index).block() {
                region.table.set(index, Entry::Shared(block, Origin::Parent));
            }
        }
        // If this fails, the drop of the new region releases its blocks and unmaps what was mapped.
        let shown = region.addresses.show_frozen(&region.table);
        if shown.is_ok() && region.accounts.grain == CopyGrain::Page && region.may_cow_map() {
            // Blocks that cannot be shown so are read-only, and left to faults.
            let _ = region.cow_map_each(Locked::alone(&unmapped), 0..region.table.len(), Place::Own);
        }
        let locked = Locked::alone(&unmapped);
        let taken = if shown.is_ok() { region.take_pages_of(frozen, locked, &mut dirty) } else { Ok(()) };
        frozen.forget_all(Locked::alone(&alone));
        drop((unmapped, alone, dirty, signals, turn));
        shown?;
        taken.map_err(|reason| region.error(reason))?;
        Ok(region)
    }
}
