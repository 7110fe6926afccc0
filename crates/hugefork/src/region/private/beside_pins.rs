//! Pages beside pinned ones. A pinned block stays writable while it is copied for a snapshot, or gets the bytes of one
//! in a reset; but only its pinned pages have to. The others are closed meanwhile, as all other memory of the region
//! is: a thread that writes there waits, and the cut is one moment for all pages that are not pinned. Where all else
//! is parked so that system calls wait, these pages are, too.
//!
//! A block says `Private` meanwhile. If the kernel refuses to give the right to write back, the pins note that, and
//! the next thread at such a block tries again.

use std::ops::Range;

use crate::mapping::change::Recount;
use crate::region::state::{RegionCore, Unresolved};
use crate::sys::{Access, Sys};
use crate::table::Locked;
use crate::units::{BASE_PAGE, EntryIndex};

/// The mappings that a run of pages adds at most which others surround.
const MAPPINGS_OF_A_RUN: usize = 2;

impl<S: Sys> RegionCore<S> {
    /// The runs of pages beside pinned ones, in bytes. The caller holds a lock that keeps pins as they are.
    fn beside_pins(&self, entries: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        self.pins.pinned(entries).filter(|_| !seeded!("stays-open-beside-pins")).flat_map(|index| {
            let start = self.pool().block_size.len_of(index.0);
            let bytes = move |pages: Range<usize>| start + pages.start * BASE_PAGE..start + pages.end * BASE_PAGE;
            self.pins.pages_beside(index).map(bytes)
        })
    }

    /// Threads that use these pages wait then, in system calls too. False if that cannot be done; then none is parked.
    pub(super) fn park_beside_pins(&self, locked: Locked<'_>, entries: Range<usize>) -> bool {
        let (site, runs) = (self.site(), self.beside_pins(entries.clone()).count());
        // Those of the run, here and in the parking.
        if !self.pool().sys.budget().fits(2 * MAPPINGS_OF_A_RUN * runs) {
            return false;
        }
        let parked = self.beside_pins(entries.clone()).take_while(|bytes| site.park(locked, bytes)).count();
        if parked < runs {
            self.beside_pins(entries).take(parked).for_each(|bytes| site.unpark(locked, &bytes));
        }
        parked == runs
    }

    /// Shows them where they belong. Their waiting threads are woken with all others.
    pub(super) fn unpark_beside_pins(&self, locked: Locked<'_>, entries: Range<usize>) {
        self.beside_pins(entries).for_each(|bytes| self.site().unpark(locked, &bytes));
    }

    /// Takes the right to write away from these pages. The mappings that come from it are counted until all are counted
    /// anew.
    pub(super) fn protect_beside_pins(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
        self.beside_pins(entries).try_for_each(|bytes| {
            let closed = self.site().reprotect(locked, bytes, Access::Read)?;
            Ok(closed.published(Recount { before: 0, after: MAPPINGS_OF_A_RUN })?)
        })
    }

    /// Gives the right back.
    pub(super) fn allow_beside_pins(&self, locked: Locked<'_>, entries: Range<usize>) {
        for index in self.pins.pinned(entries) {
            if self.allow_all(locked, index).is_err() && self.allow_all(locked, index).is_err() {
                self.pins.note_lack_of_right();
            }
        }
    }

    /// Sees to it that a block can be written to that is `Private`: pages beside pinned ones may have been left without
    /// the right.
    pub(in crate::region) fn see_to_right(&self, locked: Locked<'_>, index: EntryIndex) -> Result<(), Unresolved> {
        if self.pins.may_lack_right() { self.allow_all(locked, index) } else { Ok(()) }
    }

    fn allow_all(&self, locked: Locked<'_>, index: EntryIndex) -> Result<(), Unresolved> {
        let block = self.bytes_of(&(index.0..index.0 + 1));
        Ok(self.site().reprotect(locked, block, Access::ReadWrite)?.published(Recount::default())?)
    }
}
