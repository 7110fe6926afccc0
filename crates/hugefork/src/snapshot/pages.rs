//! A snapshot's pages over blocks that others hold too (pool/page_set.rs).
//!
//! Such a snapshot shares the block and stores only the written pages, so it costs these pages. It gets a block of
//! its own in place of both (`complete`) when a caller needs the block whole: to reserve the snapshot, or for a fork or
//! reset that cannot work with pages. Reads by address go through a private mapping of the block, which gets copies of
//! the pages on the first read (view.rs). Other processes get the places of both (export.rs).

use std::hint::black_box;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::core::SnapshotCore;
use crate::mapping::change::Refused;
use crate::mem::{EngineArc, EngineVec, Own};
use crate::pool::core::Shortage;
use crate::pool::frames::Frames;
use crate::pool::holders::SetHolder;
use crate::pool::page_set::PageSet;
use crate::pool::unheld::UNHELD;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::table::{Entry, Locked, Origin, Reserved};
use crate::types::error::RegionError;
use crate::units::{BlockId, EntryIndex};

/// The contents of a snapshot or region at one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) entry: Entry,
    /// The set over the block, named by its address. A reference to the set instead might be the last one, and dropping
    /// it is not allowed under every lock that callers hold. If a snapshot has the same set before and after a
    /// comparison, it had the set in between.
    pub(super) pages: Option<usize>,
}

impl Contents {
    /// The contents made of an entry and the set over its block.
    pub(crate) fn of<S: Sys>(entry: Entry, set: Option<&PageSet<S>>) -> Contents {
        Contents { entry, pages: set.map(|set| ptr::from_ref(set).addr()) }
    }
}

/// The page sets of a snapshot, one place for each block. The caller blocks the program's signals while it uses them: a
/// signal handler could wait for the snapshot's lock, whose holder uses the sets too.
pub(super) type PageSets<S> = EngineVec<Option<EngineArc<PageSet<S>>>>;

impl<S: Sys> SnapshotCore<S> {
    /// Makes room for the pages of all blocks. Allocates; only the caller may know of the snapshot yet.
    pub(crate) fn make_room_for_pages(&self) {
        let mut sets = EngineVec::new_in(Own);
        sets.resize_with(self.entries.len(), || None);
        let _ = self.pages.set(Mutex::new(sets));
    }

