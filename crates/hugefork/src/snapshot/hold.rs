//! Keeps single blocks of a snapshot unchanged while somebody reads them.
//!
//! A region takes a block away from a snapshot only in order to write to it, and writes only once nobody else holds the
//! block. So the reader takes a reference of its own. A region that wants the block back then waits until the reader
//! gives the reference up, as it does for any holder that is about to go.

use super::core::SnapshotCore;
use crate::mem::EngineArc;
use crate::pool::page_set::PageSet;
use crate::sys::racing::PageBytes;
use crate::sys::{Access, Sys};
use crate::table::{Entry, Origin};
use crate::types::error::RegionError;
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// A block of a snapshot that nobody writes to while this value lives. The program's signals are blocked meanwhile,
/// because a signal handler could wait for this block.
pub(crate) struct HeldBlock<'a, S: Sys> {
    frozen: &'a SnapshotCore<S>,
    pub(crate) block: BlockId,
    /// The snapshot's pages that replace pages of the block.
    pages: Option<EngineArc<PageSet<S>>>,
}

impl<S: Sys> SnapshotCore<S> {
    /// Holds the block at `index`; `None` if the snapshot has zeros there.
    pub(crate) fn hold(&self, index: EntryIndex) -> Result<Option<HeldBlock<'_, S>>, RegionError> {
        let _looking = self.lock.shared();
        match self.entries.get(index) {
            Entry::Zero => Ok(None),
            Entry::Shared(block, Origin::Parent) | Entry::CowMapped(block, Origin::Parent, Access::Read) => {
                self.pool().frames.add_reference(block);
                Ok(Some(HeldBlock { frozen: self, block, pages: self.pages_at(index) }))
            }
            Entry::Revoked => Err(RegionError::Revoked),
            Entry::Private(_)
            | Entry::Shared(_, Origin::Own)
            | Entry::Lazy(_)
            | Entry::Split(_)
            | Entry::CowMapped(..) => unreachable!("a snapshot's blocks are its parent's"),
        }
    }
}

impl<S: Sys> HeldBlock<'_, S> {
    /// The snapshot's pages that replace pages of the block.
    pub(crate) fn pages(&self) -> Option<&PageSet<S>> {
        self.pages.as_deref()
    }

    /// The snapshot's page that begins at byte `at`.
    pub(crate) fn page(&self, at: usize) -> &PageBytes {
        self.page_in_place(at).unwrap_or_else(|| self.page_below(at))
    }

    /// The snapshot's page that begins at byte `at`, if it replaces the block's.
    pub(crate) fn page_in_place(&self, at: usize) -> Option<&PageBytes> {
        let pages = self.pages()?;
        pages.slot_of(at / BASE_PAGE).map(|slot| pages.bytes(slot))
    }

    /// The block's page that begins at byte `at`.
    pub(crate) fn page_below(&self, at: usize) -> &PageBytes {
        self.below()[at..].first_chunk().expect("a page of the block")
    }

    /// The bytes of the block. [`HeldBlock::pages`] replaces some of them.
    pub(crate) fn below(&self) -> &[u8] {
        let pool = self.frozen.pool();
        // SAFETY: the block lies in the direct map. The snapshot and this guard each hold it, or both held it until a
        // region took it from the snapshot. Nobody writes to a block with two holders, and the region that took it
        // waits for this guard.
        unsafe { std::slice::from_raw_parts(pool.direct(self.block), pool.block_size.bytes()) }
    }
}

impl<S: Sys> Drop for HeldBlock<'_, S> {
    fn drop(&mut self) {
        if self.frozen.pool().release(self.block) {
            // All other holders have let go of it meanwhile, and counted this guard as a remaining holder.
            self.frozen.parent.account.freed(1);
        }
    }
}
