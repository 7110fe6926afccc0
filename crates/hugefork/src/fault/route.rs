//! To whom an address belongs: the table from the arena's slots to regions and snapshots.
//!
//! ```text
//! arena   | slot | slot | slot | slot | …
//!         └── region A ──┘ gap  └─ B ─┘
//! table   [  A   ][  A  ][  A ][  B  ]            slot → region or snapshot: one load, no lock
//! ```

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::OnceLock;

use crate::mem::{self, EngineBox};
use crate::pool::core::PoolCore;
use crate::region::state::RegionCore;
use crate::snapshot::core::SnapshotCore;
use crate::sys::SystemError;
use crate::sys::linux::arena::Arena;
use crate::sys::linux::memory::Linux;

static ROUTES: OnceLock<Routes> = OnceLock::new();

/// The addresses of snapshots are even. This bit marks them.
const SNAPSHOT: usize = 1;

/// To whom an address belongs.
pub(crate) enum Owner<'a> {
    Region(&'a RegionCore<Linux>),
    Snapshot(&'a SnapshotCore<Linux>),
}

impl Owner<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Owner::Region(region) => region.len(),
            Owner::Snapshot(snapshot) => snapshot.len(),
        }
    }

    pub(super) fn pool(&self) -> &PoolCore<Linux> {
        match self {
            Owner::Region(region) => region.pool(),
            Owner::Snapshot(snapshot) => snapshot.pool(),
        }
    }
}

/// To whom each slot of the arena belongs.
pub(crate) struct Routes {
    arena: &'static Arena,
    /// Null, the address of a region, or the address of a snapshot with the bit [`SNAPSHOT`].
    owners: EngineBox<[AtomicPtr<()>]>,
}

impl Routes {
    /// The table, created with the arena at the first call.
    pub(crate) fn open() -> Result<&'static Routes, SystemError> {
        if let Some(routes) = ROUTES.get() {
            return Ok(routes);
        }
        let arena = Arena::open()?;
        Ok(ROUTES.get_or_init(|| Routes { arena, owners: mem::zeroed(arena.slots()) }))
    }

    /// The table, if it exists. The fault handler calls this.
    pub(crate) fn get() -> Option<&'static Routes> {
        ROUTES.get()
    }

    /// Sends faults in the region's addresses to it from now on.
    ///
    /// # Safety
    /// The region stays where it is until [`Routes::forget`] has been told of its addresses.
    pub(crate) unsafe fn to_region(&self, region: &RegionCore<Linux>) {
        self.fill(region.addresses.base(), region.len(), ptr::from_ref(region).cast_mut().cast());
    }

    /// Sends faults at `base`, where the snapshot is mapped, to it from now on.
    ///
    /// # Safety
    /// As [`Routes::to_region`].
    pub(crate) unsafe fn to_snapshot(&self, base: usize, snapshot: &SnapshotCore<Linux>) {
        let (len, owner) = (snapshot.len(), ptr::from_ref(snapshot).cast_mut().cast::<()>());
        self.fill(base, len, owner.map_addr(|address| address | SNAPSHOT));
    }

    /// Sends faults in the range to nobody from now on.
    pub(crate) fn forget(&self, base: usize, len: usize) {
        self.fill(base, len, ptr::null_mut());
    }

    fn fill(&self, base: usize, len: usize, owner: *mut ()) {
        for slot in &self.owners[self.arena.slots_of(base, len)] {
            slot.store(owner, Ordering::Release);
        }
    }

    /// To whom `address` belongs, and the offset there. This is one load, for the fault handler.
    ///
    /// The reference is valid while the program keeps the region or snapshot, which it must while it uses it.
    pub(crate) fn find(&self, address: usize) -> Option<(Owner<'_>, usize)> {
        let (owner, offset) = self.of_slot(address)?;
        (offset < owner.len()).then_some((owner, offset))
    }

    /// The region or snapshot that ends before `address`, and the bytes in between.
    pub(crate) fn find_before(&self, address: usize) -> Option<(Owner<'_>, usize)> {
        let (owner, offset) = self.of_slot(address)?;
        let behind = offset.checked_sub(owner.len())?;
        Some((owner, behind))
    }

    /// The owner of the slot of `address`, and the distance of `address` from the owner's beginning.
    fn of_slot(&self, address: usize) -> Option<(Owner<'_>, usize)> {
        let slot = self.owners.get(self.arena.slot_of(address)?)?.load(Ordering::Acquire);
        let plain = slot.map_addr(|address| address & !SNAPSHOT);
        let (owner, base) = if slot == plain {
            // SAFETY: null, or a region that stays in place until it is forgotten.
            let region = unsafe { slot.cast::<RegionCore<Linux>>().as_ref() }?;
            (Owner::Region(region), region.addresses.base())
        } else {
            // SAFETY: without the mark, this is the address of a snapshot that stays in place until it is forgotten.
            let snapshot = unsafe { plain.cast::<SnapshotCore<Linux>>().as_ref() }?;
            (Owner::Snapshot(snapshot), snapshot.view()?)
        };
        Some((owner, address.checked_sub(base)?))
    }

    /// Whether `address` lies in the arena.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.arena.slot_of(address).is_some()
    }
}
