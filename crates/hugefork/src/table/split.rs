//! The states of the pages of a block that was lazily freed in part.
//!
//! ```text
//!             lazy_free                 reclaim
//!   Writable ──────────▶ Lazy ─────────────────────▶ Dropped
//!    ▲  ▲ │               │                              │
//!    │  │ │ snapshot      │ write, cancel                │ write: a new page of zeros
//!    │  │ └──▶ Readable   │                              │
//!    │  └──────────┴──────┘                              │
//!    └───────────────────────────────────────────────────┘
//! ```
//!
//! | page | mapped | memory |
//! |---|---|---|
//! | `Readable`, `Lazy` | the block's, readable | the block's |
//! | `Writable` | the block's, readable and writable | the block's |
//! | `Dropped` | zeros, readable | none: given back to the system |
//!
//! A block with several holders has no dropped pages: before a snapshot shares it, they get memory again. Each base
//! page has one byte here, which changes under the locks of an entry: the window's lock and the region lock.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::mem::{self, EngineBox};
use crate::ranges::runs;
use crate::sys::{Access, Shows};

/// The state of one base page of a split block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SplitPage {
    Readable = 0,
    Writable = 1,
    Lazy = 2,
    Dropped = 3,
}

impl SplitPage {
    /// The memory that the page at `start` of the pool shows at its address.
    pub(crate) fn shows<M>(self, start: M) -> Shows<M> {
        match self {
            SplitPage::Dropped => Shows::Zeros,
            SplitPage::Writable => Shows::Memory { start, access: Access::ReadWrite },
            SplitPage::Readable | SplitPage::Lazy => Shows::Memory { start, access: Access::Read },
        }
    }
}

const STATES: [SplitPage; 4] = [SplitPage::Readable, SplitPage::Writable, SplitPage::Lazy, SplitPage::Dropped];

/// The page states of one split block, and how many pages are in each.
#[derive(Debug)]
pub(crate) struct Split {
    pages: EngineBox<[AtomicU8]>,
    counts: [AtomicUsize; STATES.len()],
}

impl Split {
    /// A block of `pages` pages, all `Readable`.
    pub(crate) fn new(pages: usize) -> Split {
        let split = Split {
            // The byte 0 is `Readable`.
            pages: mem::zeroed(pages),
            counts: Default::default(),
        };
        split.counts[SplitPage::Readable as usize].store(pages, Ordering::Relaxed);
        split
    }

    /// Number of pages.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    pub(crate) fn get(&self, page: usize) -> SplitPage {
        STATES[usize::from(self.pages[page].load(Ordering::Relaxed)) % STATES.len()]
    }

    pub(crate) fn set(&self, pages: Range<usize>, to: SplitPage) {
        for page in pages {
            let before = self.pages[page].swap(to as u8, Ordering::Relaxed);
            self.counts[usize::from(before) % STATES.len()].fetch_sub(1, Ordering::Relaxed);
            self.counts[to as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many pages are in the state `of`.
    pub(crate) fn count(&self, of: SplitPage) -> usize {
        self.counts[of as usize].load(Ordering::Relaxed)
    }

    /// The maximal runs of pages in `within` that are in the state `of`.
    pub(crate) fn runs_of(&self, within: Range<usize>, of: SplitPage) -> impl Iterator<Item = Range<usize>> + '_ {
        runs(within, move |page| self.get(page) == of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SplitPage::{Dropped, Lazy, Readable, Writable};

    #[test]
    fn pages_are_counted_and_run_together() {
        let split = Split::new(16);
        split.set(0..16, Writable);
        split.set(3..9, Lazy);
        split.set(5..7, Dropped);
        assert_eq!([Readable, Writable, Lazy, Dropped].map(|of| split.count(of)), [0, 10, 4, 2]);
        assert_eq!(split.runs_of(0..16, Lazy).collect::<Vec<_>>(), [3..5, 7..9]);
        assert_eq!(split.runs_of(4..8, Lazy).collect::<Vec<_>>(), [4..5, 7..8]);
        assert_eq!(split.runs_of(0..16, Writable).collect::<Vec<_>>(), [0..3, 9..16]);
        assert_eq!(split.runs_of(0..16, Readable).count(), 0);
        assert_eq!((split.get(4), split.get(5), split.len()), (Lazy, Dropped, 16));
    }
}
