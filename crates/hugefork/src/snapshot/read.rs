//! Reads a snapshot without a mapping: block by block through the direct map.

use std::sync::atomic::{Ordering, fence};

use super::core::SnapshotCore;
use crate::sys::Sys;
use crate::sys::racing::copy_out;
use crate::table::Entry;
use crate::terms::error::RegionError;
use crate::units::EntryIndex;

impl<S: Sys> SnapshotCore<S> {
    /// Copies bytes out, through the direct map. `offset + to.len()` is at most [`SnapshotCore::len`].
    pub(crate) fn read(&self, mut offset: usize, mut to: &mut [u8]) -> Result<(), RegionError> {
        let size = self.pool().block_size;
        while !to.is_empty() {
            let start = size.within(offset);
            let (now, rest) = to.split_at_mut(to.len().min(size.bytes() - start));
            let index = EntryIndex(size.count(offset));
            loop {
                match self.entries.get(index) {
                    Entry::Zero => {
                        now.fill(0);
                        break;
                    }
                    Entry::Borrowed(block) => {
                        // SAFETY: `start + now.len()` is within the block, which lies in the direct map.
                        unsafe { copy_out(self.pool().direct(block).add(start), now) };
                        // The block may have been taken away or exchanged for a copy meanwhile, and then written to.
                        fence(Ordering::Acquire);
                        if self.entries.get(index) == Entry::Borrowed(block) {
                            break;
                        }
                    }
                    Entry::Revoked => return Err(RegionError::Revoked),
                    Entry::Private(_)
                    | Entry::Shared(_)
                    | Entry::Lazy(_)
                    | Entry::Split(_)
                    | Entry::Overlaid(..)
                    | Entry::Sealed(..) => {
                        unreachable!("a snapshot's blocks are borrowed")
                    }
                }
            }
            offset += now.len();
            to = rest;
        }
        Ok(())
    }
}
