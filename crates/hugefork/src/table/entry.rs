//! One entry of the page table: what is mapped at one block of a region.
//!
//! ```text
//!   31        28 27                              0
//!  ┌────────────┬─────────────────────────────────┐
//!  │   state    │             block               │
//!  └────────────┴─────────────────────────────────┘
//!
//!                      first write (demand-zero)
//!        Zero ─────────────────────────────────────────▶ Private
//!         ▲ ▲                                           ▲  │  ▲
//!         │ └───────────────── discard ─────────────────┼──┤  │
//!         │                                             │  │  │ write, nobody else holds the block (reuse)
//!         │ discard                     write, copied   │  │  │ write to a block that others hold (CoW: a new block)
//!         │                                             │  ▼  │
//!         └──────────────────────────────────────────── Shared   ◀── fork, snapshot of Private or Shared
//! ```
//!
//! | state | block | mapped | references to the block |
//! |---|---|---|---|
//! | `Zero` | none | zeros, readable | none |
//! | `Private` | present | readable and writable | exactly one, this entry's |
//! | `Shared` | present | readable | one for this entry, and one for each other holder |

use crate::units::BlockId;

/// What is mapped at one block of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Never written, or discarded: reads as zeros, owns nothing.
    Zero,
    /// Writable; this entry is the block's only holder.
    Private(BlockId),
    /// Readable; a fork or snapshot holds the block too, or did when this entry was last looked at.
    Shared(BlockId),
}

const STATE_SHIFT: u32 = 28;
const BLOCK_MASK: u32 = (1 << STATE_SHIFT) - 1;
const ZERO: u32 = 0;
const PRIVATE: u32 = 1;
const SHARED: u32 = 2;

impl Entry {
    /// The block, if there is one.
    pub(crate) fn block(self) -> Option<BlockId> {
        match self {
            Entry::Zero => None,
            Entry::Private(block) | Entry::Shared(block) => Some(block),
        }
    }

    pub(super) fn encode(self) -> u32 {
        match self {
            Entry::Zero => ZERO << STATE_SHIFT,
            Entry::Private(block) => PRIVATE << STATE_SHIFT | block.0,
            Entry::Shared(block) => SHARED << STATE_SHIFT | block.0,
        }
    }

    pub(super) fn decode(word: u32) -> Entry {
        let block = BlockId(word & BLOCK_MASK);
        match word >> STATE_SHIFT {
            PRIVATE => Entry::Private(block),
            SHARED => Entry::Shared(block),
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
            for entry in [Entry::Zero, Entry::Private(BlockId(id)), Entry::Shared(BlockId(id))] {
                assert_eq!(Entry::decode(entry.encode()), entry);
            }
        }
        assert_eq!(Entry::Zero.encode(), 0, "a table fresh from the system is all Zero");
    }
}
