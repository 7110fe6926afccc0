//! The software page table of a region: one word an entry, one lock a window.
//!
//! ```text
//! entries   [e0][e1][e2] … [e511] | [e512] …           one u32 each (see entry.rs)
//! windows   [      lock 0       ] | [ lock 1 ] …       a window is the larger of a block and 2 MiB
//! waiting   [      link 0       ] | [ link 1 ] …       windows that wait for reclaim (see waiting.rs)
//! ```
//! With 2 MiB blocks each entry has a lock of its own. With smaller blocks the entries of 2 MiB share one lock: a fault
//! takes a run of neighbours with one lock, and the locks stay small beside the entries.
//!
//! A fault changes an entry under the window's lock and the shared region lock. A snapshot (`Private` to `Shared`) and
//! `lazy_free` (to `Lazy`) hold the region lock exclusively and change entries without the window's lock. So they never
//! run while a fault works on an entry.

#![deny(clippy::wildcard_enum_match_arm)] // A new state is to be thought of everywhere.

mod entries;
mod entry;
mod locked;
pub(crate) mod machine;
pub(crate) mod pins;
pub(crate) mod split;
pub(crate) mod transition;
mod waiting;

pub(crate) use entries::{Entries, Reserved};
pub(crate) use entry::{Entry, Origin, State};
pub(crate) use locked::{Locked, WindowsGuard};

use core::ops::{Deref, Range};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::OnceLock;

use crate::mem::{self, EngineBox, Own, Zeroed};
use crate::sync::WordLock;
use crate::units::{BASE_PAGE, BlockSize, EntryIndex, HUGE_PAGE};
use split::{Split, SplitPage};
use waiting::Waiting;

// SAFETY: all zeroes is a free lock.
unsafe impl Zeroed for WordLock {}

/// The entries of one region, and their locks.
pub(crate) struct Table {
    entries: Entries,
    windows: EngineBox<[WordLock]>,
    /// Windows in which something was lazily freed.
    pub(crate) waiting: Waiting,
    /// The pages of split blocks: made at the first split, and kept until the region goes.
    splits: OnceLock<EngineBox<[AtomicPtr<Split>]>>,
    /// Entries in a window.
    window: usize,
}

impl Table {
    /// A table of `count` entries, all zero. The system gives the memory page by page as entries are used.
    pub(crate) fn new(count: usize, block_size: BlockSize) -> Table {
        let window = (HUGE_PAGE / block_size.bytes()).max(1);
        Table {
            entries: Entries::new(count),
            windows: mem::zeroed(count.div_ceil(window)),
            waiting: Waiting::new(count.div_ceil(window)),
            splits: OnceLock::new(),
            window,
        }
    }

    /// Bytes this table occupies when every entry is used.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.bytes()
            + size_of_val(&*self.windows)
            + self.waiting.bytes()
            + self.splits.get().map_or(0, |splits| size_of_val(&**splits))
    }

    /// Number of windows.
    pub(crate) fn windows(&self) -> usize {
        self.windows.len()
    }

    /// The window of an entry.
    pub(crate) fn window(&self, index: EntryIndex) -> usize {
        index.0 / self.window
    }

    /// The entries of some windows.
    pub(crate) fn entries_of(&self, windows: Range<usize>) -> Range<usize> {
        windows.start * self.window..(windows.end * self.window).min(self.len())
    }

    /// The entries that share a lock with `index`.
    pub(crate) fn window_of(&self, index: EntryIndex) -> Range<usize> {
        let window = self.window(index);
        self.entries_of(window..window + 1)
    }

    /// Locks the window of `index` unless somebody has it.
    pub(crate) fn try_lock(&self, index: EntryIndex) -> Option<WindowsGuard<'_>> {
        let window = self.window(index);
        self.windows[window].try_lock()?.keep();
        Some(WindowsGuard::of(&self.windows[window..window + 1]))
    }

    /// Whether every entry has a window of its own.
    pub(crate) fn is_one_a_window(&self) -> bool {
        self.window == 1
    }

    /// Locks the window of `index`.
    pub(crate) fn lock(&self, index: EntryIndex) -> WindowsGuard<'_> {
        let window = self.window(index);
        self.lock_windows(window..window + 1)
    }

    /// Locks windows in order. Allocates nothing.
    pub(crate) fn lock_windows(&self, windows: Range<usize>) -> WindowsGuard<'_> {
        for window in &self.windows[windows.clone()] {
            window.lock().keep();
        }
        WindowsGuard::of(&self.windows[windows])
    }

    /// Whether somebody has locked a window. Who has the region lock alone sees all who have had that lock while they
    /// held a window.
    pub(crate) fn has_locked_windows(&self) -> bool {
        self.windows.iter().any(WordLock::is_taken)
    }

    /// Guards windows that were locked one by one and [kept](WindowsGuard::keep).
    pub(crate) fn kept(&self, windows: Range<usize>) -> WindowsGuard<'_> {
        WindowsGuard::of(&self.windows[windows])
    }

    /// The pages of a block that is or was split.
    pub(crate) fn split(&self, index: EntryIndex) -> Option<&Split> {
        let split = self.splits.get()?[index.0].load(Ordering::Acquire);
        // SAFETY: null, or a box that `prepare_split` left here, which stays until the table goes.
        unsafe { split.as_ref() }
    }

    /// What a page of a split block is.
    pub(crate) fn page(&self, index: EntryIndex, page: usize) -> SplitPage {
        match self.split(index) {
            Some(split) => split.get(page),
            None => SplitPage::Readable,
        }
    }

    /// Whether any block was ever split.
    pub(crate) fn has_splits(&self) -> bool {
        self.splits.get().is_some()
    }

    /// Makes room for the pages of a block that is about to be split. Allocates, so no lock may be held.
    pub(crate) fn prepare_split(&self, index: EntryIndex, block_size: BlockSize) -> &Split {
        if self.split(index).is_none() {
            self.leave(index, Split::new(block_size.bytes() / BASE_PAGE));
        }
        self.split(index).expect("just made")
    }

    /// Leaves pages there, unless another thread has done so meanwhile.
    fn leave(&self, index: EntryIndex, pages: Split) {
        let slot = &self.splits.get_or_init(|| mem::zeroed(self.len()))[index.0];
        let new = EngineBox::into_raw(EngineBox::new_in(pages, Own));
        let null = core::ptr::null_mut();
        if slot.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: `new` was made above from a box and was not stored anywhere.
            drop(unsafe { EngineBox::from_raw_in(new, Own) });
        }
    }
}

impl Deref for Table {
    type Target = Entries;

    fn deref(&self) -> &Entries {
        &self.entries
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for slot in self.splits.get().into_iter().flat_map(|splits| splits.iter()) {
            let split = slot.load(Ordering::Relaxed);
            if !split.is_null() {
                // SAFETY: `prepare_split` made it from a box, and the table is ours alone now.
                drop(unsafe { EngineBox::from_raw_in(split, Own) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_another_thread_has_left_meanwhile_stay() {
        let (table, index) = (Table::new(4, BlockSize::KIB_64), EntryIndex(2));
        assert!(table.split(index).is_none() && table.page(index, 3) == SplitPage::Readable);
        let first = table.prepare_split(index, BlockSize::KIB_64);
        first.set(3..4, SplitPage::Lazy);
        table.leave(index, Split::new(16));
        let second = table.prepare_split(index, BlockSize::KIB_64);
        assert!(core::ptr::eq(first, second) && table.page(index, 3) == SplitPage::Lazy);
        assert!(table.has_splits() && table.split(EntryIndex(1)).is_none());
    }
}
