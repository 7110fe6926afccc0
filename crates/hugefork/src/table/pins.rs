//! How often each block of a region is pinned.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use super::locked::Locked;
use crate::mem::{self, EngineBox};
use crate::units::EntryIndex;

/// Whether a block is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinned {
    Yes,
    No,
}

/// How often each block of a region is pinned: a byte for each, allocated at the first pin.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    counts: OnceLock<EngineBox<[AtomicU8]>>,
}

impl Pins {
    /// Makes room for the counts of `entries` entries. Allocates, so no lock may be held.
    pub(crate) fn prepare(&self, entries: usize) {
        self.counts.get_or_init(|| mem::zeroed(entries));
    }

    /// Whether any block was ever pinned.
    pub(crate) fn are_used(&self) -> bool {
        self.counts.get().is_some()
    }

    /// Whether the block at `index` is pinned.
    #[inline]
    pub(crate) fn has(&self, index: EntryIndex) -> bool {
        self.counts.get().is_some_and(|counts| counts[index.0].load(Ordering::Relaxed) > 0)
    }

    /// As [`Pins::has`], in the terms of transition.rs.
    #[inline]
    pub(crate) fn of(&self, index: EntryIndex) -> Pinned {
        if self.has(index) { Pinned::Yes } else { Pinned::No }
    }

    /// The runs of `entries` that are not pinned, in order. The caller holds a lock that keeps pins as they are.
    pub(crate) fn runs_between(&self, entries: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut next = entries.start;
        std::iter::from_fn(move || {
            let start = (next..entries.end).find(|&index| !self.has(EntryIndex(index)))?;
            let is_end = |index: &usize| self.has(EntryIndex(*index));
            next = if self.are_used() { (start..entries.end).find(is_end).unwrap_or(entries.end) } else { entries.end };
            Some(start..next)
        })
    }

    /// Bytes that the counts take.
    pub(crate) fn bytes(&self) -> usize {
        self.counts.get().map_or(0, |counts| counts.len())
    }

    /// Adds a pin. False if no more can be counted.
    pub(crate) fn add(&self, _locked: Locked<'_>, index: EntryIndex) -> bool {
        let Some(counts) = self.counts.get() else { return false };
        let more = counts[index.0].load(Ordering::Relaxed).checked_add(1);
        more.inspect(|&more| counts[index.0].store(more, Ordering::Relaxed)).is_some()
    }

    /// Takes a pin off.
    pub(crate) fn remove(&self, _locked: Locked<'_>, index: EntryIndex) {
        if let Some(counts) = self.counts.get() {
            let count = &counts[index.0];
            count.store(count.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        }
    }
}
