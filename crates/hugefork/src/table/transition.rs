//! The state machine of an entry: what each event makes of it, and what has to be done for that. These functions are
//! pure: they take no lock, make no call and choose no block. The engine does what they say and stores the state that
//! they name.
//!
//! `docs/design.md` has all of it in one table; a test compares that table with machine.rs for all states, events and
//! facts.
//!
//! ```text
//!            first write (demand-zero)             write: reuse, or a copy if others hold the block
//!    Zero ─────────────────────────▶ Private ◀──────────────────────────────────────────┐
//!     ▲                              │ │ │ ▲                                            │
//!     │ discard (from any state)     │ │ └─┼── fork, snapshot ──▶ Shared ───────────────┤
//!     │                              │ │   │                                            │
//!     │ reclaim                      │ └───┼── lazy_free ───────▶ Lazy ─────────────────┤
//!     ├──────────────────────────────┼─────┼───────────────────── Lazy                  │
//!     │ reclaim, when all is dropped └─────┼── … of a part ─────▶ Split, then by page ──┤
//!     └────────────────────────────────────┼───────────────────── Split                 │
//!                        (made a fork or snapshot's) Shared ─────────────────────────────┘
//!                                              └── revoke, if the parent wrote it ──▶ Revoked
//!
//!         write by page, others hold the block                      snapshot, promotion
//!  Shared ────────────────────────────▶ CowMapped(ReadWrite) ───────────────────▶ CowMapped(Read)
//!                                         │ ▲ ◀── write by page ──────────────────┤
//!                                         │ write-back                            │ write, write-back
//!                                         └──────────────▶ Private ◀──────────────┘
//! ```
//! A reset to a snapshot leads from any state to `Shared`, or to `Zero` as a discard does. Entries that show the
//! snapshot's block stay as they are.
//!
//! A snapshot is never written to, so its entries are only `Zero`, `Shared` and `Revoked`.

use super::entry::{Origin, State};
use super::pins::Pinned;
use crate::sys::{Access, Merging};
use crate::types::options::Reserve;

/// Who else holds an entry's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Alone,
    ByOthersToo,
}

/// What is copied at a write to a block that others hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grain {
    /// By the kernel: each base page that is written.
    Page,
    /// The block.
    Block,
}

/// What a write needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnWrite {
    /// Nothing: it is writable.
    Nothing,
    /// A block that is zero (demand-zero).
    GiveZeroed,
    /// To give the right to write to the block that is there (reuse).
    AllowWrites,
    /// To give the right to write to the page, with memory for it if it was dropped.
    AllowPage,
    /// A copy of the block (copy-on-write), with the private pages over it.
    Copy,
    /// To show the block through a private mapping, so that the kernel copies what is written.
    CowMap,
    /// To give the right to write to the private mapping that is there.
    AllowPageWrites,
    /// To copy the private pages into the block, and to show that.
    WriteBack,
    /// An error: the block was taken away.
    Refuse,
}

/// What a fork or snapshot needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnShare {
    /// Nothing: there is no block.
    Nothing,
    /// A reference to the block, which loses the right to be written.
    Share,
    /// To get memory for the pages that were dropped, and then as `Share`.
    FillAndShare,
    /// A copy of its own: the block itself stays writable, because it is pinned.
    GiveCopy,
    /// An error: the block was taken away.
    Refuse,
}

/// What `discard` of the block needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnDiscard {
    /// Nothing: it reads as zeros.
    Nothing,
    /// To show zeros in place of the block, which goes back to the pool.
    ShowZeros,
    /// To fill the block with zeros where it is, because it is pinned.
    ZeroInPlace,
}

/// What `lazy_free` needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLazyFree {
    /// To take away the right to write to the block.
    ForbidWrites,
    /// To take away the right to write to the pages, and to mark each of them.
    ForbidPages,
    /// Nothing.
    Skip(Skipped),
}

/// Why `lazy_free` does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// There is nothing to free, or it is lazily freed already.
    Already,
    /// Others hold the block.
    Shared,
    Pinned,
    /// It is a part of a block, and the block cannot be split.
    Indivisible,
    Revoked,
}

