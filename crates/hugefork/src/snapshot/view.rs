//! The bytes of a snapshot at an address.

use super::core::SnapshotCore;
use crate::mapping::addresses::Addresses;
use crate::mapping::edges::Shown;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::types::error::RegionError;

impl<S: Sys> SnapshotCore<S> {
    /// Makes the bytes visible at an address the first time, and returns it. One caller at a time.
    ///
    /// `enter` is told the address before anybody else learns of it: a block may be taken away at once, and the fault
    /// of a read there must find its way here.
    pub(crate) fn map(&self, enter: impl FnOnce(usize)) -> Result<usize, RegionError> {
        if let Some(view) = self.view.get() {
            return Ok(view.base());
        }
        self.check()?;
        let mappings = Shown::of_snapshot(self.pool(), &self.entries).runs().count();
        let addresses = Addresses::claim(self.pool(), self.len(), mappings)?;
        let base = addresses.base();
        let _signals = SignalsBlocked::new();
        let alone = self.lock.exclusive();
        let shown = self.check().and_then(|()| Ok(addresses.show_frozen(&self.entries)?));
        // Dropped after the lock is released, since a drop may allocate.
        let unused = match shown {
            Ok(()) => {
                enter(base);
                self.view.set(addresses).err()
            }
            Err(_) => Some(addresses),
        };
        drop(alone);
        drop(unused);
        shown.map(|()| base)
    }

    /// Where the bytes are visible, if they are.
    pub(crate) fn view(&self) -> Option<usize> {
        self.view.get().map(Addresses::base)
    }

    /// How many mappings are counted.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn mappings(&self) -> usize {
        self.view.get().map_or(0, Addresses::mappings)
    }
}
