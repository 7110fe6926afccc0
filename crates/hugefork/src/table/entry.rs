//! One entry of the page table: what is mapped at one block of a region.
//!
//! ```text
//!   31         30     28 27                              0
//!  ┌──────────┬─────────┬─────────────────────────────────┐
//!  │ reserved │  state  │             block               │
//!  └──────────┴─────────┴─────────────────────────────────┘
//!
//!            first write (demand-zero)             write: reuse, or a copy if others hold the block
//!    Zero ─────────────────────────▶ Private ◀──────────────────────────────────────────┐
//!     ▲                              │ │ │ ▲                                            │
//!     │ discard (from any state)     │ │ └─┼── fork, snapshot ──▶ Shared ───────────────┤
//!     │                              │ │   │                                            │
//!     │ reclaim                      │ └───┼── lazy_free ───────▶ Lazy ─────────────────┤
//!     ├──────────────────────────────┼─────┼───────────────────── Lazy                  │
//!     │ reclaim, when all is dropped └─────┼── … of a part ─────▶ Split, then by page ──┤
//!     └────────────────────────────────────┼───────────────────── Split                 │
//!                    (made a fork or snapshot's) Borrowed ──────────────────────────────┘
//!                                              └── revoke ──▶ Revoked
//! ```
//!
//! | state | block | mapped | references to the block |
//! |---|---|---|---|
//! | `Zero` | none | zeros, readable | none |
//! | `Private` | present | readable and writable | exactly one, this entry's |
//! | `Shared` | present, written by this region | readable | one for this entry, and one for each other holder |
//! | `Borrowed` | present, written by another region | readable | likewise |
//! | `Lazy` | present, contents may be dropped | readable | likewise: dropped only while there is one |
//! | `Split` | present, its pages are each as table/split.rs says | by page | likewise |
//! | `Revoked` | none any more | inaccessible | none |
//!
//! `reserved`: this entry has a block booked in the pool, so its next write finds one.

use crate::units::BlockId;

/// What is mapped at one block of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Never written, discarded or reclaimed: reads as zeros, owns nothing.
    Zero,
    /// Writable; this entry is the block's only holder.
    Private(BlockId),
    /// Readable; this region wrote it, and a fork or snapshot holds it too, or did when this entry was last looked at.
    Shared(BlockId),
    /// Readable; the region that this one was forked from wrote it.
    Borrowed(BlockId),
    /// Readable and lazily freed as a whole.
    Lazy(BlockId),
    /// Lazily freed or dropped in part.
    Split(BlockId),
    /// Taken away: any access is an error.
    Revoked,
}

const STATE_SHIFT: u32 = 28;
const STATE_MASK: u32 = 0b111;
const BLOCK_MASK: u32 = (1 << STATE_SHIFT) - 1;
/// Set in the word of an entry that has a block booked.
pub(super) const RESERVED: u32 = 1 << 31;

const ZERO: u32 = 0;
const PRIVATE: u32 = 1;
const SHARED: u32 = 2;
const BORROWED: u32 = 3;
const LAZY: u32 = 4;
const SPLIT: u32 = 5;
const REVOKED: u32 = 6;

impl Entry {
    /// The block, if there is one.
    pub(crate) fn block(self) -> Option<BlockId> {
        match self {
            Entry::Zero | Entry::Revoked => None,
            Entry::Private(block)
            | Entry::Shared(block)
            | Entry::Borrowed(block)
            | Entry::Lazy(block)
            | Entry::Split(block) => Some(block),
        }
    }

    /// The block, if it is mapped for reading as a whole and a write has to look who else holds it.
    pub(crate) fn readable(self) -> Option<BlockId> {
        match self {
            Entry::Shared(block) | Entry::Borrowed(block) | Entry::Lazy(block) => Some(block),
            _ => None,
        }
    }

    /// Whether this region's own writes are in the block, so that others have it from here.
    pub(crate) fn is_owner(self) -> bool {
        matches!(self, Entry::Private(_) | Entry::Shared(_) | Entry::Lazy(_) | Entry::Split(_))
    }

    pub(super) fn encode(self) -> u32 {
        let state = match self {
            Entry::Zero => ZERO,
            Entry::Private(_) => PRIVATE,
            Entry::Shared(_) => SHARED,
            Entry::Borrowed(_) => BORROWED,
            Entry::Lazy(_) => LAZY,
            Entry::Split(_) => SPLIT,
            Entry::Revoked => REVOKED,
        };
        state << STATE_SHIFT | self.block().map_or(0, |block| block.0)
    }

    pub(super) fn decode(word: u32) -> Entry {
        let block = BlockId(word & BLOCK_MASK);
        match word >> STATE_SHIFT & STATE_MASK {
            PRIVATE => Entry::Private(block),
            SHARED => Entry::Shared(block),
            BORROWED => Entry::Borrowed(block),
            LAZY => Entry::Lazy(block),
            SPLIT => Entry::Split(block),
            REVOKED => Entry::Revoked,
            _ => Entry::Zero,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_their_encoding() {
        for id in [0, 1, 77, BlockId::LIMIT as u32 - 1] {
            let block = BlockId(id);
            let states = [Entry::Private, Entry::Shared, Entry::Borrowed, Entry::Lazy, Entry::Split];
            for entry in states.map(|state| state(block)).into_iter().chain([Entry::Zero, Entry::Revoked]) {
                assert_eq!(Entry::decode(entry.encode()), entry);
                assert_eq!(Entry::decode(entry.encode() | RESERVED), entry);
                assert_eq!(entry.encode() & RESERVED, 0);
            }
        }
        assert_eq!(Entry::Zero.encode(), 0, "a table fresh from the system is all Zero");
    }
}
