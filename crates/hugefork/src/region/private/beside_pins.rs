//! Pages beside pinned ones. A pinned block stays writable while it is copied for a snapshot, or gets the bytes of one
//! in a reset; but only its pinned pages have to. The others are closed meanwhile, as all other memory of the region
//! is: so a thread that writes there waits, and the cut is one moment for all pages that are not pinned.
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
    /// Takes the right to write away from the pages beside pinned ones. The mappings that come from it are counted
    /// until all are counted anew.
    pub(super) fn close_beside_pins(&self, locked: Locked<'_>, entries: Range<usize>) -> Result<(), Unresolved> {
        self.pins.pinned(entries).try_for_each(|index| {
            let start = self.pool().block_size.len_of(index.0);
            self.pins.pages_beside(index).try_for_each(|pages| {
                let bytes = start + pages.start * BASE_PAGE..start + pages.end * BASE_PAGE;
                let closed = self.site().reprotect(locked, bytes, Access::Read)?;
                Ok(closed.published(Recount { before: 0, after: MAPPINGS_OF_A_RUN })?)
            })
        })
    }

    /// Gives the right back.
    pub(super) fn open_beside_pins(&self, locked: Locked<'_>, entries: Range<usize>) {
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