    /// The page sets, if there is room for any.
    fn sets(&self) -> Option<MutexGuard<'_, PageSets<S>>> {
        Some(self.pages.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Drops all sets.
    pub(super) fn give_up_pages(&mut self) {
        let Some(mut pages) = self.pages.take() else { return };
        let sets = pages.get_mut().unwrap_or_else(PoisonError::into_inner);
        // First reads the count of owners of each set. The counts lie all over the heap: the processor fetches several
        // at once for reads, but only one at a time for the subtractions that follow.
        black_box(sets.iter().flatten().map(EngineArc::owners).sum::<usize>());
        drop(pages);
        self.pool().unheld.note();
    }

    /// Stores the pages over the block at `index`, or none. The snapshot is still being filled and has room for them.
    pub(crate) fn set_pages(&self, index: EntryIndex, set: Option<EngineArc<PageSet<S>>>) {
        if let Some(mut sets) = self.sets() {
            sets[index.0] = set;
        }
    }

    /// The entry at `index`, and the pages over its block.
    pub(super) fn contents(&self, index: EntryIndex) -> Contents {
        if !self.has_room_for_pages() {
            return Contents::of::<S>(self.entries.get(index), None);
        }
        let _signals = SignalsBlocked::new();
        let _looking = self.lock.shared();
        let sets = self.sets();
        Contents::of(self.entries.get(index), sets.as_ref().and_then(|sets| sets[index.0].as_deref()))
    }

    /// The pages over the block at `index`.
    pub(crate) fn pages_at(&self, index: EntryIndex) -> Option<EngineArc<PageSet<S>>> {
        let _signals = self.has_room_for_pages().then(SignalsBlocked::new)?;
        self.set_over(index)
    }

    /// As [`SnapshotCore::pages_at`], for a caller that has blocked the program's signals.
    pub(crate) fn set_over(&self, index: EntryIndex) -> Option<EngineArc<PageSet<S>>> {
        self.sets()?[index.0].clone()
    }

    /// Replaces each block with pages over it by a block of its own.
    pub(crate) fn complete(&self) -> Result<(), RegionError> {
        for index in (0..self.entries.len()).map(EntryIndex) {
            while self.pages_at(index).is_some() {
                match self.try_to_complete(index)? {
                    Ok(()) => {}
                    Err(Shortage::Memory(source)) => {
                        return Err(RegionError::OutOfMemory { pool: self.pool().name.clone(), source });
                    }
                    Err(Shortage::Blocks) if self.pool().make_room() => {}
                    Err(Shortage::Blocks) => return Err(self.pool().full()),
                }
            }
        }
        Ok(())
    }

    /// Copies the block and the pages over it into a new block, and swaps that in unless another thread was faster.
    fn try_to_complete(&self, index: EntryIndex) -> Result<Result<(), Shortage>, RegionError> {
        let (pool, _signals) = (self.pool(), SignalsBlocked::new());
        let Some(held) = self.hold(index)? else { return Ok(Ok(())) };
        let Some(set) = held.pages() else { return Ok(Ok(())) };
        let base = held.block;
        let own = match pool.copy_of(base, Reserved::No) {
            Ok(own) => own,
            Err(shortage) => return Ok(Err(shortage)),
        };
        for (at, page) in set.pages() {
            // SAFETY: `own` is ours alone, and the page lies in it.
            unsafe { pool.direct(own).add(at).copy_from_nonoverlapping(page.as_ptr(), page.len()) };
        }
        let exchanged = self.exchange(index, base, own);
        let unused = if matches!(exchanged, Ok(Some(_))) { base } else { own };
        self.parent.account.freed(usize::from(pool.release(unused)));
        let error = |refused| match refused {
            Refused::Call(error) => RegionError::System(error),
            Refused::TooManyMappings => RegionError::too_many_mappings(2, pool.sys.budget()),
        };
        drop((held, exchanged.map_err(error)?));
        // No lock is held.
        pool.unheld.note();
        Ok(Ok(()))
    }

    /// Stores `own` in place of `base` and the pages over it, and returns these pages; `None` if another thread was
    /// faster.
    fn exchange(
        &self,
        index: EntryIndex,
        base: BlockId,
        own: BlockId,
    ) -> Result<Option<EngineArc<PageSet<S>>>, Refused> {
        let alone = self.lock.exclusive();
        let Some(mut pages) = self.sets() else { return Ok(None) };
        if self.entries.get(index).block() != Some(base) || pages[index.0].is_none() {
            return Ok(None);
        }
        self.store(Locked::alone(&alone), index, Entry::Shared(own, Origin::Parent), || {})?;
        self.note_own(index);
        self.parent.account.left();
        Ok(pages[index.0].take())
    }

    /// Whether any block has pages over it.
    pub(crate) fn has_pages(&self) -> bool {
        self.blocks_with_pages() > 0
    }

    /// How many blocks have pages over them.
    pub(super) fn blocks_with_pages(&self) -> usize {
        let _signals = self.has_room_for_pages().then(SignalsBlocked::new);
        self.sets().map_or(0, |sets| sets.iter().flatten().count())
    }

    /// Whether there is room for pages: without it, no block has any.
    pub(crate) fn has_room_for_pages(&self) -> bool {
        self.pages.get().is_some()
    }
}

impl<S: Sys> SetHolder for SnapshotCore<S> {
    /// Drops the sets over blocks that were taken away. Moves pages over a block into the block itself where nobody
    /// else holds it any more: they then take no memory of their own. The pages of an export stay where its list says.
    fn drop_sets(&self, wanted: u32, frames: &Frames) -> bool {
        let has_some = wanted & UNHELD != 0 && self.has_room_for_pages();
        for index in (0..if has_some { self.entries.len() } else { 0 }).map(EntryIndex) {
            let alone = self.lock.exclusive();
            let (mut sets, entry) = (self.sets(), self.entries.get(index));
            let Some(set) = sets.as_mut().and_then(|sets| sets[index.0].as_ref()) else { continue };
            if let Some(block) = entry.block() {
                // Other processes, which an irrevocable snapshot is for, read the slots of its pages.
                // A new holder takes its reference under this lock, so the count cannot rise meanwhile.
                let is_shared = frames.references(block) != 1 && !seeded!("pages-moved-into-a-block-of-two");
                if is_shared || self.is_irrevocable() {
                    continue;
                }
                for (at, page) in set.pages() {
                    // SAFETY: the page lies in the block. Readers hold a block while they read it, so there is none
                    // now. Where the snapshot's addresses show the block, copies of the set's pages cover what is
                    // written.
                    unsafe { self.pool().direct(block).add(at).copy_from_nonoverlapping(page.as_ptr(), page.len()) };
                }
            } else if entry != Entry::Revoked {
                continue;
            }
            let useless = sets.as_mut().and_then(|sets| sets[index.0].take());
            drop((sets, alone));
            drop(useless);
        }
        true
    }
}
