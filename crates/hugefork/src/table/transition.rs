//! The state machine of an entry: what each event makes of it, and what has to be done for that. Pure: no lock, no call, no block
//! is chosen here. The engine does what these functions say, and stores what they say comes next.
//!
//! `docs/design.md` has all of it as one table; a test walks states × events × facts and compares.
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
//!                    (made a fork or snapshot's) Borrowed ──────────────────────────────┘
//!                                              └── revoke ──▶ Revoked
//! ```
//!
//! The entries of a snapshot are `Zero`, `Borrowed` and `Revoked`: nothing of it is ever written.

use super::entry::State;

/// What matters beside the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Nobody else holds the entry's block.
    pub(crate) alone: bool,
    /// A block is reserved for the entry.
    pub(crate) reserved: bool,
    /// The block is pinned. Only a `Private` one is.
    pub(crate) pinned: bool,
    /// A block can be treated page by page: not on hugetlb.
    pub(crate) divisible: bool,
    /// The entry is a snapshot's.
    pub(crate) frozen: bool,
}

/// What a write needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnWrite {
    /// Nothing: it is writable.
    Nothing,
    /// A block that is zero (demand-zero).
    GiveZeroed,
    /// The right to write, for the block that is there (reuse).
    AllowWrites,
    /// The right to write to the page, and memory for it if that was dropped.
    AllowPage,
    /// A copy of the block (copy-on-write).
    Copy,
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
    /// Memory for the pages that were dropped, and then the same.
    FillAndShare,
    /// A copy of its own: the block stays writable.
    GiveCopy,
    /// An error: the block was taken away.
    Refuse,
}

/// What `discard` of the block needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnDiscard {
    /// Nothing: it reads as zeros.
    Nothing,
    /// Zeros in place of the block, which goes back.
    ShowZeros,
    /// Zeros in the block, which stays where it is.
    ZeroInPlace,
}

/// What `lazy_free` needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLazyFree {
    /// The block loses the right to be written.
    ForbidWrites,
    /// The pages lose the right to be written, and are marked one by one.
    ForbidPages,
    /// Nothing is done.
    Skip(Skipped),
}

/// Why `lazy_free` does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// There is nothing to free, or it was freed before.
    Already,
    /// Others hold the block.
    Shared,
    Pinned,
    /// A part of a block that cannot be split.
    Indivisible,
    Revoked,
}

/// What taking lazy freeing back needs. The right to write comes back with the next write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnCancel {
    Nothing,
    /// The entry is marked as kept.
    Keep,
    /// The pages are.
    KeepPages,
}

/// What reclaim needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnReclaim {
    /// Nothing is lazily freed.
    Nothing,
    /// Others hold the block: it stays, lazily freed.
    Wait,
    /// Zeros in place of the block, which goes back.
    ShowZeros,
    /// Zeros in place of the pages, whose memory goes back. When the last one goes the entry becomes `Zero`.
    DropPages,
}

/// What letting go of a borrowed block needs, when its region has no other to write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnRevoke {
    /// Nothing: the block was not borrowed.
    Nothing,
    /// The entry is hidden.
    Hide,
    /// A copy, in the block that is reserved for the entry.
    CopyIntoReserved,
}

/// What a pin needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnPin {
    /// To be counted.
    Count,
    /// A write first.
    WriteFirst,
}

/// What the end of the holder needs, once nothing is mapped any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnDrop {
    /// Nothing: there is no block.
    Nothing,
    /// The reference is given back.
    Release,
    /// The same, after the memory of the block, a part of which was dropped.
    ReleasePages,
    /// The block is leaked: who pinned it may still use its memory.
    Leak,
}

/// A write: a fault's, or one that a call prepares for.
pub(crate) const fn on_write(state: State, facts: Facts) -> (State, OnWrite) {
    match (state, facts.alone) {
        (State::Zero, _) => (State::Private, OnWrite::GiveZeroed),
        (State::Private, _) => (State::Private, OnWrite::Nothing),
        (State::Shared | State::Borrowed | State::Lazy, true) => (State::Private, OnWrite::AllowWrites),
        (State::Split, true) => (State::Split, OnWrite::AllowPage),
        (State::Shared | State::Borrowed | State::Lazy | State::Split, false) => (State::Private, OnWrite::Copy),
        (State::Revoked, _) => (State::Revoked, OnWrite::Refuse),
    }
}

/// A read by address: an error, or nothing at all.
pub(crate) const fn is_readable(state: State) -> bool {
    match state {
        State::Zero | State::Private | State::Shared | State::Borrowed | State::Lazy | State::Split => true,
        State::Revoked => false,
    }
}

