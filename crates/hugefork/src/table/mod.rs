//! The software page table of a region: one word for each entry, one lock for each window.
//!
//! ```text
//! entries   [e0][e1][e2] … [e511] | [e512] …           one u32 each (see entry.rs)
//! windows   [      lock 0       ] | [ lock 1 ] …       a window is the larger of a block and 2 MiB
//! waiting   [      link 0       ] | [ link 1 ] …       windows that wait for reclaim (see waiting.rs)
//! ```
//! With 2 MiB blocks each entry has a lock of its own. With smaller blocks, the entries of 2 MiB share one: a fault
//! then takes a run of neighbours under one lock, and the locks take little memory compared with the entries.
//!
//! A fault changes an entry under the window's lock and the shared region lock. A snapshot (`Private` to `Shared`) and
//! `lazy_free` (to `Lazy`) hold the region lock exclusively, and need no window lock. So they never run while a fault
//! works on an entry.

#![deny(clippy::wildcard_enum_match_arm)] // A new state must be considered in every match.

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
use std::sync::OnceLock;

use crate::mem::{self, EngineBox, EngineVec, Own, Zeroed};
use crate::sync::{SignalsBlocked, WordLock};
use crate::units::{BASE_PAGE, BlockSize, EntryIndex, HUGE_PAGE};
use split::{Split, SplitPage};
use waiting::Waiting;

// SAFETY: all zeroes is a free lock.
unsafe impl Zeroed for WordLock {}

/// The entries of one region, and their locks.
pub(crate) struct Table {
    entries: Entries,
    windows: EngineBox<[WordLock]>,
    /// Windows that have lazily freed pages.
    pub(crate) waiting: Waiting,
    /// The page states of split blocks: allocated at the first split, and kept until the region is dropped.
    splits: OnceLock<EngineVec<OnceLock<EngineBox<Split>>>>,
    /// Entries in one window.
    window: usize,
}

impl Table {
    /// A table of `count` entries, all zero. The kernel gives the memory page by page as entries are used.
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

    /// Bytes of memory once every entry is used.
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

    /// The number of the window that `index` lies in.
    pub(crate) fn window(&self, index: EntryIndex) -> usize {
        index.0 / self.window
    }

    /// The entries of `windows`.
    pub(crate) fn entries_of(&self, windows: Range<usize>) -> Range<usize> {
        windows.start * self.window..(windows.end * self.window).min(self.len())
    }

    /// The entries that share a lock with `index`, itself included.
    pub(crate) fn window_of(&self, index: EntryIndex) -> Range<usize> {
        let window = self.window(index);
        self.entries_of(window..window + 1)
    }

    /// Locks the window of `index` unless another thread has it locked.
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

    /// Locks `windows` in ascending order. Allocates nothing.
    pub(crate) fn lock_windows(&self, windows: Range<usize>) -> WindowsGuard<'_> {
        for window in &self.windows[windows.clone()] {
            window.lock().keep();
        }
        WindowsGuard::of(&self.windows[windows])
    }

    /// Whether any window is locked. A caller that holds the region lock exclusively sees every lock of a thread that
    /// held both a window and the region lock before.
    pub(crate) fn has_locked_windows(&self) -> bool {
        self.windows.iter().any(WordLock::is_taken)
    }

    /// A guard for windows that were locked one by one and [kept](WindowsGuard::keep).
    pub(crate) fn kept(&self, windows: Range<usize>) -> WindowsGuard<'_> {
        WindowsGuard::of(&self.windows[windows])
    }

    /// The page states of a block that is or was split.
    pub(crate) fn split(&self, index: EntryIndex) -> Option<&Split> {
        self.splits.get()?[index.0].get().map(|split| &**split)
    }

    /// The state of a page of a split block.
    pub(crate) fn page(&self, index: EntryIndex, page: usize) -> SplitPage {
        self.split(index).map_or(SplitPage::Readable, |split| split.get(page))
    }

    /// Whether any block was ever split.
    pub(crate) fn has_splits(&self) -> bool {
        self.splits.get().is_some()
    }

    /// Makes room for the page states of a block that is about to be split. Allocates, so the caller may hold no lock.
    pub(crate) fn prepare_split(&self, index: EntryIndex, block_size: BlockSize) -> &Split {
        self.split(index).unwrap_or_else(|| {
            // A signal handler that does the same would wait for its own thread.
            let _signals = SignalsBlocked::new();
            let splits = self.splits.get_or_init(|| {
                let mut splits = EngineVec::new_in(Own);
                splits.resize_with(self.len(), OnceLock::new);
                splits
            });
            let split = || EngineBox::new_in(Split::new(block_size.bytes() / BASE_PAGE), Own);
            splits[index.0].get_or_init(split)
        })
    }
}

impl Deref for Table {
    type Target = Entries;

    fn deref(&self) -> &Entries {
        &self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_of_a_split_block_stay() {
        let (table, index) = (Table::new(4, BlockSize::KIB_64), EntryIndex(2));
        assert!(table.split(index).is_none() && table.page(index, 3) == SplitPage::Readable);
        let first = table.prepare_split(index, BlockSize::KIB_64);
        first.set(3..4, SplitPage::Lazy);
        let second = table.prepare_split(index, BlockSize::KIB_64);
        assert!(core::ptr::eq(first, second) && table.page(index, 3) == SplitPage::Lazy);
        assert!(table.has_splits() && table.split(EntryIndex(1)).is_none());
    }
}
