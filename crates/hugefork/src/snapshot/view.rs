//! The bytes of a snapshot at an address.

use super::core::SnapshotCore;
use crate::mapping::addresses::Addresses;
use crate::mapping::edges::Shown;
use crate::ranges::runs;
use crate::sync::SignalsBlocked;
use crate::sys::{Access, Sys};
use crate::table::{Entry, Origin};
use crate::types::error::RegionError;
use crate::units::{BASE_PAGE, EntryIndex};

impl<S: Sys> SnapshotCore<S> {
    /// Makes the bytes visible at an address the first time, and returns it. One caller at a time.
    ///
    /// `enter` is told the address before anybody else learns of it: a block may be taken away at once, and the fault
    /// of a read there must find its way here.
    pub(crate) fn map(&self, enter: impl FnOnce(usize)) -> Result<usize, RegionError> {
        if let Some(view) = self.view.get() {
            return Ok(view.base());
        }
        self.check()?;
        let mappings = Shown::of_snapshot(self.pool(), &self.entries).runs().count() + 2 * self.blocks_with_pages();
        let addresses = Addresses::claim(self.pool(), self.len(), mappings)?;
        let base = addresses.base();
        let _signals = SignalsBlocked::new();
        let alone = self.lock.exclusive();
        self.note_cow_mappings();
        let shown = self.check().and_then(|()| self.show(&addresses));
        // Dropped after the lock is released, since a drop may allocate.
        let unused = match shown {
            Ok(()) => {
                enter(base);
                self.view.set(addresses).err()
            }
            Err(_) => Some(addresses),
        };
        drop(alone);
        drop(unused);
        shown.map(|()| base)
    }

    /// Shows blocks that have pages over them through private mappings, and the pages there. All others are kept out.
    fn show(&self, addresses: &Addresses<S>) -> Result<(), RegionError> {
        addresses.show_frozen(&self.entries)?;
        let (sys, size) = (&self.pool().sys, self.pool().block_size);
        let is_cow_mapping = |index: usize| self.entries.get(EntryIndex(index)).is_cow_mapping();
        for run in runs(0..self.entries.len(), is_cow_mapping) {
            for index in run.clone() {
                let Some(pages) = self.pages_at(EntryIndex(index)) else { continue };
                for (at, page) in pages.pages() {
                    let start = size.len_of(index) + at;
                    let part = addresses.part(&(start..start + BASE_PAGE));
                    // SAFETY: a CoW mapping that can be written to, of which nobody knows yet; and a page that nobody
                    // writes.
                    unsafe { sys.overwrite(part, page.as_ptr()) };
                }
            }
            sys.protect(addresses.part(&(size.len_of(run.start)..size.len_of(run.end))), Access::Read)?;
        }
        let mappings = 1 + Shown::of_snapshot(self.pool(), &self.entries).edges(0..self.entries.len());
        addresses.recount(addresses.mappings(), mappings);
        Ok(())
    }

    /// Has the entries say which blocks are shown through private mappings. All others are kept out.
    fn note_cow_mappings(&self) {
        for index in (0..self.entries.len()).map(EntryIndex) {
            if let Some(block) = self.entries.get(index).block().filter(|_| self.pages_at(index).is_some()) {
                self.entries.set(index, Entry::CowMapped(block, Origin::Parent, Access::Read));
            }
        }
    }

    /// Where the bytes are visible, if they are.
    pub(crate) fn view(&self) -> Option<usize> {
        self.view.get().map(Addresses::base)
    }

    /// How many mappings are counted.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn mappings(&self) -> usize {
        self.view.get().map_or(0, Addresses::mappings)
    }
}
