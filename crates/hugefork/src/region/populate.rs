//! Makes blocks writable before they are written to: `populate`, `prepare_write`, and what other calls need first.

use std::ops::Range;

use super::core::RegionCore;
use super::fault::Become;
use super::unresolved::Unresolved;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::table::Entry;
use crate::terms::error::RegionError;
use crate::terms::options::OnLimit;
use crate::units::EntryIndex;

impl<S: Sys> RegionCore<S> {
    /// Gives memory to every never-written block in `range`. A revoked block is an error, because no write to it can
    /// succeed.
    pub(crate) fn populate(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.make_each_own(range, |entry| matches!(entry, Entry::Zero | Entry::Revoked))
    }

    /// Makes every block in `range` the region's own, so that no write to it faults until the next fork or snapshot.
    pub(crate) fn prepare_write(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.make_each_own(range, |entry| !matches!(entry, Entry::Private(_)))
    }

    fn make_each_own(&self, range: Range<usize>, wanted: impl Fn(Entry) -> bool) -> Result<(), RegionError> {
        self.check(&range)?;
        let mut entries = self.touched(&range).map(EntryIndex).filter(|&index| wanted(self.table.get(index)));
        entries.try_for_each(|index| self.make_own(index))
    }

    /// Makes a block the region's own, with all that the region sees, and writable. If the region's limit says so, it
    /// waits, and signals are delivered meanwhile.
    pub(super) fn make_own(&self, index: EntryIndex) -> Result<(), RegionError> {
        loop {
            let signals = SignalsBlocked::new();
            let resolved = self.make(Become::Own, index, None);
            drop(signals);
            match resolved {
                Err(Unresolved::CowLimit(OnLimit::Stall)) => self.books.cow.wait_a_moment(),
                Err(Unresolved::NotYet) => {}
                resolved => return resolved.map(drop).map_err(|reason| self.error(reason)),
            }
        }
    }
}
