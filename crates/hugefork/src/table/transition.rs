//! The state machine of an entry: for each event, the next state and the work that leads there. These functions are
//! pure: they take no lock, make no system call and choose no block. The engine does the work that they name and stores
//! the state that they return.
//!
//! `docs/safety/states.md` has all of it in one table; a test compares that table with machine.rs for all states,
//! events and facts.
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
//! snapshot's block already keep it.
//!
//! Nobody writes to a snapshot, so the events above leave its entries in `Zero`, `Shared`, `CowMapped(Read)` or
//! `Revoked`.

use super::entry::{Origin, State};
use super::pins::Pinned;
use crate::sys::{Access, Merging};
use crate::types::options::Reserve;

/// Whether an entry holds its block alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Alone,
    ByOthersToo,
}

/// The unit of copying at a write to a block that others hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grain {
    /// Each base page at its first write, by the kernel.
    Page,
    /// The block.
    Block,
}

/// The work of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnWrite {
    /// None: the block is writable.
    Nothing,
    /// Give the entry a block of zeros (demand-zero).
    GiveZeroed,
    /// Make the present block writable (reuse).
    AllowWrites,
    /// Make the page writable, and give it memory if it was dropped.
    AllowPage,
    /// Copy the block (copy-on-write), with the private pages over it.
    Copy,
    /// Show the block through a private mapping, so that the kernel copies each page that is written.
    CowMap,
    /// Make the present private mapping writable.
    AllowPageWrites,
    /// Copy the private pages into the block, and show the block.
    WriteBack,
    /// Fail: the block was taken away.
    Refuse,
}

/// The work of a fork or snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnShare {
    /// None: there is no block.
    Nothing,
    /// Add a reference to the block and write-protect it.
    Share,
    /// Get memory for the pages that were dropped, then do the work of `Share`.
    FillAndShare,
    /// Give the fork or snapshot a copy: the block itself stays writable, because it is pinned.
    GiveCopy,
    /// Fail: the block was taken away.
    Refuse,
}

/// The work of `discard` of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnDiscard {
    /// None: the entry reads as zeros.
    Nothing,
    /// Show zeros in place of the block, and give the block back to the pool.
    ShowZeros,
    /// Fill the block with zeros where it is, because it is pinned.
    ZeroInPlace,
}

/// The work of `lazy_free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLazyFree {
    /// Write-protect the block.
    ForbidWrites,
    /// Write-protect the pages, and mark each as lazily freed.
    ForbidPages,
    /// None.
    Skip(Skipped),
}

/// The reason why `lazy_free` does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// The entry has nothing to free, or is lazily freed already.
    Already,
    /// Others hold the block.
    Shared,
    Pinned,
    /// The range is a part of a block that the backing cannot split.
    Indivisible,
    Revoked,
}

/// The work of `cancel_lazy_free`. The next write makes the block writable again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnCancel {
    Nothing,
    /// Mark the entry as kept.
    Keep,
    /// Mark the pages as kept.
    KeepPages,
}

/// The work of reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnReclaim {
    /// None: nothing is lazily freed.
    Nothing,
    /// None for now: others hold the block, which stays lazily freed.
    Wait,
    /// Show zeros in place of the block, and give the block back to the pool.
    ShowZeros,
    /// Show zeros in place of the lazily freed pages, and give their memory back to the system. The entry becomes
    /// `Zero` with the last page.
    DropPages,
}

/// The work of a holder that gives up a borrowed block, so that the lending region can write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnRevoke {
    /// None: the holder did not borrow the block, or has it reserved for good.
    Nothing,
    /// Hide the entry.
    Hide,
}

/// Whether a reset's snapshot has the same block as the region's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    Same,
    Other,
}

