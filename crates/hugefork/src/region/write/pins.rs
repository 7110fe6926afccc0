//! Pins: blocks whose physical memory a device or the kernel uses without going through the page table.
//!
//! A pinned block is `Private` at every moment and stays where it is. Its pinned pages stay writable. Where a part of a
//! block can be protected, its other pages are write-protected while it is copied (private/quiesce.rs).
//!
//! | operation | effect on a pinned block |
//! |---|---|
//! | fork, snapshot | get a copy of it at once; the write-protection leaves the pinned pages out |
//! | reset | copies the snapshot's bytes into it; the write-protection leaves the pinned pages out |
//! | `lazy_free` | skips it: writes by the holder of a pin raise no fault that could cancel the lazy free |
//! | `discard` | sets it to zero where it is |
//! | reclaim, split, revocation | never meet one: they work only on `Lazy` blocks and those of the parent |
//! | drop of the region | leaks it if the program forgot the guard of the pin: no other holder gets the block |

use std::ops::Range;

use crate::region::state::RegionCore;
use crate::sys::{Merging, Sys};
use crate::table::transition::{OnPin, on_pin};
use crate::types::error::RegionError;
use crate::units::{BASE_PAGE, EntryIndex};

impl<S: Sys> RegionCore<S> {
    /// Makes the blocks that `range` touches writable and pins them. Pins all of them or none.
    pub(crate) fn pin(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.check(&range)?;
        let size = self.pool().block_size;
        let divides = self.pool().sys.merging() == Merging::Merge && size.bytes() > BASE_PAGE;
        self.pins.prepare(self.table.len(), if divides { size.bytes() / BASE_PAGE } else { 0 });
        for (nth, (index, pages)) in self.pages_in(&range).enumerate() {
            if let Err(error) = self.pin_block(index, pages) {
                self.unpin_first(nth, &range);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The blocks that `range` touches, each with its pages that `range` touches.
    fn pages_in(&self, range: &Range<usize>) -> impl Iterator<Item = (EntryIndex, Range<usize>)> {
        self.parts(range.clone()).map(|(index, part)| (index, part.start / BASE_PAGE..part.end.div_ceil(BASE_PAGE)))
    }

    fn pin_block(&self, index: EntryIndex, pages: Range<usize>) -> Result<(), RegionError> {
        loop {
            self.make_own(index)?;
            let held = self.lock_entry(index);
            match on_pin(self.table.get(index).state()).1 {
                OnPin::Count if self.pins.add(held.locked(), index, pages.clone()) => return Ok(()),
                OnPin::Count => return Err(RegionError::TooManyPins),
                // A snapshot has shared the block meanwhile. The loop tries again.
                OnPin::WriteFirst => {}
            }
        }
    }

    /// Takes a pin off the blocks that `range` touches.
    pub(crate) fn unpin(&self, range: &Range<usize>) {
        self.unpin_first(usize::MAX, range);
    }

    /// Takes a pin off the first `count` of the blocks that `range` touches.
    fn unpin_first(&self, count: usize, range: &Range<usize>) {
        for (index, pages) in self.pages_in(range).take(count) {
            self.pins.remove(self.lock_entry(index).locked(), index, pages);
        }
    }
}
