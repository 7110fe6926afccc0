//! Pages beside pinned ones. While a snapshot copies a pinned block, or a reset writes to it, only its pinned pages
//! have to stay writable. The other pages are closed to writers, like all other memory of the region: a thread that
//! writes there waits, so the cut is one moment for all pages that are not pinned. If the rest of the region is parked,
//! so that system calls wait too, these pages are parked as well.
//!
//! The block stays `Private` meanwhile. If the kernel refuses to make the pages writable again, the pins note that, and
//! the next thread that needs such a block writable tries again.

use std::ops::Range;

use crate::mapping::change::Recount;
use crate::region::state::{RegionCore, Unresolved};
use crate::sys::{Access, Sys};
use crate::table::Locked;
use crate::units::{BASE_PAGE, EntryIndex};

/// The most mappings that a run of pages adds when its access differs from that of the pages on both sides.
const MAPPINGS_OF_A_RUN: usize = 2;

impl<S: Sys> RegionCore<S> {
    /// The runs of pages beside pinned ones, in bytes. The caller holds a lock that keeps the pins as they are.
    fn beside_pins(&self, entries: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        self.pins.pinned(entries).filter(|_| !seeded!("stays-open-beside-pins")).flat_map(|index| {
            let start = self.pool().block_size.len_of(index.0);
            let bytes = move |pages: Range<usize>| start + pages.start * BASE_PAGE..start + pages.end * BASE_PAGE;
            self.pins.pages_beside(index).map(bytes)
        })
    }

    /// Parks these pages, so that threads and system calls that use them wait. False if that cannot be done; then none
    /// is parked.
    pub(super) fn park_beside_pins(&self, locked: Locked<'_>, entries: Range<usize>) -> bool {
        let (site, runs) = (self.site(), self.beside_pins(entries.clone()).count());
        // The mappings of all runs, here and in the parking.
        if !self.pool().sys.budget().fits(2 * MAPPINGS_OF_A_RUN * runs) {
            return false;
        }
        let parked = self.beside_pins(entries.clone()).take_while(|bytes| site.park(locked, bytes)).count();
        if parked < runs {
            self.beside_pins(entries).take(parked).for_each(|bytes| site.unpark(locked, &bytes));
        }
        parked == runs
    }

    /// Moves these pages back to the region's own addresses. The threads that wait for them are woken with all others.
    pub(super) fn unpark_beside_pins(&self, locked: Locked<'_>, entries: Range<usize>) {
        self.beside_pins(entries).for_each(|bytes| self.site().unpark(locked, &bytes));
    }

    /// Makes these pages read-only. The mappings that this adds stay counted until the caller counts all mappings anew.
    pub(super) fn protect_beside_pins(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
        self.beside_pins(entries).try_for_each(|bytes| {
            let closed = self.site().reprotect(locked, bytes, Access::Read)?;
            Ok(closed.published(Recount { before: 0, after: MAPPINGS_OF_A_RUN })?)
        })
    }

    /// Makes these pages writable again.
    pub(super) fn allow_beside_pins(&self, locked: Locked<'_>, entries: Range<usize>) {
        for index in self.pins.pinned(entries) {
            if self.allow_all(locked, index).is_err() && self.allow_all(locked, index).is_err() {
                self.pins.note_lack_of_right();
            }
        }
    }

    /// Makes sure that a `Private` block is writable: after a failure, its pages beside pinned ones may be read-only.
    pub(in crate::region) fn see_to_right(&self, locked: Locked<'_>, index: EntryIndex) -> Result<(), Unresolved> {
        if self.pins.may_lack_right() { self.allow_all(locked, index) } else { Ok(()) }
    }

    fn allow_all(&self, locked: Locked<'_>, index: EntryIndex) -> Result<(), Unresolved> {
        let block = self.bytes_of(&(index.0..index.0 + 1));
        Ok(self.site().reprotect(locked, block, Access::ReadWrite)?.published(Recount::default())?)
    }
}
