//! A snapshot at an address: what is mapped there (view.rs), and who asks for it.

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
    /// Makes the bytes visible at an address the first time, and returns it. One caller at a time.
    ///
    /// `enter` is told the address before anybody else learns of it: a block may be taken away at once, and the fault
    /// of a read there must find its way here.
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
        // Dropped after the lock is released, since a drop may allocate.
        let unused = match shown {
            Ok(()) => {
                enter(base);
                self.view.set(view).err()
            }
            Err(_) => Some(view),
        };
        drop(alone);
        unused.map(|mut view| view.close());
        shown.map(|()| base)
    }

    /// Has the entries say which blocks have pages over them, notes these in `sets`, and counts the blocks. All others
    /// are kept out.
    fn note_cow_mappings(&self, sets: &mut EngineVec<Option<EngineArc<PageSet<S>>>>) -> usize {
        let mut with_pages = 0;
        // There is room for all or, without pages, for none.
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

    /// Shows more of what is hidden at byte `offset`. True if there was something, which another thread may have shown
    /// by now: the read is to be repeated. The fault handler calls this.
    pub(crate) fn show_more(&self, offset: usize) -> Result<bool, SystemError> {
        let Some(view) = self.view.get() else { return Ok(false) };
        self.show_part(view, offset, Wanted::More)
    }

    /// Shows everything that is hidden, for system calls. One that reads what is hidden fails with `EFAULT`.
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
            // It has become another block, or was taken away.
            Entry::Zero | Entry::Private(_) | Entry::Shared(..) | Entry::Lazy(_) | Entry::Split(_) | Entry::Revoked => {
                Ok(true)
            }
        }
    }

    /// Where the bytes are visible, if they are.
    pub(crate) fn view(&self) -> Option<usize> {
        self.view.get().map(|view| view.addresses.base())
    }

    /// How many mappings are counted.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn mappings(&self) -> usize {
        self.view.get().map_or(0, |view| view.addresses.mappings())
    }
}
