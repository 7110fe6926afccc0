//! Operations: groups of writes of the program that a snapshot is to contain wholly or not at all. A cut waits until no
//! thread is inside an operation.
//!
//! ```text
//!   Operations ─▶ OperationsCore: gate, seats ◀─ one seat for each thread that has ever entered
//!                       ▲
//!   regions ────────────┘   a cut of any of them closes the gate meanwhile
//! ```
//! A cut closes the gate (sync/gate.rs) while it is made, but not while pages are written back ahead of it. Faults use
//! nothing of this file.
//!
//! Only one cut at a time closes the gate. The patience of a cut starts with its call, and also runs while another cut
//! waits for operations before it. So if a thread stays inside an operation, each waiting cut gives up after its own
//! patience. While another cut is made, no thread is inside an operation. So the patience of the waiting cuts starts
//! anew when that cut ends. Such a waiting cut gives up only if its own thread keeps other operations from going on.
//!
//! ```text
//!   Free ──▶ Waits ──▶ Cut ──▶ Free
//!              └── gives up ─────▲
//! ```

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::core::RegionCore;
use crate::mem::{EngineArc, EngineBox, EngineVec, Own};
use crate::sync::{Engaged, Fences, Gate, NotClosed, Seat, wait_at_most};
use crate::sys::Sys;
#[cfg(feature = "heap")]
use crate::sys::linux::owner;
use crate::sys::linux::{barrier, threads};
use crate::types::error::RegionError;

/// The longest single sleep of a waiting cut, because the kernel takes no timeout as long as `Duration::MAX`.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The time after which a waiting cut checks whether the thread that it waits for has ended: such an end wakes nobody.
const LOOKS_AFTER_THREAD: Duration = Duration::from_millis(10);

/// The seat of one thread. Another thread may get the seat once that thread has ended.
#[derive(Default)]
pub(crate) struct ThreadSeat {
    seat: Seat,
    /// The thread's number, for messages.
    thread: AtomicU32,
    is_taken: AtomicBool,
    /// Its place among the seats of the operations, from 0 on.
    #[cfg_attr(not(feature = "heap"), allow(dead_code))]
    nth: usize,
}

/// The state that regions share with the threads that write to them.
pub(crate) struct OperationsCore {
    gate: Gate,
    /// Never held while a thread waits.
    room: Mutex<Room>,
    /// Notified when another cut may close the gate.
    is_free: Condvar,
    /// How long a cut waits for operations.
    patience: Duration,
    /// Set once neither the program nor a region holds the operations, so no thread needs its seat any more.
    is_given_up: AtomicBool,
}

/// The seats, and the progress of the cut that closes the gate.
struct Room {
    seats: EngineVec<EngineBox<ThreadSeat>>,
    closing: Closing,
    /// The last time at which a cut knew that no thread was inside an operation.
    empty: Instant,
}

/// The progress of the cut that closes the gate. The gate is open only in `Free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    Free,
    /// A cut closes the gate, and waits until no thread is inside an operation.
    Waits,
    /// No thread is inside an operation, and the cut is made.
    Cut,
}

/// The handle of the program and its regions. A thread with a seat holds only the [`OperationsCore`], until it sees
/// that the operations are given up.
#[derive(Clone)]
pub(crate) struct HeldOperations {
    core: EngineArc<OperationsCore>,
    _last_gives_up: EngineArc<GivesUp>,
}

struct GivesUp(EngineArc<OperationsCore>);

impl Drop for GivesUp {
    fn drop(&mut self) {
        self.0.is_given_up.store(true, Ordering::Relaxed);
    }
}

impl HeldOperations {
    pub(crate) fn new(patience: Duration) -> HeldOperations {
        let core = EngineArc::new(OperationsCore::new(patience));
        HeldOperations { _last_gives_up: EngineArc::new(GivesUp(core.clone())), core }
    }

    #[inline]
    pub(crate) fn core(&self) -> &EngineArc<OperationsCore> {
        &self.core
    }

    /// Whether both handles belong to the same operations.
    pub(crate) fn is(&self, other: &HeldOperations) -> bool {
        self.core.is(&other.core)
    }
}

thread_local! {
    /// The number of [`BetweenOperations`] of the thread.
    static CLOSED: Cell<u32> = const { Cell::new(0) };
}

