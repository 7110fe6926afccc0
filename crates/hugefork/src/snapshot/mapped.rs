//! Gives a snapshot an address (view.rs has the mappings) and shows more of it on request.

use std::sync::atomic::Ordering;

use super::core::SnapshotCore;
use super::view::{View, Wanted, part_bytes};
use crate::mem::{EngineArc, EngineVec};
use crate::pool::page_set::PageSet;
use crate::sync::SignalsBlocked;
use crate::sys::{Access, Sys, SystemError};
use crate::table::{Entry, Origin};
use crate::types::error::RegionError;
use crate::units::EntryIndex;

impl<S: Sys> SnapshotCore<S> {
    /// Makes the bytes visible at an address the first time, and returns the address. One caller at a time.
    ///
    /// Calls `enter` with the address before any other thread learns it: a region may take a block away at once, and
    /// the fault of a read there must find this snapshot.
    pub(crate) fn map(&self, enter: impl FnOnce(usize)) -> Result<usize, RegionError> {
        if let Some(view) = self.view.get() {
            return Ok(view.addresses.base());
        }
        self.check()?;
        let mut view = View::claim(self.pool(), &self.entries, self.blocks_with_pages())?;
        let base = view.addresses.base();
        let _signals = SignalsBlocked::new();
        let alone = self.lock.exclusive();
        let with_pages = self.note_cow_mappings(&mut view.sets);
        let shown = self.check().and_then(|()| Ok(view.show_frozen(&self.entries, with_pages)?));
        if let Err(error) = shown {
            // The view is closed after the lock is released, since a drop may allocate.
            drop(alone);
            let _ = view.close();
            return Err(error);
        }
        enter(base);
        let _ = self.view.set(view);
        Ok(base)
    }

    /// Sets the entries of blocks with pages to `CowMapped`, stores these pages in `sets`, and returns how many blocks
    /// they are. The caller holds the snapshot's lock alone.
    fn note_cow_mappings(&self, sets: &mut EngineVec<Option<EngineArc<PageSet<S>>>>) -> usize {
        let mut with_pages = 0;
        // `sets` has room for all entries or, if no block has pages, for none.
        for index in (0..self.entries.len().min(sets.capacity())).map(EntryIndex) {
            let block = self.entries.get(index).block();
            let set = block.and_then(|block| Some((block, self.set_over(index)?)));
            if let Some((block, _)) = set {
                self.entries.set(index, Entry::CowMapped(block, Origin::Parent, Access::Read));
                with_pages += 1;
            }
            sets.push(set.map(|(_, set)| set));
        }
        with_pages
    }

    /// Shows more of the block at byte `offset`, for the fault handler. True if the block has hidden pages, or had
    /// until another thread showed them: the thread then repeats its read.
    pub(crate) fn show_more(&self, offset: usize) -> Result<bool, SystemError> {
        let Some(view) = self.view.get() else { return Ok(false) };
        self.show_part(view, offset, Wanted::More)
    }

    /// Shows every hidden page, for system calls: a call that reads a hidden page fails with `EFAULT`.
    pub(crate) fn show_all(&self) -> Result<(), RegionError> {
        let Some(view) = self.view.get() else { return Ok(()) };
        if view.is_whole.load(Ordering::Acquire) {
            return Ok(());
        }
        let _signals = SignalsBlocked::new();
        for offset in (0..self.len()).step_by(part_bytes(self.pool().block_size)) {
            self.show_part(view, offset, Wanted::All)?;
        }
        view.is_whole.store(true, Ordering::Release);
        self.check()
    }

    fn show_part(&self, view: &View<S>, offset: usize, wanted: Wanted) -> Result<bool, SystemError> {
        let index = EntryIndex(self.pool().block_size.count(offset));
        if !view.has_pages(index) {
            return Ok(false);
        }
        let _alone = self.lock.exclusive();
        match self.entries.get(index) {
            Entry::CowMapped(block, ..) => view.show(block, offset, wanted).map(|()| true),
            // The entry has another block by now, or none: the block was taken away.
            Entry::Zero | Entry::Private(_) | Entry::Shared(..) | Entry::Lazy(_) | Entry::Split(_) | Entry::Revoked => {
                Ok(true)
            }
        }
    }

    /// The address at which the bytes are visible, if they are.
    pub(crate) fn view(&self) -> Option<usize> {
        self.view.get().map(|view| view.addresses.base())
    }

    /// How many mappings are charged for the view.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn mappings(&self) -> usize {
        self.view.get().map_or(0, |view| view.addresses.mappings())
    }
}
