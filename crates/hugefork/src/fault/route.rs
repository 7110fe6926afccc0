//! The owners of addresses: the table from the arena's slots to regions and snapshots.
//!
//! ```text
//! arena   | slot | slot | slot | slot | …
//!         └── region A ──┘ gap  └─ B ─┘
//! table   [  A   ][  A  ][  A ][  B  ]            slot → region or snapshot, and the pages of the slot that it has:
//!                                                 one load, no lock
//! ```
//! Only an owner whose page is touched is looked at: the program keeps it. An access behind the end may come while
//! another thread drops the owner, so that is told by the table alone.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::OnceLock;

use crate::mem::{self, EngineBox};
use crate::region::state::RegionCore;
use crate::snapshot::core::SnapshotCore;
use crate::sys::SystemError;
use crate::sys::linux::arena::{Arena, SLOT_BYTES};
use crate::sys::linux::memory::Linux;
use crate::units::BASE_PAGE;

static ROUTES: OnceLock<Routes> = OnceLock::new();

/// The addresses of snapshots are even. This bit marks them.
const SNAPSHOT: usize = 1;

/// The pages that an owner has of a slot lie above its address, which takes fewer bits.
const PAGES_FROM_BIT: u32 = 48;

/// The owner of an address.
pub(crate) enum Owner<'a> {
    Region(&'a RegionCore<Linux>),
    Snapshot(&'a SnapshotCore<Linux>),
}

/// The table's answer for an address.
pub(crate) enum Found<'a> {
    /// Its owner, and the offset there.
    Within(Owner<'a>, usize),
    /// So many bytes behind the end of a region or a snapshot, which another thread may drop just then.
    Behind(usize),
    Nobody,
}

/// The owner of each slot of the arena.
pub(crate) struct Routes {
    arena: &'static Arena,
    /// Null; or the address of a region, or that of a snapshot with the bit [`SNAPSHOT`], and the pages above it.
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
        assert_eq!(owner.addr() >> PAGES_FROM_BIT, 0, "an address of a process has at most 47 bits");
        let mut rest = len;
        for slot in &self.owners[self.arena.slots_of(base, len)] {
            let bytes = rest.min(SLOT_BYTES);
            rest -= bytes;
            let marked = owner.map_addr(|address| address | (bytes / BASE_PAGE) << PAGES_FROM_BIT);
            slot.store(if owner.is_null() { owner } else { marked }, Ordering::Release);
        }
    }

    /// The owner of `address`, and the offset there. This is one load, for the fault handler.
    ///
    /// The reference is valid while the program keeps the region or snapshot, which it must while it uses it.
    pub(crate) fn find(&self, address: usize) -> Found<'_> {
        let Some((slot, within)) = self.arena.slot_of(address) else { return Found::Nobody };
        let owner = self.owners.get(slot).map_or(ptr::null_mut(), |owner| owner.load(Ordering::Acquire));
        if owner.is_null() {
            return Found::Nobody;
        }
        let end = (owner.addr() >> PAGES_FROM_BIT) * BASE_PAGE;
        if within >= end {
            return Found::Behind(within - end);
        }
        let plain = owner.map_addr(|address| address & ((1 << PAGES_FROM_BIT) - 1) & !SNAPSHOT);
        let (found, base) = if owner.addr() & SNAPSHOT == 0 {
            // SAFETY: a region that stays in place until it is forgotten, and the program uses one of its pages.
            let Some(region) = (unsafe { plain.cast::<RegionCore<Linux>>().as_ref() }) else { return Found::Nobody };
            (Owner::Region(region), region.addresses.base())
        } else {
            // SAFETY: as above; without the mark, this is the address of a snapshot.
            let snapshot = unsafe { plain.cast::<SnapshotCore<Linux>>().as_ref() };
            let Some((snapshot, base)) = snapshot.and_then(|snapshot| Some((snapshot, snapshot.view()?))) else {
                return Found::Nobody;
            };
            (Owner::Snapshot(snapshot), base)
        };
        Found::Within(found, address - base)
    }

    /// Whether `address` lies in the arena.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.arena.slot_of(address).is_some()
    }
}