/// While this lives, no thread is inside an operation. Stays on its thread.
pub(crate) struct BetweenOperations<'a> {
    operations: &'a OperationsCore,
}

impl<'a> BetweenOperations<'a> {
    fn new(operations: &'a OperationsCore) -> BetweenOperations<'a> {
        CLOSED.set(CLOSED.get() + 1);
        BetweenOperations { operations }
    }
}

/// Whether the calling thread keeps threads from entering operations. If it entered one itself, it could wait for ever.
#[cfg(feature = "heap")]
#[inline]
pub(crate) fn is_this_thread_between() -> bool {
    CLOSED.get() > 0 && !owner::is_forked_child()
}

impl Drop for BetweenOperations<'_> {
    fn drop(&mut self) {
        CLOSED.set(CLOSED.get() - 1);
        let empty = Instant::now();
        self.operations.gate.open();
        let mut room = self.operations.room();
        room.empty = empty;
        self.operations.free(room);
    }
}

impl OperationsCore {
    fn new(patience: Duration) -> OperationsCore {
        let fences = if barrier::is_offered() { Fences::Asymmetric } else { Fences::Full };
        let room = Mutex::new(Room { seats: EngineVec::new_in(Own), closing: Closing::Free, empty: Instant::now() });
        let is_given_up = AtomicBool::new(false);
        OperationsCore { gate: Gate::new(fences), room, is_free: Condvar::new(), patience, is_given_up }
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

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a seat for the calling thread. The seat does not move while `self` lives.
    pub(crate) fn take_seat(&self) -> &ThreadSeat {
        let _engaged = Engaged::new();
        let seats = &mut self.room().seats;
        if seats.iter().all(|seat| seat.is_taken.load(Ordering::Acquire)) {
            let nth = seats.len();
            seats.push(EngineBox::new_in(ThreadSeat { nth, ..ThreadSeat::default() }, Own));
        }
        let free = seats.iter().find(|seat| !seat.is_taken.load(Ordering::Acquire)).expect("there is a free seat");
        free.is_taken.store(true, Ordering::Relaxed);
        free.thread.store(threads::own_number(), Ordering::Relaxed);
        self.stays(free)
    }

    /// Extends the borrow of a seat beyond the lock of the room.
    fn stays(&self, seat: &EngineBox<ThreadSeat>) -> &ThreadSeat {
        let seat = &raw const **seat;
        // SAFETY: seats are boxed, and none is dropped before `self` is.
        unsafe { &*seat }
    }

    /// Gives up the seat of a thread that ends. If the thread has forgotten an operation, that operation is over. Its
    /// guard may still be dropped later, so no other thread gets the seat then.
    pub(crate) fn vacate(&self, seat: &ThreadSeat) {
        if !self.gate.leave_for_good(&seat.seat) {
            seat.is_taken.store(false, Ordering::Release);
        }
    }

    /// Gives up the seat of a thread that has ended without [`OperationsCore::vacate`], for example by the system call
    /// `exit`, which drops no locals. The operations of that thread are over.
    fn leave_for_good(&self, seat: &ThreadSeat) {
        self.gate.leave_for_good(&seat.seat);
        seat.is_taken.store(false, Ordering::Release);
    }

    #[inline]
    pub(crate) fn enter(&self, seat: &ThreadSeat) {
        self.gate.enter(&seat.seat);
    }

    /// Enters an operation, unless a cut keeps threads from entering.
    #[cfg(feature = "heap")]
    #[inline]
    pub(crate) fn enter_if_open(&self, seat: &ThreadSeat) -> bool {
        self.gate.enter_if_open(&seat.seat)
    }

    /// Leaves an operation. False if the thread is in none.
    #[inline]
    pub(crate) fn leave(&self, seat: &ThreadSeat) -> bool {
        self.gate.leave(&seat.seat)
    }

    /// Waits until no thread is inside an operation, and lets no thread enter one until the result is dropped.
    pub(crate) fn wait_for_all(&self) -> Result<BetweenOperations<'_>, RegionError> {
        self.wait_since(Instant::now(), self.patience)
    }

