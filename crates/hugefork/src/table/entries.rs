//! An array of entries: the table of a region, or the blocks of a snapshot.

use core::ops::Range;

use super::entry::{Entry, RESERVED, is_plainly};
use crate::mem::{self, EngineBox};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::units::{BlockId, EntryIndex};

/// Whether a block of the pool is reserved for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    Yes,
    No,
}

/// One word for each entry. An entry changes only under the lock that its owner, the region or snapshot, documents.
pub(crate) struct Entries {
    words: EngineBox<[AtomicU32]>,
}

impl Entries {
    /// `count` entries, all zero. The kernel gives the memory page by page as entries are used.
    pub(crate) fn new(count: usize) -> Entries {
        Entries { words: mem::zeroed(count) }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// Bytes of memory once every entry is used.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    #[inline]
    pub(crate) fn get(&self, index: EntryIndex) -> Entry {
        Entry::decode(self.words[index.0].load(Ordering::Acquire))
    }

    /// All entries, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.words.iter().map(|word| Entry::decode(word.load(Ordering::Acquire)))
    }

    /// Stores an entry and keeps its reservation.
    #[inline]
    pub(crate) fn set(&self, index: EntryIndex, entry: Entry) {
        let word = &self.words[index.0];
        word.store(entry.encode() | word.load(Ordering::Relaxed) & RESERVED, Ordering::Release);
    }

    /// The first of `entries` that may not show what the snapshot has there: zeros, or the snapshot's block, perhaps
    /// with private pages over it. The end of `entries` if there is none.
    pub(crate) fn first_unlike(&self, snapshot: &Entries, entries: Range<usize>) -> usize {
        let both = self.words[entries.clone()].iter().zip(&snapshot.words[entries.clone()]);
        let is_unlike = |(mine, its): (&AtomicU32, &AtomicU32)| {
            !is_plainly(mine.load(Ordering::Acquire), its.load(Ordering::Acquire))
        };
        both.into_iter().position(is_unlike).map_or(entries.end, |by| entries.start + by)
    }

    /// The length of the run of like entries at the start: entries in the same state, with consecutive blocks if that
    /// state has blocks, and either all or none with a reservation. At least one if there is an entry. A split entry is
    /// always a run of its own.
    pub(crate) fn alike(&self, entries: Range<usize>) -> usize {
        let words = &self.words[entries];
        let Some(first) = words.first().map(|word| word.load(Ordering::Acquire)) else { return 0 };
        let (step, most) = match Entry::decode(first) {
            Entry::Zero | Entry::Revoked => (0, words.len()),
            // A number past the last block that an entry can name would change the state bits.
            Entry::Private(block) | Entry::Shared(block, _) | Entry::Lazy(block) | Entry::CowMapped(block, ..) => {
                (1, words.len().min(BlockId::LIMIT - block.index()))
            }
            Entry::Split(_) => (1, 1),
        };
        let mut count = 1;
        while count < most && words[count].load(Ordering::Acquire) == first + step * count as u32 {
            count += 1;
        }
        count
    }

    /// Stores a run of like entries that begins with `first`, and keeps the reservations.
    pub(crate) fn set_alike(&self, entries: Range<usize>, first: Entry) {
        let step = u32::from(first.block().is_some());
        let mut word = first.encode();
        for place in &self.words[entries] {
            place.store(word | place.load(Ordering::Relaxed) & RESERVED, Ordering::Release);
            word += step;
        }
    }

    /// How many entries have a reserved block.
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

    /// Stores whether a block is reserved for the entry. True if that is a change.
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

#[cfg(test)]
mod tests {
    use super::super::entry::Origin;
    use super::*;

    fn of(list: &[Entry]) -> Entries {
        let entries = Entries::new(list.len());
        list.iter().enumerate().for_each(|(index, entry)| entries.set(EntryIndex(index), *entry));
        entries
    }

    #[test]
    fn entries_are_alike_while_state_reservation_and_order_go_on() {
        let [last, eight, nine, ten] = [BlockId::LIMIT - 1, 8, 9, 10].map(|block| BlockId(block as u32));
        let first = BlockId(0);
        for (list, count) in [
            (vec![], 0),
            (vec![Entry::Zero, Entry::Zero, Entry::Private(first)], 2),
            (vec![Entry::Revoked, Entry::Revoked], 2),
            (vec![Entry::Private(eight), Entry::Private(nine), Entry::Private(ten), Entry::Zero], 3),
            (vec![Entry::Private(nine), Entry::Private(eight)], 1),
            (vec![Entry::Private(eight), Entry::Private(eight)], 1),
            (vec![Entry::Lazy(eight), Entry::Shared(nine, Origin::Own)], 1),
            (vec![Entry::Split(eight), Entry::Split(nine)], 1),
            // The number after the last block is the first block of the next state.
            (vec![Entry::Private(last), Entry::Shared(first, Origin::Own)], 1),
        ] {
            assert_eq!(of(&list).alike(0..list.len()), count, "{list:?}");
        }
        let reserved = of(&[Entry::Zero, Entry::Zero, Entry::Zero]);
        reserved.set_reserved(EntryIndex(2), Reserved::Yes);
        assert_eq!(reserved.alike(0..3), 2);
        assert_eq!(reserved.alike(2..3), 1);
    }

    #[test]
    fn what_is_stored_alike_is_alike_and_keeps_its_reservations() {
        let entries = Entries::new(4);
        entries.set_reserved(EntryIndex(1), Reserved::Yes);
        entries.set_alike(0..3, Entry::Lazy(BlockId(7)));
        let all: Vec<Entry> = entries.iter().collect();
        assert_eq!(
            all,
            [7, 8, 9].map(|block| Entry::Lazy(BlockId(block))).into_iter().chain([Entry::Zero]).collect::<Vec<_>>()
        );
        assert_eq!([0, 1, 2].map(|index| entries.is_reserved(EntryIndex(index))), [false, true, false]);
        entries.set_alike(0..4, Entry::Zero);
        assert!(entries.iter().all(|entry| entry == Entry::Zero));
    }
}
