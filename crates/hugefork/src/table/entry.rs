//! One entry of a table: the state of a region or snapshot at one block of its addresses.
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
//! | `Shared` | present, written by its origin: this region or its parent | readable | one for each holder |
//! | `Lazy` | present, contents may be dropped | readable | as `Shared`; dropped only when there is one |
//! | `Split` | present, each page in a state of table/split.rs | page by page | as `Shared` |
//! | `CowMapped` | present, with an origin; the private pages over it are the region's | by its access | as `Shared` |
//! | `Revoked` | taken away | nothing | none |
//!
//! A `CowMapped` entry shows its block through a private mapping: the kernel copies each base page at the first write,
//! and the copy covers the block's page. Nobody writes to the block itself. With `Access::Read` no further page becomes
//! private.
//!
//! `reserved`: the pool keeps a block for this entry, so the next write finds one.
//!
//! transition.rs has the transitions between states.

use crate::sys::{Access, Shows};
use crate::units::BlockId;

/// The state of a region or snapshot at one block of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Never written, discarded or reclaimed: reads as zeros and holds no block.
    Zero,
    /// Writable: this entry alone holds the block.
    Private(BlockId),
    /// Readable. A fork, a snapshot or the parent holds the block too, or did at the last look.
    Shared(BlockId, Origin),
    /// Readable and lazily freed as a whole.
    Lazy(BlockId),
    /// Some of its pages are lazily freed or dropped.
    Split(BlockId),
    /// Shown through a private mapping, readable or also writable page by page. Private pages may lie over the block.
    CowMapped(BlockId, Origin, Access),
    /// The block was taken away: any access fails.
    Revoked,
}

/// The writer of an entry's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This region.
    Own,
    /// Its parent.
    Parent,
}

/// The state of an entry: the part that an event changes. The origin of the block stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Zero,
    Private,
    Shared,
    Lazy,
    Split,
    CowMapped(Access),
    Revoked,
}

const STATE_SHIFT: u32 = 27;
const STATE_MASK: u32 = 0b1111;
/// State numbers that the code below compares with directly.
const SHARED: u32 = 2;
const SHARED_OF_PARENT: u32 = 3;

/// A snapshot's entry whose bytes have an address and whose own pages lie over the block.
const READ_OF_PARENT: u32 = 10;
const BLOCK_MASK: u32 = (1 << STATE_SHIFT) - 1;
/// The bit that is set while a block is reserved for the entry.
pub(super) const RESERVED: u32 = 1 << 31;

impl Entry {
    /// The block, if there is one.
    #[inline]
    pub(crate) fn block(self) -> Option<BlockId> {
        match self {
            Entry::Zero | Entry::Revoked => None,
            Entry::Private(block)
            | Entry::Shared(block, _)
            | Entry::Lazy(block)
            | Entry::Split(block)
            | Entry::CowMapped(block, ..) => Some(block),
        }
    }

    /// The state, without the block.
    #[inline]
    pub(crate) fn state(self) -> State {
        match self {
            Entry::Zero => State::Zero,
            Entry::Private(_) => State::Private,
            Entry::Shared(..) => State::Shared,
            Entry::Lazy(_) => State::Lazy,
            Entry::Split(_) => State::Split,
            Entry::CowMapped(_, _, access) => State::CowMapped(access),
            Entry::Revoked => State::Revoked,
        }
    }

    /// The same entry in another state. Keeps the block and its origin if that state has them.
    #[inline]
    pub(crate) fn in_state(self, state: State) -> Entry {
        let Some(block) = self.block() else { return self };
        match state {
            State::Zero => Entry::Zero,
            State::Private => Entry::Private(block),
            State::Shared => Entry::Shared(block, self.origin()),
            State::Lazy => Entry::Lazy(block),
            State::Split => Entry::Split(block),
            State::CowMapped(access) => Entry::CowMapped(block, self.origin(), access),
            State::Revoked => Entry::Revoked,
        }
    }

    /// The writer of the block. Meaningless for an entry without a block.
    #[inline]
    pub(crate) fn origin(self) -> Origin {
        match self {
            Entry::Shared(_, origin) | Entry::CowMapped(_, origin, _) => origin,
            Entry::Zero | Entry::Private(_) | Entry::Lazy(_) | Entry::Split(_) | Entry::Revoked => Origin::Own,
        }
    }

    /// Whether it is shown through a private mapping.
    #[inline]
    pub(crate) fn is_cow_mapping(self) -> bool {
        matches!(self, Entry::CowMapped(..))
    }