    /// As [`OperationsCore::wait_for_all`], with another patience.
    pub(crate) fn wait_for_at_most(&self, patience: Duration) -> Result<BetweenOperations<'_>, RegionError> {
        self.wait_since(Instant::now(), patience)
    }

    /// As [`OperationsCore::wait_for_all`], for a cut that has waited since `called`.
    fn wait_since(&self, called: Instant, patience: Duration) -> Result<BetweenOperations<'_>, RegionError> {
        let _engaged = Engaged::new();
        let begun = self.closes(called, patience)?;
        // A seat that a thread takes after this loop has passed needs no check: that thread finds the gate closed.
        let seats = (0..).map_while(|nth| Some(&self.stays(self.room().seats.get(nth)?).seat));
        let closed = self.gate.close(seats, |seat, word, seen| {
            if let Some(ended) = self.of_ended_thread(seat) {
                self.leave_for_good(ended);
                return true;
            }
            let left = patience.saturating_sub(begun.elapsed());
            if !left.is_zero() {
                wait_at_most(word, seen, left.min(LOOKS_AFTER_THREAD));
            }
            !left.is_zero()
        });
        let mut room = self.room();
        let error = match closed {
            Ok(()) => {
                room.closing = Closing::Cut;
                return Ok(BetweenOperations::new(self));
            }
            Err(NotClosed::NoFence(error)) => RegionError::System(error),
            Err(NotClosed::Inside(inside)) => {
                OperationsCore::goes_on(patience, room.seats.iter().find(|seat| ptr::eq(&raw const seat.seat, inside)))
            }
        };
        self.free(room);
        Err(error)
    }

    /// Waits until no other cut closes the gate. Returns the start of the time for which this cut has waited for
    /// operations: an operation that runs now may have run since then.
    fn closes(&self, called: Instant, patience: Duration) -> Result<Instant, RegionError> {
        let mut room = self.room();
        loop {
            let begun = called.max(room.empty);
            let left = patience.saturating_sub(begun.elapsed());
            room = match room.closing {
                Closing::Free => {
                    room.closing = Closing::Waits;
                    return Ok(begun);
                }
                // The other cut ends by itself, unless its thread waits for a gate that this thread keeps closed: two
                // forks wait for the operations of all regions, one after the other.
                Closing::Cut if CLOSED.get() == 0 => self.is_free.wait(room).unwrap_or_else(PoisonError::into_inner),
                Closing::Waits | Closing::Cut if left.is_zero() => {
                    return Err(OperationsCore::goes_on(patience, room.seats.iter().find(|seat| seat.is_inside())));
                }
                Closing::Waits | Closing::Cut => {
                    let woken = self.is_free.wait_timeout(room, left.min(LONGEST_SLEEP));
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// The [`ThreadSeat`] of `seat`, if its thread has ended.
    fn of_ended_thread(&self, seat: &Seat) -> Option<&ThreadSeat> {
        let is_it = |taken: &&EngineBox<ThreadSeat>| ptr::eq(&raw const taken.seat, seat);
        let taken = self.room().seats.iter().find(is_it).map(|taken| self.stays(taken))?;
        threads::has_ended(taken.thread.load(Ordering::Relaxed)).then_some(taken)
    }

    fn goes_on(patience: Duration, seat: Option<&EngineBox<ThreadSeat>>) -> RegionError {
        let thread = seat.map_or(0, |seat| seat.thread.load(Ordering::Relaxed));
        RegionError::OperationGoesOn { thread, patience }
    }

    /// Lets another cut close the gate, which is open now. It is enough to wake one cut: a cut gives up only when it
    /// sees that another cut closes the gate, and that other cut wakes the next one.
    fn free(&self, mut room: MutexGuard<'_, Room>) {
        room.closing = Closing::Free;
        drop(room);
        self.is_free.notify_one();
    }
}

impl ThreadSeat {
    /// The number of the seat among those of its operations, from 0 on. No two living threads have the same.
    #[cfg(feature = "heap")]
    #[inline]
    pub(crate) fn nth(&self) -> usize {
        self.nth
    }

    pub(crate) fn is_inside(&self) -> bool {
        self.seat.is_inside()
    }
}

/// Waits until the operations of regions that are cut or reset together are over, and then takes the regions' turns by
/// `take_turns`. It never waits for operations while it has turns, because a thread inside an operation may wait for a
/// turn.
pub(in crate::region) fn over_and_then<'a, S: Sys, T>(
    regions: impl Iterator<Item = &'a RegionCore<S>> + Clone,
    take_turns: impl Fn() -> T,
) -> Result<(Option<BetweenOperations<'a>>, T), RegionError> {
    loop {
        let between = of_all(regions.clone())?.map(OperationsCore::wait_for_all).transpose()?;
        let turns = take_turns();
        // While this thread has the turns, no region is given operations. But one may have been given some before that.
        if of_all(regions.clone())?.is_none() || between.is_some() {
            return Ok((between, turns));
        }
    }
}

/// The operations of regions that are cut or reset together. They must be the same for all regions that have any.
pub(in crate::region) fn of_all<'a, S: Sys>(
    regions: impl Iterator<Item = &'a RegionCore<S>>,
) -> Result<Option<&'a OperationsCore>, RegionError> {
    let mut found: Option<&HeldOperations> = None;
    for operations in regions.filter_map(|region| region.operations.get()) {
        if found.is_some_and(|found| !found.is(operations)) {
            return Err(RegionError::AnotherOperations);
        }
        found = Some(operations);
    }
    Ok(found.map(|found| &**found.core()))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn is_closed(operations: &OperationsCore) -> bool {
        operations.room().closing == Closing::Waits
    }

    /// Runs `beside` while a cut waits for the calling thread, which has just entered an operation.
    fn beside_a_cut_that_waits(operations: &OperationsCore, called: Instant, beside: impl FnOnce()) {
        let seat = operations.take_seat();
        operations.enter(seat);
        thread::scope(|scope| {
            let cut = scope.spawn(|| drop(operations.wait_since(called, operations.patience).unwrap()));
            while !is_closed(operations) {
                assert!(!cut.is_finished(), "the cut did not wait");
                thread::yield_now();
            }
            beside();
            assert!(operations.leave(seat));
        });
        operations.vacate(seat);
    }

    #[test]
    fn a_thread_gets_a_seat_while_a_cut_waits_and_waits_for_the_cut_itself_only() {
        let operations = OperationsCore::new(Duration::MAX);
        beside_a_cut_that_waits(&operations, Instant::now(), || {
            let (seat, another) = (operations.take_seat(), operations.take_seat());
            assert!(!ptr::eq(seat, another));
            [seat, another].iter().for_each(|seat| operations.vacate(seat));
        });
        drop(operations.wait_for_all().unwrap());
    }

    #[test]
    fn a_cut_behind_one_that_waits_gives_up_when_its_own_patience_is_over() {
        let operations = OperationsCore::new(LONG);
        let long_ago = Instant::now().checked_sub(LONG).unwrap();
        operations.room().empty = long_ago;
        beside_a_cut_that_waits(&operations, Instant::now(), || {
            let Err(RegionError::OperationGoesOn { thread, .. }) = operations.wait_since(long_ago, operations.patience)
            else {
                panic!("it has waited for long enough")
            };
            assert_eq!(thread, threads::own_number());
        });
        drop(operations.wait_for_all().unwrap());
    }

    #[test]
    fn a_cut_that_has_waited_for_another_that_was_made_has_all_of_its_patience_left() {
        let operations = OperationsCore::new(LONG);
        let long_ago = Instant::now().checked_sub(LONG).unwrap();
        drop(operations.wait_for_all().unwrap());
        beside_a_cut_that_waits(&operations, long_ago, || {});
    }

    #[test]
    fn a_thread_that_keeps_a_gate_closed_gives_up_while_another_cut_is_made() {
        let [one, other] = [(); 2].map(|()| OperationsCore::new(LONG));
        let step = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let cut = other.wait_for_all().unwrap();
                step.wait();
                step.wait();
                drop(cut);
            });
            step.wait();
            let kept = one.wait_for_all().unwrap();
            let refused = other.wait_for_at_most(Duration::ZERO);
            assert!(matches!(refused, Err(RegionError::OperationGoesOn { .. })));
            drop(kept);
            step.wait();
            // Without a gate of its own, it waits for the end of the cut.
            drop(other.wait_for_at_most(Duration::ZERO).unwrap());
        });
    }
}
