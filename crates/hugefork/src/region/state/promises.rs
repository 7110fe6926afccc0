//! Blocks in which no write faults until the next fork, snapshot or reset, as `prepare_write` has promised.
//!
//! Where they are shown by page, they are not sealed until then: a system call that writes would fail meanwhile.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::mem::{self, EngineBox};
use crate::table::Locked;
use crate::units::EntryIndex;

/// The promises of one region: a byte a block, allocated at the first.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    made: OnceLock<EngineBox<[AtomicU8]>>,
    any: AtomicBool,
}

impl Promises {
    /// Makes room for `entries` entries. Allocates, so no lock may be held.
    pub(in crate::region) fn prepare(&self, entries: usize) {
        self.made.get_or_init(|| mem::zeroed(entries));
    }

    /// Promises that writes to `entries` do not fault.
    pub(in crate::region) fn make(&self, _locked: Locked<'_>, entries: Range<usize>) {
        self.any.store(true, Ordering::Relaxed);
        let made = self.made.get().map_or(&[][..], |made| &made[entries]);
        made.iter().for_each(|made| made.store(1, Ordering::Relaxed));
    }

    /// Whether something was promised of the block at `index`. Under its window's lock this stays so.
    pub(in crate::region) fn has(&self, index: EntryIndex) -> bool {
        let is_made = |made: &EngineBox<[AtomicU8]>| made[index.0].load(Ordering::Relaxed) == 1;
        self.any.load(Ordering::Relaxed) && self.made.get().is_some_and(is_made)
    }

    /// Ends them all.
    pub(in crate::region) fn end(&self) {
        if self.any.swap(false, Ordering::Relaxed) {
            let made = self.made.get().map_or(&[][..], |made| &made[..]);
            made.iter().for_each(|made| made.store(0, Ordering::Relaxed));
        }
    }

    /// Bytes that this takes.
    pub(crate) fn bytes(&self) -> usize {
        self.made.get().map_or(0, |made| made.len())
    }
}