/// A fork or snapshot of the region.
pub(crate) const fn on_share(state: State, facts: Facts) -> (State, OnShare) {
    match state {
        State::Zero => (State::Zero, OnShare::Nothing),
        State::Private if facts.pinned => (State::Private, OnShare::GiveCopy),
        State::Private => (State::Shared, OnShare::Share),
        State::Shared | State::Borrowed | State::Lazy => (state, OnShare::Share),
        State::Split => (State::Split, OnShare::FillAndShare),
        State::Revoked => (State::Revoked, OnShare::Refuse),
    }
}

/// `discard` of the whole block. Of a part: a write first, and zeros in place.
pub(crate) const fn on_discard(state: State, facts: Facts) -> (State, OnDiscard) {
    match state {
        State::Zero => (State::Zero, OnDiscard::Nothing),
        State::Private if facts.pinned => (State::Private, OnDiscard::ZeroInPlace),
        State::Private | State::Shared | State::Borrowed | State::Lazy | State::Split | State::Revoked => {
            (State::Zero, OnDiscard::ShowZeros)
        }
    }
}

/// `lazy_free` of the whole block.
pub(crate) const fn on_lazy_free(state: State, facts: Facts) -> (State, OnLazyFree) {
    match state {
        State::Zero | State::Lazy => (state, OnLazyFree::Skip(Skipped::Already)),
        State::Private if facts.pinned => (state, OnLazyFree::Skip(Skipped::Pinned)),
        State::Private => (State::Lazy, OnLazyFree::ForbidWrites),
        State::Shared | State::Borrowed if facts.alone => (State::Lazy, OnLazyFree::ForbidWrites),
        State::Split if facts.alone => (State::Split, OnLazyFree::ForbidPages),
        State::Shared | State::Borrowed | State::Split => (state, OnLazyFree::Skip(Skipped::Shared)),
        State::Revoked => (state, OnLazyFree::Skip(Skipped::Revoked)),
    }
}

/// `lazy_free` of a part of the block.
pub(crate) const fn on_lazy_free_part(state: State, facts: Facts) -> (State, OnLazyFree) {
    match on_lazy_free(state, facts) {
        (_, OnLazyFree::ForbidWrites) if !facts.divisible => (state, OnLazyFree::Skip(Skipped::Indivisible)),
        (_, OnLazyFree::ForbidWrites | OnLazyFree::ForbidPages) => (State::Split, OnLazyFree::ForbidPages),
        (_, skipped @ OnLazyFree::Skip(_)) => (state, skipped),
    }
}

/// `cancel_lazy_free`, and everything else that takes lazy freeing back without a write.
pub(crate) const fn on_cancel(state: State) -> (State, OnCancel) {
    match state {
        State::Lazy => (State::Shared, OnCancel::Keep),
        State::Split => (State::Split, OnCancel::KeepPages),
        State::Zero | State::Private | State::Shared | State::Borrowed | State::Revoked => (state, OnCancel::Nothing),
    }
}

/// Reclaim of what was lazily freed.
pub(crate) const fn on_reclaim(state: State, facts: Facts) -> (State, OnReclaim) {
    match state {
        State::Lazy if facts.alone => (State::Zero, OnReclaim::ShowZeros),
        State::Split if facts.alone => (State::Split, OnReclaim::DropPages),
        State::Lazy | State::Split => (state, OnReclaim::Wait),
        State::Zero | State::Private | State::Shared | State::Borrowed | State::Revoked => (state, OnReclaim::Nothing),
    }
}

/// The region that wrote the block asks for it back.
pub(crate) const fn on_revoke(state: State, facts: Facts) -> (State, OnRevoke) {
    match state {
        State::Borrowed if !facts.reserved => (State::Revoked, OnRevoke::Hide),
        State::Borrowed if facts.frozen => (State::Borrowed, OnRevoke::CopyIntoReserved),
        State::Borrowed => (State::Private, OnRevoke::CopyIntoReserved),
        State::Zero | State::Private | State::Shared | State::Lazy | State::Split | State::Revoked => {
            (state, OnRevoke::Nothing)
        }
    }
}

/// A pin. Taking it off again changes nothing but the count.
pub(crate) const fn on_pin(state: State) -> (State, OnPin) {
    match state {
        State::Private => (State::Private, OnPin::Count),
        State::Zero | State::Shared | State::Borrowed | State::Lazy | State::Split | State::Revoked => {
            (state, OnPin::WriteFirst)
        }
    }
}

/// The region or snapshot goes.
pub(crate) const fn on_drop(state: State, facts: Facts) -> OnDrop {
    match state {
        State::Zero | State::Revoked => OnDrop::Nothing,
        State::Private if facts.pinned => OnDrop::Leak,
        State::Private | State::Shared | State::Borrowed | State::Lazy => OnDrop::Release,
        State::Split => OnDrop::ReleasePages,
    }
}

/// The call that was to give or take the right to write failed: some pages may be writable, others not, and none may be dropped.
/// The next write finds one holder and asks for the right again.
pub(crate) const fn on_protect_failed(state: State) -> State {
    match state {
        State::Private | State::Shared | State::Lazy | State::Split => State::Shared,
        State::Zero | State::Borrowed | State::Revoked => state,
    }
}

