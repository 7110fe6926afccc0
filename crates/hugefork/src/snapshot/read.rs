//! Reads a snapshot without a mapping: block by block through the direct map.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use super::core::SnapshotCore;
use crate::sys::Sys;
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

/// Copies bytes that may change meanwhile: the caller finds that out afterwards and forgets the copy.
///
/// # Safety
/// `from` is valid for reads of `to.len()` bytes.
unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    const WORD: usize = size_of::<u64>();
    // Atomic loads, so that a race is no undefined behaviour: words where both ends allow, bytes elsewhere.
    let lead = from.align_offset(WORD).min(to.len());
    let (head, rest) = to.split_at_mut(lead);
    let byte = |at: usize| {
        // SAFETY: within `to.len()` bytes of `from`; an atomic byte needs no alignment.
        unsafe { AtomicU8::from_ptr(from.add(at).cast_mut()) }.load(Ordering::Relaxed)
    };
    head.iter_mut().enumerate().for_each(|(at, to)| *to = byte(at));
    let mut words = rest.chunks_exact_mut(WORD);
    let mut at = lead;
    for to in &mut words {
        // SAFETY: as above, and aligned by `lead`.
        let word = unsafe { AtomicU64::from_ptr(from.add(at).cast_mut().cast()) };
        to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        at += WORD;
    }
    words.into_remainder().iter_mut().enumerate().for_each(|(by, to)| *to = byte(at + by));
}