/// The work of a reset where the snapshot has a block. Where it has none, a reset is a discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnReset {
    /// None: the entry has not changed.
    Nothing,
    /// Put back the bytes of the block that private pages cover.
    PutBack,
    /// Mark the entry as kept: its contents may not be dropped any more.
    Keep,
    /// Mark the pages as kept.
    KeepPages,
    /// Show the snapshot's block in place of the region's. A block that is written after every reset may stay, and get
    /// the snapshot's bytes instead.
    Exchange,
    /// Copy the snapshot's bytes into the block, which stays where it is, because it is pinned.
    CopyInPlace,
}

/// The work of a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnPin {
    /// Count the pin.
    Count,
    /// Write to the block first.
    WriteFirst,
}

/// The work at the end of a region or snapshot, after everything is unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnDrop {
    /// None: there is no block.
    Nothing,
    /// Give the reference back.
    Release,
    /// Get memory for the pages that were dropped, then do the work of `Release`.
    ReleasePages,
    /// Leak the block: the holder of the pin may still use its memory.
    Leak,
}

/// A write: by a fault, or prepared by a call. With `Grain::Block` the region gets a block of its own with all the
/// bytes that it sees, so a CoW mapping ends, too.
pub(crate) const fn on_write(state: State, held: Held, grain: Grain) -> (State, OnWrite) {
    match (state, held, grain) {
        (State::Zero, _, _) => (State::Private, OnWrite::GiveZeroed),
        (State::Private, _, _) => (State::Private, OnWrite::Nothing),
        (State::Shared | State::Lazy, Held::Alone, _) => (State::Private, OnWrite::AllowWrites),
        (State::Split, Held::Alone, _) => (State::Split, OnWrite::AllowPage),
        (State::CowMapped(_), Held::Alone, _) => (State::Private, OnWrite::WriteBack),
        (State::Shared, Held::ByOthersToo, Grain::Page) => (State::CowMapped(Access::ReadWrite), OnWrite::CowMap),
        // The mapping is writable already if another thread was faster. After a failed call, parts of it may not be.
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

/// `discard` of a whole block. A discard of a part first writes to the block, and then fills the part with zeros in
/// place.
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

/// `lazy_free` of a whole block. The caller has written back the CoW mappings that the region holds alone; a mapping
/// that it holds alone only since then is skipped.
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

/// `cancel_lazy_free`, or another call that takes lazy free back without a write.
pub(crate) const fn on_cancel(state: State) -> (State, OnCancel) {
    match state {
        State::Lazy => (State::Shared, OnCancel::Keep),
        State::Split => (State::Split, OnCancel::KeepPages),
        State::Zero | State::Private | State::Shared | State::CowMapped(_) | State::Revoked => {
            (state, OnCancel::Nothing)
        }
    }
}

/// Reclaim of a lazily freed block or of lazily freed pages.
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

/// The region that wrote the block wants it back. A holder with a reservation keeps the block: the kernel may still be
/// reading its pages.
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

/// The region is reset to a snapshot that has a block here: the entry's block, or another.
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

/// The end of the region or snapshot.
pub(crate) const fn on_drop(state: State, pinned: Pinned) -> OnDrop {
    match (state, pinned) {
        (State::Zero | State::Revoked, _) => OnDrop::Nothing,
        (State::Private, Pinned::Yes) => OnDrop::Leak,
        (State::Private, Pinned::No) => OnDrop::Release,
        (State::Shared | State::Lazy | State::CowMapped(_), _) => OnDrop::Release,
        (State::Split, _) => OnDrop::ReleasePages,
    }
}

/// A failed call that was to write-protect pages or make them writable: some pages may be writable and others not, so
/// none may be dropped. The next write finds that the region holds the block alone, or shows it through a CoW mapping,
/// and asks the kernel again.
pub(crate) const fn on_protect_failed(state: State) -> State {
    match state {
        State::Private | State::Shared | State::Lazy | State::Split => State::Shared,
        State::CowMapped(_) => State::CowMapped(Access::ReadWrite),
        State::Zero | State::Revoked => state,
    }
}

/// All events of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "some store no entry: only the table in docs/safety/states.md has them")
)]
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
    /// The region is reset to a snapshot that has a block here.
    Reset,
}
