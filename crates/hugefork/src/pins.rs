//! Pins: blocks whose physical memory somebody uses behind the page table's back.
//!
//! A pinned block is its region's alone, `Private`, and stays where it is, writable, at every moment:
//!
//! | operation | what becomes of a pinned block |
//! |---|---|
//! | fork, snapshot | get a copy of it at once instead of sharing it; the write-protection leaves it out |
//! | `lazy_free` | skips it: what a pin's holder writes no fault sees, so a pin is a write that goes on |
//! | `discard` | sets it to zero where it is |
//! | reclaim, splitting, revocation | never meet one: those are for blocks that are `Lazy` or `Borrowed` |
//! | drop of the region | leaks it, if the guard was forgotten and so never ends: nobody is given the block again |

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

    /// The first of these blocks that is pinned.
    pub(crate) fn first_in(&self, mut entries: Range<usize>) -> Option<usize> {
        let counts = self.counts.get()?;
        entries.find(|&index| counts[index].load(Ordering::Relaxed) > 0)
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

    /// Does `each` for the runs of `entries` that are not pinned. Under a lock that keeps pins as they are.
    pub(crate) fn without_pinned<E>(
        &self,
        entries: Range<usize>,
        mut each: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.pins.are_used() {
            return each(entries);
        }
        let mut next = entries.start;
        while let Some(start) = (next..entries.end).find(|&index| !self.pins.has(EntryIndex(index))) {
            next = self.pins.first_in(start..entries.end).unwrap_or(entries.end);
            each(start..next)?;
        }
        Ok(())
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

    /// The first of them: good for reading, writing, system calls and physical use while this lives, also while a fork or
    /// snapshot is being taken.
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