/// All that can happen to an entry.
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
}

/// What has to be done at an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Nothing,
    Refuse,
    Write(OnWrite),
    Share(OnShare),
    Discard(OnDiscard),
    LazyFree(OnLazyFree),
    Cancel(OnCancel),
    Reclaim(OnReclaim),
    Revoke(OnRevoke),
    Pin(OnPin),
    Drop(OnDrop),
}

/// What follows from an event: the whole state machine. The engine asks for the work of one event at a time, by the functions above,
/// and every entry that it stores is checked against this.
pub(crate) const fn step(event: Event, state: State, facts: Facts) -> (State, Work) {
    let is_split = matches!(state, State::Split);
    match event {
        Event::Write => {
            let (next, work) = on_write(state, facts);
            (next, Work::Write(work))
        }
        Event::Read => (state, if is_readable(state) { Work::Nothing } else { Work::Refuse }),
        Event::Snapshot | Event::Fork => {
            let (next, work) = on_share(state, facts);
            (next, Work::Share(work))
        }
        Event::Discard => {
            let (next, work) = on_discard(state, facts);
            (next, Work::Discard(work))
        }
        Event::LazyFree => {
            let (next, work) = on_lazy_free(state, facts);
            (next, Work::LazyFree(work))
        }
        Event::LazyFreePart => {
            let (next, work) = on_lazy_free_part(state, facts);
            (next, Work::LazyFree(work))
        }
        Event::Cancel => {
            let (next, work) = on_cancel(state);
            (next, Work::Cancel(work))
        }
        Event::Reclaim => {
            let (next, work) = on_reclaim(state, facts);
            (next, Work::Reclaim(work))
        }
        Event::Revoke => {
            let (next, work) = on_revoke(state, facts);
            (next, Work::Revoke(work))
        }
        Event::Pin => {
            let (next, work) = on_pin(state);
            (next, Work::Pin(work))
        }
        Event::Unpin => (state, Work::Nothing),
        Event::Drop => (state, Work::Drop(on_drop(state, facts))),
        Event::PagesWritable => (if is_split { State::Private } else { state }, Work::Nothing),
        Event::PagesLazy => (if is_split { State::Lazy } else { state }, Work::Nothing),
        Event::PagesDropped => (if is_split { State::Zero } else { state }, Work::Nothing),
        Event::ProtectFailed => (on_protect_failed(state), Work::Nothing),
    }
}

/// Whether the table has a way from one state to another, whatever the facts. A split block may become whole at any event.
pub(crate) const fn allows(event: Event, from: State, to: State) -> bool {
    let next = NEXT[event as usize][from as usize] | NEXT[Event::PagesWritable as usize][from as usize];
    let next =
        next | NEXT[Event::PagesLazy as usize][from as usize] | NEXT[Event::PagesDropped as usize][from as usize];
    from as u32 == to as u32 || next >> to as u32 & 1 == 1
}

/// A bit for each state that may follow.
static NEXT: [[u8; STATES.len()]; EVENTS.len()] = {
    let mut next = [[0; STATES.len()]; EVENTS.len()];
    let mut at = 0;
    while at < EVENTS.len() * STATES.len() * Facts::COUNT {
        let (event, state) = (at / Facts::COUNT / STATES.len(), at / Facts::COUNT % STATES.len());
        let (to, _) = step(EVENTS[event], STATES[state], Facts::nth(at % Facts::COUNT));
        next[event][state] |= 1 << to as u32;
        at += 1;
    }
    next
};

/// All states, in the order of their numbers.
pub(crate) const STATES: [State; 7] =
    [State::Zero, State::Private, State::Shared, State::Borrowed, State::Lazy, State::Split, State::Revoked];

/// All events, in order.
pub(crate) const EVENTS: [Event; 17] = [
    Event::Write,
    Event::Read,
    Event::Snapshot,
    Event::Fork,
    Event::Discard,
    Event::LazyFree,
    Event::LazyFreePart,
    Event::Cancel,
    Event::Reclaim,
    Event::Revoke,
    Event::Pin,
    Event::Unpin,
    Event::Drop,
    Event::PagesWritable,
    Event::PagesLazy,
    Event::PagesDropped,
    Event::ProtectFailed,
];

impl Facts {
    /// How many combinations there are.
    pub(crate) const COUNT: usize = 32;

    /// One of them: each fact is a bit.
    pub(crate) const fn nth(bits: usize) -> Facts {
        Facts {
            alone: bits & 1 != 0,
            reserved: bits & 2 != 0,
            pinned: bits & 4 != 0,
            divisible: bits & 8 != 0,
            frozen: bits & 16 != 0,
        }
    }
}

#[cfg(test)]
#[path = "transition_tests.rs"]
mod tests;
