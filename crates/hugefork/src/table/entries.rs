//! A row of entries: the table of a region, the blocks of a snapshot.

use core::sync::atomic::{AtomicU32, Ordering};

use super::entry::{Entry, RESERVED};
use crate::own::{self, Boxed};
use crate::units::EntryIndex;

/// Whether an entry has a block reserved in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    Yes,
    No,
}

/// One word an entry. An entry changes only under the lock that its owner names.
pub(crate) struct Entries {
    words: Boxed<[AtomicU32]>,
}

impl Entries {
    /// `count` entries, all zero. The system gives the memory page by page as entries are used.
    pub(crate) fn new(count: usize) -> Entries {
        Entries { words: own::zeroed(count) }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// Bytes this takes when every entry is used.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    #[inline]
    pub(crate) fn get(&self, index: EntryIndex) -> Entry {
        Entry::decode(self.words[index.0].load(Ordering::Acquire))
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.words.iter().map(|word| Entry::decode(word.load(Ordering::Acquire)))
    }

    /// Stores an entry. Its reservation stays.
    #[inline]
    pub(crate) fn set(&self, index: EntryIndex, entry: Entry) {
        let word = &self.words[index.0];
        word.store(entry.encode() | word.load(Ordering::Relaxed) & RESERVED, Ordering::Release);
    }

    /// How many entries have a block reserved.
    pub(crate) fn reserved(&self) -> usize {
        self.words.iter().filter(|word| word.load(Ordering::Relaxed) & RESERVED != 0).count()
    }

    /// Whether a block is reserved for the entry.
    #[inline]
    pub(crate) fn reservation(&self, index: EntryIndex) -> Reserved {
        if self.is_reserved(index) { Reserved::Yes } else { Reserved::No }
    }

    #[inline]
    pub(crate) fn is_reserved(&self, index: EntryIndex) -> bool {
        self.words[index.0].load(Ordering::Relaxed) & RESERVED != 0
    }

    /// Notes whether a block is reserved for the entry. True if that is a change.
    #[inline]
    pub(crate) fn set_reserved(&self, index: EntryIndex, reserved: Reserved) -> bool {
        let word = &self.words[index.0];
        let before = word.load(Ordering::Relaxed);
        let after = match reserved {
            Reserved::Yes => before | RESERVED,
            Reserved::No => before & !RESERVED,
        };
        word.store(after, Ordering::Release);
        before != after
    }
}
