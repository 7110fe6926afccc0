//! Operations of the program that cuts wait for: what several writes are to be in a snapshot all or none.
//!
//! ```text
//!   Operations ─▶ OperationsCore: gate, seats ◀─ each thread that has ever entered, its seat
//!                       ▲
//!   regions ────────────┘   a cut of any of them closes the gate meanwhile
//! ```
//! The gate (sync/gate.rs) is closed while a cut is made, and not while pages are folded ahead of it. Nothing here is
//! used by a fault.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::core::RegionCore;
use crate::own::{Boxed, Counted, List, Own};
use crate::sync::{Fences, Gate, NotClosed, Seat, wait_at_most};
use crate::sys::Sys;
use crate::sys::linux::{barrier, threads};
use crate::terms::error::RegionError;

/// Whoever waits for longer looks again in between: the kernel knows no time as long as `Duration::MAX`.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// A thread's seat, which belongs to one thread at a time, and is used again when that has ended.
#[derive(Default)]
pub(crate) struct ThreadSeat {
    seat: Seat,
    /// The thread's number, for messages.
    thread: AtomicU32,
    is_taken: AtomicBool,
}

/// What regions, and threads that write to them, share.
pub(crate) struct OperationsCore {
    gate: Gate,
    /// Whoever closes the gate holds this lock: seats are then all that there are.
    seats: Mutex<List<Boxed<ThreadSeat>>>,
    /// How long a cut waits for operations.
    patience: Duration,
    /// Neither the program nor a region can use it any more.
    is_given_up: AtomicBool,
}

/// What the program and its regions hold. Threads that have a seat hold the rest only, until they see that it is given
/// up.
#[derive(Clone)]
pub(crate) struct HeldOperations {
    core: Counted<OperationsCore>,
    _last_gives_up: Counted<GivesUp>,
}

struct GivesUp(Counted<OperationsCore>);

impl Drop for GivesUp {
    fn drop(&mut self) {
        self.0.is_given_up.store(true, Ordering::Relaxed);
    }
}

impl HeldOperations {
    pub(crate) fn new(patience: Duration) -> HeldOperations {
        let core = Counted::new(OperationsCore::new(patience));
        HeldOperations { _last_gives_up: Counted::new(GivesUp(core.clone())), core }
    }

    pub(crate) fn core(&self) -> &Counted<OperationsCore> {
        &self.core
    }

    /// Whether both are the same.
    pub(crate) fn is(&self, other: &HeldOperations) -> bool {
        self.core.is(&other.core)
    }
}

impl Deref for HeldOperations {
    type Target = OperationsCore;

    #[inline]
    fn deref(&self) -> &OperationsCore {
        &self.core
    }
}

/// Nobody is inside of an operation until this is dropped.
pub(crate) struct BetweenOperations<'a> {
    operations: &'a OperationsCore,
    _seats: MutexGuard<'a, List<Boxed<ThreadSeat>>>,
}

impl Drop for BetweenOperations<'_> {
    fn drop(&mut self) {
        self.operations.gate.open();
    }
}

impl OperationsCore {
    fn new(patience: Duration) -> OperationsCore {
        let fences = if barrier::is_offered() { Fences::Asymmetric } else { Fences::Full };
        let seats = Mutex::new(List::new_in(Own));
        OperationsCore { gate: Gate::new(fences), seats, patience, is_given_up: AtomicBool::new(false) }
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    pub(crate) fn fences(&self) -> Fences {
        self.gate.fences()
    }

    fn seats(&self) -> MutexGuard<'_, List<Boxed<ThreadSeat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat for the calling thread. Waits while a cut is made. The seat stays where it is as long as `self` does.
    pub(crate) fn take_seat(&self) -> &ThreadSeat {
        let mut seats = self.seats();
        if seats.iter().all(|seat| seat.is_taken.load(Ordering::Acquire)) {
            seats.push(Boxed::new_in(ThreadSeat::default(), Own));
        }
        let free = seats.iter().find(|seat| !seat.is_taken.load(Ordering::Acquire)).expect("there is a free seat");
        free.is_taken.store(true, Ordering::Relaxed);
        free.thread.store(threads::own_number(), Ordering::Relaxed);
        let free = &raw const **free;
        // SAFETY: seats are boxed, and none is dropped before `self` is.
        unsafe { &*free }
    }

    /// The thread of the seat ends. If it has forgotten an operation, that is over; whoever holds its guard may still
    /// drop it, so nobody else gets the seat.
    pub(crate) fn vacate(&self, seat: &ThreadSeat) {
        if !self.gate.leave_for_good(&seat.seat) {
            seat.is_taken.store(false, Ordering::Release);
        }
    }

    #[inline]
    pub(crate) fn enter(&self, seat: &ThreadSeat) {
        self.gate.enter(&seat.seat);
    }

    /// False if the thread is in no operation.
    #[inline]
    pub(crate) fn leave(&self, seat: &ThreadSeat) -> bool {
        self.gate.leave(&seat.seat)
    }

    /// Waits until nobody is inside of an operation, and keeps all others out.
    pub(crate) fn wait_for_all(&self) -> Result<BetweenOperations<'_>, RegionError> {
        let seats = self.seats();
        let begun = Instant::now();
        let closed = self.gate.close(seats.iter().map(|seat| &seat.seat), |word, seen| {
            let left = self.patience.saturating_sub(begun.elapsed());
            if !left.is_zero() {
                wait_at_most(word, seen, left.min(LONGEST_SLEEP));
            }
            !left.is_zero()
        });
        match closed {
            Ok(()) => Ok(BetweenOperations { operations: self, _seats: seats }),
            Err(NotClosed::NoFence(error)) => Err(RegionError::System(error)),
            Err(NotClosed::Inside(inside)) => {
                let whose = seats.iter().find(|seat| std::ptr::eq(&raw const seat.seat, inside));
                let thread = whose.map_or(0, |seat| seat.thread.load(Ordering::Relaxed));
                Err(RegionError::OperationGoesOn { thread, patience: self.patience })
            }
        }
    }
}

impl ThreadSeat {
    pub(crate) fn is_inside(&self) -> bool {
        self.seat.is_inside()
    }
}

/// Waits until the operations of regions that are cut at one moment are over, and then for the regions' turns, which
/// `take_turns` takes. A thread inside of an operation may wait for a turn, so nobody waits the other way round.
pub(super) fn over_and_then<'a, S: Sys, T>(
    regions: impl Iterator<Item = &'a RegionCore<S>> + Clone,
    take_turns: impl Fn() -> T,
) -> Result<(Option<BetweenOperations<'a>>, T), RegionError> {
    loop {
        let between = of_all(regions.clone())?.map(OperationsCore::wait_for_all).transpose()?;
        let turns = take_turns();
        // From here on none of the regions is given operations. One may have been while this waited.
        if of_all(regions.clone())?.is_none() || between.is_some() {
            return Ok((between, turns));
        }
    }
}

/// The operations of regions that are cut at one moment.
pub(super) fn of_all<'a, S: Sys>(
    regions: impl Iterator<Item = &'a RegionCore<S>>,
) -> Result<Option<&'a OperationsCore>, RegionError> {
    let mut found: Option<&HeldOperations> = None;
    for operations in regions.filter_map(|region| region.operations.get()) {
        if found.is_some_and(|found| !found.is(operations)) {
            return Err(RegionError::AnotherOperations);
        }
        found = Some(operations);
    }
    Ok(found.map(Deref::deref))
}
