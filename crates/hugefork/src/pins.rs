//! Pins: blocks whose physical memory somebody uses behind the page table's back.
//!
//! A pinned block is its region's alone and stays where it is: a snapshot gets a copy of it at once instead of sharing it, and
//! it is neither split nor reclaimed. What a pin's holder writes there no fault sees, so a pin counts as a write: a block
//! that was lazily freed while it was pinned is not lazily freed any more when the last pin goes.

use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::RegionError;
use crate::own::{self, Boxed};
use crate::region::Region;
use crate::space::Space;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::table::Entry;
use crate::units::EntryIndex;

/// How often each block of a region is pinned: one byte each, got at the first pin. A count changes under its window's
/// lock and the region lock.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    counts: OnceLock<Boxed<[AtomicU8]>>,
}

impl Pins {
    /// Whether any block was ever pinned.
    pub(crate) fn are_used(&self) -> bool {
        self.counts.get().is_some()
    }

    /// Whether the block at `index` is pinned.
    pub(crate) fn has(&self, index: EntryIndex) -> bool {
        self.counts.get().is_some_and(|counts| counts[index.0].load(Ordering::Relaxed) > 0)
    }

    /// Bytes that the counts take.
    pub(crate) fn bytes(&self) -> usize {
        self.counts.get().map_or(0, |counts| counts.len())
    }
}

impl<S: Sys> Space<S> {
    /// Makes the blocks that `range` touches writable and pins them. All or none.
    pub(crate) fn pin(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.check(&range)?;
        let entries = self.touched(&range);
        self.pins.counts.get_or_init(|| own::zeroed(self.table.len()));
        for index in entries.clone() {
            if let Err(error) = self.pin_block(EntryIndex(index)) {
                self.unpin_entries(entries.start..index);
                return Err(error);
            }
        }
        Ok(())
    }

    fn pin_block(&self, index: EntryIndex) -> Result<(), RegionError> {
        loop {
            self.make_writable_patiently(index)?;
            let _signals = SignalsBlocked::new();
            let _window = self.table.lock(index);
            let _publishing = self.lock.shared();
            // A snapshot may have shared it meanwhile: then once more.
            if let (Entry::Private(_), Some(counts)) = (self.table.get(index), self.pins.counts.get()) {
                let count = &counts[index.0];
                let more = count.load(Ordering::Relaxed).checked_add(1);
                count.store(more.ok_or(RegionError::TooManyPins)?, Ordering::Relaxed);
                return Ok(());
            }
        }
    }

    pub(crate) fn unpin(&self, range: &Range<usize>) {
        self.unpin_entries(self.touched(range));
    }

    fn unpin_entries(&self, entries: Range<usize>) {
        let Some(counts) = self.pins.counts.get() else { return };
        for index in entries.map(EntryIndex) {
            let _signals = SignalsBlocked::new();
            let _window = self.table.lock(index);
            let _publishing = self.lock.shared();
            let left = counts[index.0].load(Ordering::Relaxed).saturating_sub(1);
            counts[index.0].store(left, Ordering::Relaxed);
            if let (0, Entry::Lazy(block)) = (left, self.table.get(index)) {
                // Readable as before, and kept.
                self.replace(index, Entry::Shared(block));
            }
        }
    }
}

/// Blocks of a region that stay where they are until this is dropped, see [`Region::pin`].
#[must_use = "the range is pinned until this is dropped"]
pub struct Pinned<'a> {
    region: &'a Region,
    range: Range<usize>,
}

impl<'a> Pinned<'a> {
    pub(crate) fn new(region: &'a Region, range: Range<usize>) -> Pinned<'a> {
        Pinned { region, range }
    }

    /// The bytes asked for; the blocks that they touch are pinned as a whole.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The first of them: good for reading, writing and physical use while this lives. While a fork or snapshot is being taken
    /// writes through the page table wait, and a system call that writes there may fail with `EFAULT`: call it again. The
    /// same holds after [`Region::lazy_free`] of the block, until it is written to.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.region.as_mut_ptr().wrapping_add(self.range.start)
    }
}

impl fmt::Debug for Pinned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("range", &self.range).finish_non_exhaustive()
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.region.unpin(&self.range);
    }
}
