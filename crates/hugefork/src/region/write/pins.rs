//! Pins: blocks whose physical memory somebody uses without going through the page table.
//!
//! A pinned block is `Private` to its region at every moment: it stays where it is, and it stays writable.
//!
//! | operation | what becomes of a pinned block |
//! |---|---|
//! | fork, snapshot | get a copy of it at once; the write-protection leaves it out |
//! | `lazy_free` | skips it: no fault sees what the holder of a pin writes, so its writes go on |
//! | `discard` | sets it to zero where it is |
//! | reclaim, split, revocation | never meet one: they work on `Lazy` blocks and those of the parent |
//! | drop of the region | leaks it, if its guard was forgotten: nobody gets the block again |

use std::ops::Range;

use crate::region::state::RegionCore;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::table::Locked;
use crate::table::transition::{OnPin, on_pin};
use crate::types::error::RegionError;
use crate::units::EntryIndex;

impl<S: Sys> RegionCore<S> {
    /// Makes the blocks that `range` touches writable and pins them. Pins all of them or none.
    pub(crate) fn pin(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.check(&range)?;
        let entries = self.touched(&range);
        self.pins.prepare(self.table.len());
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
            self.make_own(index)?;
            let _signals = SignalsBlocked::new();
            let window = self.table.lock(index);
            let publishing = self.lock.shared();
            match on_pin(self.table.get(index).state()).1 {
                OnPin::Count if self.pins.add(Locked::windows(&window, &publishing), index) => return Ok(()),
                OnPin::Count => return Err(RegionError::TooManyPins),
                // A snapshot has shared it meanwhile. The loop tries again.
                OnPin::WriteFirst => {}
            }
        }
    }

    /// Takes a pin off the blocks that `range` touches.
    pub(crate) fn unpin(&self, range: &Range<usize>) {
        self.unpin_entries(self.touched(range));
    }

    fn unpin_entries(&self, entries: Range<usize>) {
        for index in entries.map(EntryIndex) {
            let _signals = SignalsBlocked::new();
            let window = self.table.lock(index);
            let publishing = self.lock.shared();
            self.pins.remove(Locked::windows(&window, &publishing), index);
        }
    }
}