/// What `cancel_lazy_free` needs. The right to write comes back with the next write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnCancel {
    Nothing,
    /// To mark the entry as kept.
    Keep,
    /// To mark the pages as kept.
    KeepPages,
}

/// What reclaim needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnReclaim {
    /// Nothing is lazily freed.
    Nothing,
    /// Nothing for now: others hold the block, which stays lazily freed.
    Wait,
    /// To show zeros in place of the block, which goes back to the pool.
    ShowZeros,
    /// To show zeros in place of the pages, whose memory goes back to the system. When the last page goes, the entry
    /// becomes `Zero`.
    DropPages,
}

/// What it takes to let go of a borrowed block, so that its region can write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnRevoke {
    /// Nothing: the block was not borrowed, or was promised to stay.
    Nothing,
    /// To hide the entry.
    Hide,
}

/// The block that a region goes back to, beside the one that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    Same,
    Other,
}

/// What a reset needs, where the snapshot has a block. Where it has none, a reset is a discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnReset {
    /// Nothing: it is what it was.
    Nothing,
    /// To put back what the private pages cover.
    PutBack,
    /// To mark the entry as kept: it may not be dropped any more.
    Keep,
    /// To mark the pages as kept.
    KeepPages,
    /// To show the snapshot's block in its place. A block that is written to again and again may get the snapshot's
    /// bytes instead, and stays as it is.
    Exchange,
    /// To copy the snapshot's bytes into the block, which stays where it is, because it is pinned.
    CopyInPlace,
}

/// What a pin needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnPin {
    /// To count it.
    Count,
    /// To write to the block first.
    WriteFirst,
}

/// What the end of a region or snapshot needs, once nothing is mapped any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnDrop {
    /// Nothing: there is no block.
    Nothing,
    /// To give the reference back.
    Release,
    /// To get memory for the pages that were dropped, and then as `Release`.
    ReleasePages,
    /// To leak the block: whoever pinned it may still use its memory.
    Leak,
}

/// A write: by a fault, or prepared by a call. By block it gives the region a block of its own with all that it sees,
/// and so ends a CoW mapping, too.
pub(crate) const fn on_write(state: State, held: Held, grain: Grain) -> (State, OnWrite) {
    match (state, held, grain) {
        (State::Zero, _, _) => (State::Private, OnWrite::GiveZeroed),
        (State::Private, _, _) => (State::Private, OnWrite::Nothing),
        (State::Shared | State::Lazy, Held::Alone, _) => (State::Private, OnWrite::AllowWrites),
        (State::Split, Held::Alone, _) => (State::Split, OnWrite::AllowPage),
        (State::CowMapped(_), Held::Alone, _) => (State::Private, OnWrite::WriteBack),
        (State::Shared, Held::ByOthersToo, Grain::Page) => (State::CowMapped(Access::ReadWrite), OnWrite::CowMap),
        // A CoW mapping is writable already if another thread was faster. If a call has failed, some of it may not be.
        (State::CowMapped(_), Held::ByOthersToo, Grain::Page) => {
            (State::CowMapped(Access::ReadWrite), OnWrite::AllowPageWrites)
        }
        (State::Lazy | State::Split, Held::ByOthersToo, Grain::Page)
        | (State::Shared | State::Lazy | State::Split | State::CowMapped(_), Held::ByOthersToo, Grain::Block) => {
            (State::Private, OnWrite::Copy)
        }
        (State::Revoked, _, _) => (State::Revoked, OnWrite::Refuse),
    }
}

/// The pages of a CoW mapping lose the right to be written.
pub(crate) const fn on_write_protect(state: State) -> State {
    match state {
        State::CowMapped(_) => State::CowMapped(Access::Read),
        State::Zero | State::Private | State::Shared | State::Lazy | State::Split | State::Revoked => state,
    }
}

