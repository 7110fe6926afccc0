//! The whole state machine as one function, made of the functions of transition.rs, one for each event. The engine
//! calls those directly. This function serves the table in docs/safety/states.md, the test that compares the two,
//! and builds with debug assertions, which check each entry that is stored.

use super::entry::{Origin, State};
use super::pins::Pinned;
use super::transition::{
    Event, Goal, Grain, Held, OnCancel, OnDiscard, OnDrop, OnLazyFree, OnPin, OnReclaim, OnReset, OnRevoke, OnShare,
    OnWrite, on_cancel, on_discard, on_drop, on_lazy_free, on_lazy_free_part, on_pin, on_protect_failed, on_reclaim,
    on_reset, on_revoke, on_share, on_write, on_write_protect,
};
use crate::sys::Merging;
use crate::types::options::Reserve;

/// All facts that decide beside the state. Each event reads only some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) held: Held,
    /// Whether the entry's holder has a reservation, so that nothing may be taken away from it.
    pub(crate) reserve: Reserve,
    /// Only a `Private` block can be pinned.
    pub(crate) pinned: Pinned,
    /// Whether the backing lets a block be treated page by page.
    pub(crate) merging: Merging,
    /// The writer of the block.
    pub(crate) origin: Origin,
    pub(crate) grain: Grain,
    pub(crate) goal: Goal,
}

/// The work that an event requires.
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
    Reset(OnReset),
}

/// The next state, and the work wrapped in `Work`.
macro_rules! both {
    ($work:ident, $outcome:expr) => {{
        let (next, work) = $outcome;
        (next, Work::$work(work))
    }};
}

/// The next state of an entry after `event`, and the work that leads there.
pub(crate) fn step(event: Event, state: State, facts: Facts) -> (State, Work) {
    let is_split = matches!(state, State::Split);
    match event {
        Event::Write => both!(Write, on_write(state, facts.held, facts.grain)),
        Event::Read => (state, if state == State::Revoked { Work::Refuse } else { Work::Nothing }),
        Event::Snapshot | Event::Fork => both!(Share, on_share(state, facts.pinned)),
        Event::Discard => both!(Discard, on_discard(state, facts.pinned)),
        Event::LazyFree => both!(LazyFree, on_lazy_free(state, facts.held, facts.pinned)),
        Event::LazyFreePart => both!(LazyFree, on_lazy_free_part(state, facts.held, facts.pinned, facts.merging)),
        Event::Cancel => both!(Cancel, on_cancel(state)),
        Event::Reclaim => both!(Reclaim, on_reclaim(state, facts.held)),
        Event::Revoke => both!(Revoke, on_revoke(state, facts.origin, facts.reserve)),
        Event::Pin => both!(Pin, on_pin(state)),
        Event::Unpin => (state, Work::Nothing),
        Event::Drop => (state, Work::Drop(on_drop(state, facts.pinned))),
        Event::PagesWritable => (if is_split { State::Private } else { state }, Work::Nothing),
        Event::PagesLazy => (if is_split { State::Lazy } else { state }, Work::Nothing),
        Event::PagesDropped => (if is_split { State::Zero } else { state }, Work::Nothing),
        Event::ProtectFailed => (on_protect_failed(state), Work::Nothing),
        Event::WriteProtect => (on_write_protect(state), Work::Nothing),
        Event::Reset => both!(Reset, on_reset(state, facts.goal, facts.pinned)),
    }
}

/// Whether `event` can lead from one state to another under any facts. A split block may become whole at any event,
/// because its pages do.
pub(crate) fn allows(event: Event, from: State, to: State) -> bool {
    let may = |event| (0..Facts::COUNT).map(Facts::nth).any(|facts| step(event, from, facts).0 == to);
    from == to || [event, Event::PagesWritable, Event::PagesLazy, Event::PagesDropped].into_iter().any(may)
}

impl Facts {
    /// How many combinations there are.
    pub(crate) const COUNT: usize = 128;

    /// The combination number `bits`; each bit is one fact.
    pub(crate) fn nth(bits: usize) -> Facts {
        Facts {
            held: if bits & 1 != 0 { Held::Alone } else { Held::ByOthersToo },
            reserve: if bits & 2 != 0 { Reserve::Full } else { Reserve::None },
            pinned: if bits & 4 != 0 { Pinned::Yes } else { Pinned::No },
            merging: if bits & 8 != 0 { Merging::Merge } else { Merging::Separate },
            origin: if bits & 16 != 0 { Origin::Parent } else { Origin::Own },
            grain: if bits & 32 != 0 { Grain::Page } else { Grain::Block },
            goal: if bits & 64 != 0 { Goal::Same } else { Goal::Other },
        }
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
