//! Keeps single blocks of a snapshot as they are while somebody reads them.
//!
//! The region takes a block away from a snapshot only to write to it, and writes to it only if nobody else holds it. So
//! another reference does: whoever wants the block back waits until it is given up, as for any holder that is just
//! going.

use super::core::SnapshotCore;
use crate::mem::EngineArc;
use crate::pool::page_set::PageSet;
use crate::sys::racing::PageBytes;
use crate::sys::{Access, Sys};
use crate::table::{Entry, Origin};
use crate::types::error::RegionError;
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// A block of a snapshot that nobody writes to while this lives. The program's signals are blocked meanwhile: one of
/// its handlers could wait for the block.
pub(crate) struct HeldBlock<'a, S: Sys> {
    frozen: &'a SnapshotCore<S>,
    block: BlockId,
    /// What the snapshot has in place of pages of the block.
    pages: Option<EngineArc<PageSet<S>>>,
}

impl<S: Sys> SnapshotCore<S> {
    /// Holds the block at `index`; `None` if that is zeros.
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
    /// Which block it is.
    pub(crate) fn id(&self) -> BlockId {
        self.block
    }

    /// The pages that the snapshot has in place of those of the block.
    pub(crate) fn pages(&self) -> Option<&PageSet<S>> {
        self.pages.as_deref()
    }

    /// The snapshot's page that begins at byte `at`.
    pub(crate) fn page(&self, at: usize) -> &PageBytes {
        self.page_in_place(at).unwrap_or_else(|| self.page_below(at))
    }

    /// The same, if it is not the block's.
    pub(crate) fn page_in_place(&self, at: usize) -> Option<&PageBytes> {
        let pages = self.pages()?;
        pages.slot_of(at / BASE_PAGE).map(|slot| pages.bytes(slot))
    }

    /// The block's page that begins at byte `at`.
    pub(crate) fn page_below(&self, at: usize) -> &PageBytes {
        self.below()[at..].first_chunk().expect("a page of the block")
    }

    /// The bytes of the block, some of which [`HeldBlock::pages`] are in place of.
    pub(crate) fn below(&self) -> &[u8] {
        let pool = self.frozen.pool();
        // SAFETY: the block lies in the direct map. The snapshot and this hold it, or held it until somebody took it
        // from the snapshot; nobody writes to a block that two hold, and the one who took it waits.
        unsafe { std::slice::from_raw_parts(pool.direct(self.block), pool.block_size.bytes()) }
    }
}

impl<S: Sys> Drop for HeldBlock<'_, S> {
    fn drop(&mut self) {
        if self.frozen.pool().release(self.block) {
            // All others have let go of it meanwhile, and took us for another holder.
            self.frozen.parent.freed(1);
        }
    }
}
