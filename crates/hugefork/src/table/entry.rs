//! One entry of a table: what is mapped at one block of a region or snapshot.
//!
//! ```text
//!   31         30     28 27                              0
//!  ┌──────────┬─────────┬─────────────────────────────────┐
//!  │ reserved │  state  │             block               │
//!  └──────────┴─────────┴─────────────────────────────────┘
//! ```
//!
//! | state | block | shown | references to the block |
//! |---|---|---|---|
//! | `Zero` | none | zeros, readable | none |
//! | `Private` | present | readable and writable | exactly one, this entry's |
//! | `Shared` | present, written by this region | readable | one for this entry, and one for each other holder |
//! | `Borrowed` | present, written by the parent | readable | as `Shared` |
//! | `Lazy` | present, contents may be dropped | readable | as `Shared`; dropped only when there is one |
//! | `Split` | present, each page as table/split.rs says | by page | as `Shared` |
//! | `Revoked` | none any more | nothing | none |
//!
//! `reserved`: a block of the pool is reserved for this entry, so the next write finds one.
//!
//! transition.rs says how one state follows from another.

use crate::sys::{Access, Shows};
use crate::units::BlockId;

/// What is mapped at one block of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Never written, discarded or reclaimed: reads as zeros and holds no block.
    Zero,
    /// Writable: this entry alone holds the block.
    Private(BlockId),
    /// Readable: this region wrote it. A fork or snapshot holds it too, or did when the entry was last looked at.
    Shared(BlockId),
    /// Readable: the parent wrote it.
    Borrowed(BlockId),
    /// Readable and lazily freed as a whole.
    Lazy(BlockId),
    /// Lazily freed or dropped in part.
    Split(BlockId),
    /// Taken away: any access to it fails.
    Revoked,
}

/// The state of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    Zero = 0,
    Private = 1,
    Shared = 2,
    Borrowed = 3,
    Lazy = 4,
    Split = 5,
    Revoked = 6,
}

const STATE_SHIFT: u32 = 28;
const STATE_MASK: u32 = 0b111;
const BLOCK_MASK: u32 = (1 << STATE_SHIFT) - 1;
/// This bit is set if a block is reserved for the entry.
pub(super) const RESERVED: u32 = 1 << 31;

impl Entry {
    /// The block, if there is one.
    #[inline]
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

    /// The state, without the block.
    #[inline]
    pub(crate) fn state(self) -> State {
        match self {
            Entry::Zero => State::Zero,
            Entry::Private(_) => State::Private,
            Entry::Shared(_) => State::Shared,
            Entry::Borrowed(_) => State::Borrowed,
            Entry::Lazy(_) => State::Lazy,
            Entry::Split(_) => State::Split,
            Entry::Revoked => State::Revoked,
        }
    }

    /// The same entry in another state. Keeps the block if that state has one.
    #[inline]
    pub(crate) fn in_state(self, state: State) -> Entry {
        let Some(block) = self.block() else { return self };
        match state {
            State::Zero => Entry::Zero,
            State::Private => Entry::Private(block),
            State::Shared => Entry::Shared(block),
            State::Borrowed => Entry::Borrowed(block),
            State::Lazy => Entry::Lazy(block),
            State::Split => Entry::Split(block),
            State::Revoked => Entry::Revoked,
        }
    }

    /// What its addresses show; `None` if each page shows something of its own.
    #[inline]
    pub(crate) fn shows(self) -> Option<Shows<BlockId>> {
        match self {
            Entry::Zero => Some(Shows::Zeros),
            Entry::Revoked => Some(Shows::Hidden),
            Entry::Private(start) => Some(Shows::Memory { start, access: Access::ReadWrite }),
            Entry::Shared(start) | Entry::Borrowed(start) | Entry::Lazy(start) => {
                Some(Shows::Memory { start, access: Access::Read })
            }
            Entry::Split(_) => None,
        }
    }

    /// Whether this region wrote the block's contents, so that others have them from here.
    #[inline]
    pub(crate) fn is_owner(self) -> bool {
        matches!(self, Entry::Private(_) | Entry::Shared(_) | Entry::Lazy(_) | Entry::Split(_))
    }

    #[inline]
    pub(super) fn encode(self) -> u32 {
        (self.state() as u32) << STATE_SHIFT | self.block().map_or(0, |block| block.0)
    }

    #[inline]
    pub(super) fn decode(word: u32) -> Entry {
        let block = BlockId(word & BLOCK_MASK);
        match word >> STATE_SHIFT & STATE_MASK {
            0 => Entry::Zero,
            1 => Entry::Private(block),
            2 => Entry::Shared(block),
            3 => Entry::Borrowed(block),
            4 => Entry::Lazy(block),
            5 => Entry::Split(block),
            // 7 is never stored. If it were, an error would be better than zeros.
            6.. => Entry::Revoked,
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