/// Whether a read by address works in this state; if not, it is an error.
pub(crate) const fn is_readable(state: State) -> bool {
    match state {
        State::Zero | State::Private | State::Shared | State::Lazy | State::Split | State::CowMapped(_) => true,
        State::Revoked => false,
    }
}

/// A fork or snapshot of the region.
pub(crate) const fn on_share(state: State, pinned: Pinned) -> (State, OnShare) {
    match (state, pinned) {
        (State::Zero, _) => (State::Zero, OnShare::Nothing),
        (State::Private, Pinned::Yes) => (State::Private, OnShare::GiveCopy),
        (State::Private, Pinned::No) => (State::Shared, OnShare::Share),
        (State::Shared | State::Lazy, _) => (state, OnShare::Share),
        (State::CowMapped(_), _) => (State::CowMapped(Access::Read), OnShare::Share),
        (State::Split, _) => (State::Split, OnShare::FillAndShare),
        (State::Revoked, _) => (State::Revoked, OnShare::Refuse),
    }
}

/// `discard` of the whole block. A part is written to first, and then filled with zeros in place.
pub(crate) const fn on_discard(state: State, pinned: Pinned) -> (State, OnDiscard) {
    match (state, pinned) {
        (State::Zero, _) => (State::Zero, OnDiscard::Nothing),
        (State::Private, Pinned::Yes) => (State::Private, OnDiscard::ZeroInPlace),
        (
            State::Private | State::Shared | State::Lazy | State::Split | State::CowMapped(_) | State::Revoked,
            Pinned::Yes | Pinned::No,
        ) => (State::Zero, OnDiscard::ShowZeros),
    }
}

/// `lazy_free` of the whole block. The caller has written back CoW mappings that the region holds alone; one that it
/// holds alone since then is skipped.
pub(crate) const fn on_lazy_free(state: State, held: Held, pinned: Pinned) -> (State, OnLazyFree) {
    match (state, held, pinned) {
        (State::Zero | State::Lazy, _, _) => (state, OnLazyFree::Skip(Skipped::Already)),
        (State::Private, _, Pinned::Yes) => (state, OnLazyFree::Skip(Skipped::Pinned)),
        (State::Private, _, Pinned::No) => (State::Lazy, OnLazyFree::ForbidWrites),
        (State::Shared, Held::Alone, _) => (State::Lazy, OnLazyFree::ForbidWrites),
        (State::Split, Held::Alone, _) => (State::Split, OnLazyFree::ForbidPages),
        (State::Shared | State::Split, Held::ByOthersToo, _) | (State::CowMapped(_), _, _) => {
            (state, OnLazyFree::Skip(Skipped::Shared))
        }
        (State::Revoked, _, _) => (state, OnLazyFree::Skip(Skipped::Revoked)),
    }
}

/// `lazy_free` of a part of the block.
pub(crate) const fn on_lazy_free_part(
    state: State,
    held: Held,
    pinned: Pinned,
    merging: Merging,
) -> (State, OnLazyFree) {
    match (on_lazy_free(state, held, pinned).1, merging) {
        (OnLazyFree::ForbidWrites, Merging::Separate) => (state, OnLazyFree::Skip(Skipped::Indivisible)),
        (OnLazyFree::ForbidWrites | OnLazyFree::ForbidPages, _) => (State::Split, OnLazyFree::ForbidPages),
        (skipped @ OnLazyFree::Skip(_), _) => (state, skipped),
    }
}

/// `cancel_lazy_free`, and all else that takes lazy free back without a write.
pub(crate) const fn on_cancel(state: State) -> (State, OnCancel) {
    match state {
        State::Lazy => (State::Shared, OnCancel::Keep),
        State::Split => (State::Split, OnCancel::KeepPages),
        State::Zero | State::Private | State::Shared | State::CowMapped(_) | State::Revoked => {
            (state, OnCancel::Nothing)
        }
    }
}

