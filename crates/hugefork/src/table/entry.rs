//! One entry of a table: what is mapped at one block of a region or snapshot.
//!
//! ```text
//!   31         30     27 26                              0
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
//! | `Inherited` | present, written by the parent | readable | as `Shared` |
//! | `Lazy` | present, contents may be dropped | readable | as `Shared`; dropped only when there is one |
//! | `Split` | present, each page as table/split.rs says | by page | as `Shared` |
//! | `Overlaid` | present, the private pages over it are the region's | readable and writable by page | as `Shared` |
//! | `Sealed` | as `Overlaid`, and no more pages become private | readable | as `Shared` |
//! | `Revoked` | none any more | nothing | none |
//!
//! An `Overlaid` or `Sealed` entry shows its block through a private mapping: the kernel copies each base page that is
//! written, and the copy covers the block's. Nobody writes to the block itself. Such an entry also knows who wrote the
//! block, as `Shared` and `Inherited` do.
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
    Inherited(BlockId),
    /// Readable and lazily freed as a whole.
    Lazy(BlockId),
    /// Lazily freed or dropped in part.
    Split(BlockId),
    /// Writable page by page, through a private mapping of the block.
    Overlaid(BlockId, Origin),
    /// Readable, through a private mapping of the block, which may have private pages.
    Sealed(BlockId, Origin),
    /// Taken away: any access to it fails.
    Revoked,
}

/// Who wrote the block of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This region.
    Own,
    /// Its parent.
    Parent,
}

/// The state of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    Zero = 0,
    Private = 1,
    Shared = 2,
    Inherited = 3,
    Lazy = 4,
    Split = 5,
    Revoked = 6,
    Overlaid = 7,
    Sealed = 8,
}

const STATE_SHIFT: u32 = 27;
const STATE_MASK: u32 = 0b1111;
/// What is added to the number of a state whose block the parent wrote.
const OF_PARENT: u32 = 2;
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
            | Entry::Inherited(block)
            | Entry::Lazy(block)
            | Entry::Split(block)
            | Entry::Overlaid(block, _)
            | Entry::Sealed(block, _) => Some(block),
        }
    }

    /// The state, without the block.
    #[inline]
    pub(crate) fn state(self) -> State {
        match self {
            Entry::Zero => State::Zero,
            Entry::Private(_) => State::Private,
            Entry::Shared(_) => State::Shared,
            Entry::Inherited(_) => State::Inherited,
            Entry::Lazy(_) => State::Lazy,
            Entry::Split(_) => State::Split,
            Entry::Overlaid(..) => State::Overlaid,
            Entry::Sealed(..) => State::Sealed,
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
            State::Inherited => Entry::Inherited(block),
            State::Lazy => Entry::Lazy(block),
            State::Split => Entry::Split(block),
            State::Overlaid => Entry::Overlaid(block, self.origin()),
            State::Sealed => Entry::Sealed(block, self.origin()),
            State::Revoked => Entry::Revoked,
        }
    }

    /// Who wrote the block. For an entry without a block, nobody asks.
    #[inline]
    pub(crate) fn origin(self) -> Origin {
        match self {
            Entry::Inherited(_) => Origin::Parent,
            Entry::Overlaid(_, origin) | Entry::Sealed(_, origin) => origin,
            Entry::Zero | Entry::Private(_) | Entry::Shared(_) | Entry::Lazy(_) | Entry::Split(_) | Entry::Revoked => {
                Origin::Own
            }
        }
    }

    /// Whether it is shown through a private mapping.
    #[inline]
    pub(crate) fn is_overlay(self) -> bool {
        matches!(self, Entry::Overlaid(..) | Entry::Sealed(..))
    }

    /// What its addresses show; `None` if each page shows something of its own.
    #[inline]
    pub(crate) fn shows(self) -> Option<Shows<BlockId>> {
        match self {
            Entry::Zero => Some(Shows::Zeros),
            Entry::Revoked => Some(Shows::Hidden),
            Entry::Private(start) => Some(Shows::Memory { start, access: Access::ReadWrite }),
            Entry::Shared(start) | Entry::Inherited(start) | Entry::Lazy(start) => {
                Some(Shows::Memory { start, access: Access::Read })
            }
            Entry::Overlaid(start, _) => Some(Shows::Overlay { start, access: Access::ReadWrite }),
            Entry::Sealed(start, _) => Some(Shows::Overlay { start, access: Access::Read }),
            Entry::Split(_) => None,
        }
    }

    /// Whether this region wrote the block's contents, so that others have them from here.
    #[inline]
    pub(crate) fn is_owner(self) -> bool {
        self.block().is_some() && self.origin() == Origin::Own
    }

    /// Whether writes to it may take memory that its forks and snapshots cost the region: up to a block.
    #[inline]
    pub(crate) fn is_charged(self) -> bool {
        matches!(self, Entry::Overlaid(_, Origin::Own))
    }

    #[inline]
    pub(super) fn encode(self) -> u32 {
        let state = match self {
            Entry::Overlaid(_, Origin::Parent) | Entry::Sealed(_, Origin::Parent) => self.state() as u32 + OF_PARENT,
            Entry::Zero
            | Entry::Private(_)
            | Entry::Shared(_)
            | Entry::Inherited(_)
            | Entry::Lazy(_)
            | Entry::Split(_)
            | Entry::Overlaid(_, Origin::Own)
            | Entry::Sealed(_, Origin::Own)
            | Entry::Revoked => self.state() as u32,
        };
        state << STATE_SHIFT | self.block().map_or(0, |block| block.0)
    }

    #[inline]
    pub(super) fn decode(word: u32) -> Entry {
        let block = BlockId(word & BLOCK_MASK);
        match word >> STATE_SHIFT & STATE_MASK {
            0 => Entry::Zero,
            1 => Entry::Private(block),
            2 => Entry::Shared(block),
            3 => Entry::Inherited(block),
            4 => Entry::Lazy(block),
            5 => Entry::Split(block),
            7 => Entry::Overlaid(block, Origin::Own),
            8 => Entry::Sealed(block, Origin::Own),
            9 => Entry::Overlaid(block, Origin::Parent),
            10 => Entry::Sealed(block, Origin::Parent),
            // More is never stored. If it were, an error would be better than zeros.
            6 | 11.. => Entry::Revoked,
        }
    }
}

