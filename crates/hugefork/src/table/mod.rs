//! The software page table of a region: one word an entry, one lock a window.
//!
//! ```text
//! entries   [e0][e1][e2] … [e511] | [e512] …           one u32 each (see entry.rs)
//! windows   [      lock 0       ] | [ lock 1 ] …       a window is the larger of a block and 2 MiB
//! ```
//! With 2 MiB blocks an entry has a lock of its own. With smaller blocks the entries of 2 MiB share one, so that a fault
//! can take a run of neighbours in one go, and the locks stay small beside the entries.
//!
//! An entry is changed under its window's lock; a snapshot alone changes entries without it (`Private` to `Shared`),
//! holding the region lock exclusively, which no fault holds while it looks at an entry for the last time.

mod entry;

pub(crate) use entry::Entry;

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::sync::{WordGuard, WordLock};
use crate::units::{BlockSize, EntryIndex, HUGE_PAGE};

/// The entries of one region, and their locks.
pub(crate) struct Table {
    entries: Box<[AtomicU32]>,
    windows: Box<[WordLock]>,
    /// Entries in a window.
    window: usize,
}

impl Table {
    /// A table of `count` entries, all zero. The memory is taken from the system page by page as entries are used.
    pub(crate) fn new(count: usize, block_size: BlockSize) -> Table {
        let window = (HUGE_PAGE / block_size.bytes()).max(1);
        let entries = Box::new_zeroed_slice(count);
        let windows = Box::new_zeroed_slice(count.div_ceil(window));
        Table {
            // SAFETY: all zeroes is a valid AtomicU32: an entry that was never written.
            entries: unsafe { entries.assume_init() },
            // SAFETY: all zeroes is a valid WordLock: a free one.
            windows: unsafe { windows.assume_init() },
            window,
        }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes this table occupies when every entry is used.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.entries) + size_of_val(&*self.windows)
    }

    pub(crate) fn get(&self, index: EntryIndex) -> Entry {
        Entry::decode(self.entries[index.0].load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, index: EntryIndex, entry: Entry) {
        self.entries[index.0].store(entry.encode(), Ordering::Release);
    }

    /// The entries that share a lock with `index`.
    pub(crate) fn window_of(&self, index: EntryIndex) -> Range<usize> {
        let start = index.0 / self.window * self.window;
        start..(start + self.window).min(self.len())
    }

    /// Locks the window of `index` if nobody has it.
    pub(crate) fn try_lock(&self, index: EntryIndex) -> Option<WordGuard<'_>> {
        self.windows[index.0 / self.window].try_lock()
    }

    /// Whether every entry has a window of its own.
    pub(crate) fn is_one_a_window(&self) -> bool {
        self.window == 1
    }

    /// Locks the window of `index`.
    pub(crate) fn lock(&self, index: EntryIndex) -> WordGuard<'_> {
        self.windows[index.0 / self.window].lock()
    }
}