/// Reclaim of what was lazily freed.
pub(crate) const fn on_reclaim(state: State, held: Held) -> (State, OnReclaim) {
    match (state, held) {
        (State::Lazy, Held::Alone) => (State::Zero, OnReclaim::ShowZeros),
        (State::Split, Held::Alone) => (State::Split, OnReclaim::DropPages),
        (State::Lazy | State::Split, Held::ByOthersToo) => (state, OnReclaim::Wait),
        (State::Zero | State::Private | State::Shared | State::CowMapped(_) | State::Revoked, _) => {
            (state, OnReclaim::Nothing)
        }
    }
}

/// The region that wrote the block asks for it back. What was promised stays where it is: the kernel may be reading the
/// very pages.
pub(crate) const fn on_revoke(state: State, origin: Origin, reserved: Reserve) -> (State, OnRevoke) {
    match (state, origin, reserved) {
        (State::Shared | State::CowMapped(_), Origin::Parent, Reserve::None) => (State::Revoked, OnRevoke::Hide),
        (State::Shared | State::CowMapped(_), Origin::Parent, Reserve::Full)
        | (State::Shared | State::CowMapped(_), Origin::Own, _)
        | (State::Zero | State::Private | State::Lazy | State::Split | State::Revoked, _, _) => {
            (state, OnRevoke::Nothing)
        }
    }
}

/// The region goes back to a snapshot that has a block here. The entry has the same block, or another.
pub(crate) const fn on_reset(state: State, goal: Goal, pinned: Pinned) -> (State, OnReset) {
    match (state, goal, pinned) {
        (State::Private, _, Pinned::Yes) => (State::Private, OnReset::CopyInPlace),
        (State::Shared, Goal::Same, _) => (state, OnReset::Nothing),
        (State::CowMapped(_), Goal::Same, _) => (state, OnReset::PutBack),
        (State::Lazy, Goal::Same, _) => (State::Shared, OnReset::Keep),
        (State::Split, Goal::Same, _) => (State::Split, OnReset::KeepPages),
        // A snapshot holds no block that is writable.
        (State::Zero | State::Private | State::Revoked, _, _)
        | (State::Shared | State::CowMapped(_) | State::Lazy | State::Split, Goal::Other, _) => {
            (State::Shared, OnReset::Exchange)
        }
    }
}

/// A pin. An unpin only changes the count.
pub(crate) const fn on_pin(state: State) -> (State, OnPin) {
    match state {
        State::Private => (State::Private, OnPin::Count),
        State::Zero | State::Shared | State::Lazy | State::Split | State::CowMapped(_) | State::Revoked => {
            (state, OnPin::WriteFirst)
        }
    }
}

/// The region or snapshot goes.
pub(crate) const fn on_drop(state: State, pinned: Pinned) -> OnDrop {
    match (state, pinned) {
        (State::Zero | State::Revoked, _) => OnDrop::Nothing,
        (State::Private, Pinned::Yes) => OnDrop::Leak,
        (State::Private, Pinned::No) => OnDrop::Release,
        (State::Shared | State::Lazy | State::CowMapped(_), _) => OnDrop::Release,
        (State::Split, _) => OnDrop::ReleasePages,
    }
}

/// The call to give or take the right to write failed: some pages may be writable and others not, and none may be
/// dropped. The next write finds that the region holds the block alone, or shows it through a CoW mapping, and asks for
/// the right again.
pub(crate) const fn on_protect_failed(state: State) -> State {
    match state {
        State::Private | State::Shared | State::Lazy | State::Split => State::Shared,
        State::CowMapped(_) => State::CowMapped(Access::ReadWrite),
        State::Zero | State::Revoked => state,
    }
}

/// Everything that can happen to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Write,
    Read,
    Snapshot,
    Fork,
    Discard,
    LazyFree,
    LazyFreePart,
    Cancel,
    Reclaim,
    Revoke,
    Pin,
    Unpin,
    Drop,
    /// Every page of a split block has become writable, lazily freed, or dropped.
    PagesWritable,
    PagesLazy,
    PagesDropped,
    ProtectFailed,
    /// The pages of a CoW mapping lose the right to be written.
    WriteProtect,
    /// The region goes back to a snapshot that has a block here.
    Reset,
}