    /// The memory that the addresses of the entry show; `None` if that differs from page to page.
    #[inline]
    pub(crate) fn shows(self) -> Option<Shows<BlockId>> {
        match self {
            Entry::Zero => Some(Shows::Zeros),
            Entry::Revoked => Some(Shows::Hidden),
            Entry::Private(start) => Some(Shows::Memory { start, access: Access::ReadWrite }),
            Entry::Shared(start, _) | Entry::Lazy(start) => Some(Shows::Memory { start, access: Access::Read }),
            Entry::CowMapped(start, _, access) => Some(Shows::CowMapping { start, access }),
            Entry::Split(_) => None,
        }
    }

    /// Whether this region wrote the block's contents, so that other holders have the block from this region.
    #[inline]
    pub(crate) fn is_owner(self) -> bool {
        self.block().is_some() && self.origin() == Origin::Own
    }

    /// Whether it is shown through a writable private mapping.
    #[inline]
    pub(crate) fn is_writable_cow_mapping(self) -> bool {
        matches!(self, Entry::CowMapped(_, _, Access::ReadWrite))
    }

    /// Whether the region's account is charged a block for this entry: it is a writable CoW mapping of the region's own
    /// block, and its later page copies raise no fault.
    #[inline]
    pub(crate) fn is_charged(self) -> bool {
        matches!(self, Entry::CowMapped(_, Origin::Own, Access::ReadWrite))
    }

    #[inline]
    pub(super) fn encode(self) -> u32 {
        let state = match self {
            Entry::Zero => 0,
            Entry::Private(_) => 1,
            Entry::Shared(_, Origin::Own) => SHARED,
            Entry::Shared(_, Origin::Parent) => SHARED_OF_PARENT,
            Entry::Lazy(_) => 4,
            Entry::Split(_) => 5,
            Entry::Revoked => 6,
            Entry::CowMapped(_, Origin::Own, Access::ReadWrite) => 7,
            Entry::CowMapped(_, Origin::Own, Access::Read) => 8,
            Entry::CowMapped(_, Origin::Parent, Access::ReadWrite) => 9,
            Entry::CowMapped(_, Origin::Parent, Access::Read) => READ_OF_PARENT,
        };
        state << STATE_SHIFT | self.block().map_or(0, |block| block.0)
    }

    #[inline]
    pub(super) fn decode(word: u32) -> Entry {
        let block = BlockId(word & BLOCK_MASK);
        match word >> STATE_SHIFT & STATE_MASK {
            0 => Entry::Zero,
            1 => Entry::Private(block),
            SHARED => Entry::Shared(block, Origin::Own),
            SHARED_OF_PARENT => Entry::Shared(block, Origin::Parent),
            4 => Entry::Lazy(block),
            5 => Entry::Split(block),
            7 => Entry::CowMapped(block, Origin::Own, Access::ReadWrite),
            8 => Entry::CowMapped(block, Origin::Own, Access::Read),
            9 => Entry::CowMapped(block, Origin::Parent, Access::ReadWrite),
            READ_OF_PARENT => Entry::CowMapped(block, Origin::Parent, Access::Read),
            // Higher numbers are never stored. Should one appear, an error is better than zeros.
            6 | 11.. => Entry::Revoked,
        }
    }
}

/// Whether the region's entry shows what the snapshot's has, given the words of both: both are zero, or the region
/// shows the snapshot's block in a state that does not let the block be dropped.
#[inline]
pub(super) fn is_plainly(region: u32, snapshot: u32) -> bool {
    const SHOWS_BLOCK: u32 = 1 << SHARED | 1 << SHARED_OF_PARENT | 0b1111 << 7;
    let state = |word: u32| word >> STATE_SHIFT & STATE_MASK;
    let holds_one = matches!(state(snapshot), SHARED_OF_PARENT | READ_OF_PARENT);
    let shows_its = holds_one && SHOWS_BLOCK >> state(region) & 1 == 1;
    let are_zero = state(snapshot) | state(region) == 0;
    (region ^ snapshot) & BLOCK_MASK == 0 && (shows_its || are_zero)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_their_encoding() {
        for id in [0, 1, 77, BlockId::LIMIT as u32 - 1] {
            let block = BlockId(id);
            let of_origins = [Origin::Own, Origin::Parent].map(|origin| {
                let cow_mapped = |access| Entry::CowMapped(block, origin, access);
                [Entry::Shared(block, origin), cow_mapped(Access::Read), cow_mapped(Access::ReadWrite)]
            });
            let others = [Entry::Private(block), Entry::Lazy(block), Entry::Split(block), Entry::Zero, Entry::Revoked];
            for entry in of_origins.into_iter().flatten().chain(others) {
                assert_eq!(Entry::decode(entry.encode()), entry);
                assert_eq!(Entry::decode(entry.encode() | RESERVED), entry);
                assert_eq!(entry.encode() & RESERVED, 0);
            }
        }
        assert_eq!(Entry::Zero.encode(), 0, "a table fresh from the system is all Zero");
    }
}