/// Whether the entry of a region, as a word, shows what that of a snapshot has: both are zero, or the region shows the
/// snapshot's block, and that cannot be dropped.
#[inline]
pub(super) fn is_plainly(region: u32, snapshot: u32) -> bool {
    const SHOWS_BLOCK: u32 = 1 << State::Shared as u32
        | 1 << State::Inherited as u32
        | 1 << State::Overlaid as u32
        | 1 << State::Sealed as u32
        | 1 << (State::Overlaid as u32 + OF_PARENT)
        | 1 << (State::Sealed as u32 + OF_PARENT);
    let state = |word: u32| word >> STATE_SHIFT & STATE_MASK;
    let shows_its = state(snapshot) == State::Inherited as u32 && SHOWS_BLOCK >> state(region) & 1 == 1;
    let are_zero = state(snapshot) | state(region) == State::Zero as u32;
    (region ^ snapshot) & BLOCK_MASK == 0 && (shows_its || are_zero)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_their_encoding() {
        for id in [0, 1, 77, BlockId::LIMIT as u32 - 1] {
            let block = BlockId(id);
            let states = [Entry::Private, Entry::Shared, Entry::Inherited, Entry::Lazy, Entry::Split];
            let overlays = [Origin::Own, Origin::Parent]
                .map(|origin| [Entry::Overlaid(block, origin), Entry::Sealed(block, origin)]);
            let others = overlays.into_iter().flatten().chain([Entry::Zero, Entry::Revoked]);
            for entry in states.map(|state| state(block)).into_iter().chain(others) {
                assert_eq!(Entry::decode(entry.encode()), entry);
                assert_eq!(Entry::decode(entry.encode() | RESERVED), entry);
                assert_eq!(entry.encode() & RESERVED, 0);
            }
        }
        assert_eq!(Entry::Zero.encode(), 0, "a table fresh from the system is all Zero");
    }
}
