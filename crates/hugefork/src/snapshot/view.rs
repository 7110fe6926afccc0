//! The bytes of a snapshot at an address.
//!
//! A block with pages over it (pages.rs) is hidden at first. A read there faults, and the handler shows a part of the
//! block through a private mapping with copies of the pages:
//!
//! ```text
//!   2 MiB   | hidden            |  ──▶  | hidden | 64 KiB | hidden |  ──▶  | all of it         |
//!                              first fault                       second fault
//! ```
//! So reading one byte copies the pages of 64 KiB, and a scan costs two faults in each 2 MiB. The mapping gets its
//! pages at the *desk*, addresses that no other thread knows, and then one system call moves it to its place. So no
//! thread ever reads the mapping without its pages.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::mapping::addresses::Addresses;
use crate::mapping::edges::Shown;
use crate::mem::{self, EngineArc, EngineBox, EngineVec, Own};
use crate::pool::core::PoolCore;
use crate::pool::page_set::PageSet;
use crate::sys::{Access, Extent, Shows, Sys, SystemError};
use crate::table::Entries;
use crate::types::error::RegionError;
use crate::units::{BASE_PAGE, BlockId, BlockSize, EntryIndex, HUGE_PAGE};

/// Mappings that the first fault in a part adds, since the rest of the part stays hidden.
const FIRST_MAPPINGS: usize = 2;

/// Mappings that the desk adds: it splits the addresses around it.
const DESK_MAPPINGS: usize = 2;

/// The bytes that the second fault shows: a block, or 2 MiB of a larger one.
pub(super) fn part_bytes(size: BlockSize) -> usize {
    size.bytes().min(HUGE_PAGE)
}

/// The bytes that the first fault in a part shows.
fn first_bytes(part_bytes: usize) -> usize {
    (part_bytes / 32).max(BASE_PAGE)
}

/// State of a part with nothing shown. After a first fault the state is one more than the number of pages copied.
const HIDDEN: u32 = 0;
/// State of a part that is shown whole.
const SHOWN: u32 = u32::MAX;

/// The addresses of a snapshot, and how much can be read there.
pub(super) struct View<S: Sys> {
    pub(super) addresses: Addresses<S>,
    /// The pages over each block when the snapshot was mapped; empty if no block had any.
    pub(super) sets: EngineVec<Option<EngineArc<PageSet<S>>>>,
    /// How much is shown of each part of a block with pages.
    parts: EngineBox<[AtomicU32]>,
    desk: Option<Extent>,
    /// Whether every hidden page is shown now.
    pub(super) is_whole: AtomicBool,
    /// Pages that were copied.
    copies: AtomicUsize,
}

impl<S: Sys> View<S> {
    /// Claims addresses for the entries of a snapshot, `with_pages` of which have pages over their blocks. Allocates.
    pub(super) fn claim(
        pool: &EngineArc<PoolCore<S>>,
        entries: &Entries,
        with_pages: usize,
    ) -> Result<View<S>, RegionError> {
        let (len, part) = (pool.block_size.len_of(entries.len()), part_bytes(pool.block_size));
        let parts = if with_pages > 0 { len / part } else { 0 };
        let of_pages = View::mappings_of(pool, with_pages);
        let shown = Shown::of_snapshot(pool, entries).runs().count();
        let addresses = Addresses::claim(pool, len, shown + 2 * with_pages + of_pages)?;
        let sets = EngineVec::with_capacity_in(if with_pages > 0 { entries.len() } else { 0 }, Own);
        let desk = (with_pages > 0).then(|| pool.sys.claim_staging(part, part)).transpose();
        let desk = desk.map_err(RegionError::System)?;
        Ok(View {
            addresses,
            sets,
            parts: mem::zeroed(parts),
            desk,
            is_whole: AtomicBool::new(false),
            copies: AtomicUsize::new(0),
        })
    }

    /// Mappings that blocks with pages need in addition to those of their entries. The kernel does not merge mappings
    /// that come from the desk.
    fn mappings_of(pool: &PoolCore<S>, with_pages: usize) -> usize {
        let parts = with_pages * (pool.block_size.bytes() / part_bytes(pool.block_size));
        if with_pages > 0 { parts + DESK_MAPPINGS } else { 0 }
    }

    /// Shows all entries except the `with_pages` blocks that have pages over them.
    pub(super) fn show_frozen(&self, entries: &Entries, with_pages: usize) -> Result<(), SystemError> {
        let pool = &self.addresses.pool;
        self.addresses.show_frozen(entries)?;
        let mappings = 1 + Shown::of_snapshot(pool, entries).edges(0..entries.len());
        self.addresses.recount(self.addresses.mappings(), mappings + View::mappings_of(pool, with_pages));
        Ok(())
    }

    /// Whether the block at `index` had pages over it when the snapshot was mapped.
    pub(super) fn has_pages(&self, index: EntryIndex) -> bool {
        self.sets.get(index.0).is_some_and(Option::is_some)
    }

    /// Shows more of a block with pages, around byte `offset` of the snapshot. The caller holds the snapshot's lock.
    pub(super) fn show(&self, block: BlockId, offset: usize, wanted: Wanted) -> Result<(), SystemError> {
        let (pool, size) = (&self.addresses.pool, self.addresses.pool.block_size);
        let (sys, part_bytes, index) = (&pool.sys, part_bytes(size), size.count(offset));
        let (Some(Some(set)), Some(desk)) = (self.sets.get(index), &self.desk) else { return Ok(()) };
        let Some(part) = self.parts.get(offset / part_bytes) else { return Ok(()) };
        let before = part.load(Ordering::Relaxed);
        if before == SHOWN {
            return Ok(());
        }
        let is_first = before == HIDDEN && wanted == Wanted::More && sys.budget().fits(FIRST_MAPPINGS);
        let len = if is_first { first_bytes(part_bytes) } else { part_bytes };
        let start = offset - offset % len;
        let (from, room) = (size.within(start), desk.part(0, len));
        let shows = Shows::CowMapping { start: pool.offset(block) + from, access: Access::ReadWrite };
        sys.show(room, shows).map_err(|failure| failure.error)?;
        let mut copies = 0;
        for (at, page) in set.pages().skip_while(|(at, _)| *at < from).take_while(|(at, _)| *at < from + len) {
            // SAFETY: the target is a writable private mapping that no other thread knows, and nobody writes to the
            // source page.
            unsafe { sys.overwrite(desk.part(at - from, BASE_PAGE), page.as_ptr()) };
            copies += 1;
        }
        sys.protect(room, Access::Read)?;
        sys.bring_pages(self.addresses.part(&(start..start + len)), room)?;
        part.store(if is_first { copies as u32 + 1 } else { SHOWN }, Ordering::Relaxed);
        let mappings = |of_first: bool| if of_first { FIRST_MAPPINGS } else { 0 };
        self.addresses.recount(mappings(before != HIDDEN), mappings(is_first));
        let new = copies - before.saturating_sub(1) as usize;
        self.copies.fetch_add(new, Ordering::Relaxed);
        pool.pages_in_views.fetch_add(new, Ordering::Relaxed);
        Ok(())
    }

    /// Unmaps everything, as [`Addresses::close`].
    pub(super) fn close(&mut self) -> Result<(), SystemError> {
        let pool = self.addresses.pool.clone();
        pool.pages_in_views.fetch_sub(*self.copies.get_mut(), Ordering::Relaxed);
        // If the kernel refuses, the addresses stay taken.
        self.desk.take().map(|desk| pool.sys.release(desk));
        self.addresses.close()
    }
}

/// How much of a part the caller wants shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// As much as one more fault shows.
    More,
    All,
}
