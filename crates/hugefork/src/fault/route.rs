//! The table from slots of the arena to the regions and snapshots that own them. The fault handler finds the owner of
//! an address with one load and no lock.
//!
//! ```text
//! arena   | slot | slot | slot | slot | …
//!         └── region A ──┘ gap  └─ B ─┘
//! table   [  A   ][  A  ][  A ][  B  ]            each word: the owner, and how many of the slot's pages it owns
//! ```
//! The handler reads an owner only if the address lies in one of its pages: the program then keeps the owner alive.
//! Past the end, another thread may drop the owner meanwhile, so the table alone tells how far the owner's pages reach.

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

/// Marks a snapshot's address in the table. Addresses of snapshots are even.
const SNAPSHOT: usize = 1;

/// The lowest bit of the page count in a word of the table. An address takes fewer bits.
const PAGES_FROM_BIT: u32 = 48;

/// The owner of an address.
pub(crate) enum Owner<'a> {
    Region(&'a RegionCore<Linux>),
    Snapshot(&'a SnapshotCore<Linux>),
}

/// The result of a lookup of an address.
pub(crate) enum Found<'a> {
    /// The owner, and the offset in it.
    Within(Owner<'a>, usize),
    /// The number of bytes past the end of a region or snapshot, which another thread may be dropping.
    Behind(usize),
    Nobody,
}

/// The owner of each slot of the arena.
pub(crate) struct Routes {
    arena: &'static Arena,
    /// For each slot: null, or the address of its region or snapshot. The mark [`SNAPSHOT`] is in the lowest bit, and
    /// the page count is in the highest bits.
    owners: EngineBox<[AtomicPtr<()>]>,
}

impl Routes {
    /// The table; the first call creates it, with the arena.
    pub(crate) fn open() -> Result<&'static Routes, SystemError> {
        if let Some(routes) = ROUTES.get() {
            return Ok(routes);
        }
        let arena = Arena::open()?;
        Ok(ROUTES.get_or_init(|| Routes { arena, owners: mem::zeroed(arena.slots()) }))
    }

    /// The table, if it exists, for the fault handler.
    pub(crate) fn get() -> Option<&'static Routes> {
        ROUTES.get()
    }

    /// Routes faults at the region's addresses to it from now on.
    ///
    /// # Safety
    /// The region must stay in place until [`Routes::forget`] gets its addresses.
    pub(crate) unsafe fn to_region(&self, region: &RegionCore<Linux>) {
        self.fill(region.addresses.base(), region.len(), ptr::from_ref(region).cast_mut().cast());
    }

    /// Routes faults at `base`, where the snapshot is mapped, to it from now on.
    ///
    /// # Safety
    /// As [`Routes::to_region`].
    pub(crate) unsafe fn to_snapshot(&self, base: usize, snapshot: &SnapshotCore<Linux>) {
        let (len, owner) = (snapshot.len(), ptr::from_ref(snapshot).cast_mut().cast::<()>());
        self.fill(base, len, owner.map_addr(|address| address | SNAPSHOT));
    }

    /// Leaves the range without an owner from now on.
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

    /// The owner of `address`, and the offset in it. One load, for the fault handler.
    ///
    /// The reference is valid while the program keeps the region or snapshot, as it must while it uses an address of
    /// it.
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
            // SAFETY: a region stays in place until it is forgotten, and the program keeps it while it uses one of its
            // pages.
            let region = unsafe { &*plain.cast::<RegionCore<Linux>>() };
            (Owner::Region(region), region.addresses.base())
        } else {
            // SAFETY: as above; without the mark, this is the address of a snapshot.
            let snapshot = unsafe { &*plain.cast::<SnapshotCore<Linux>>() };
            let Some(base) = snapshot.view() else { return Found::Nobody };
            (Owner::Snapshot(snapshot), base)
        };
        Found::Within(found, address - base)
    }

    /// Whether `address` lies in the arena.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.arena.slot_of(address).is_some()
    }
}
