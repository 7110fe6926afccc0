//! A gate that many threads go through all the time, and somebody closes now and then: the readers-writer lock of those
//! who must not pay for it. To go in is a load, a store and a load of words that no other thread writes to.
//!
//! ```text
//!   who goes in                               who closes
//!   seat := 1                                 gate := closed
//!   ── light fence ──                         ── heavy fence ──
//!   gate is open?  in                         each seat: sleep until it is 0
//!   closed?        seat := 0, sleep, again    (the cut)
//!   …                                         gate := open, wake all
//!   seat := 0
//!   ── light fence ──
//!   gate is closed?  wake who sleeps on the seat
//! ```
//! Each thread has a [`Seat`] of its own, which counts how deep it is inside: who is inside goes in again without a
//! look at the gate, since whoever closes it waits for him.
//!
//! # Why nobody is overlooked
//! Each side writes its own word and then reads the other's. Both must not read the old value: then a thread would be
//! inside of a closed gate. A full fence on each side rules that out, and costs who goes in some 20 cycles. So the
//! kernel runs both of them for who closes ([`heavy_fence`], `membarrier(2)`): on every processor that runs a thread of
//! the process there is a moment within the call at which that thread has a full fence. What it does before that moment
//! is seen by who closes afterwards; what it does after it sees the closed gate. So the light fence only has to keep
//! the compiler from exchanging the store and the load. Where the kernel has no such call, the light fence is a full
//! one.
//!
//! The same holds for leaving. If the leaver's load comes before its moment, so does its store, and who closes reads 0
//! and does not sleep. Otherwise it sees the closed gate, and wakes.
//!
//! Light fences are never paired with each other, so it does not matter that two of them order nothing.
//!
//! The rest are locks' usual orders. A seat is set to 0 with `Release` and read with `Acquire`: what was written inside
//! happens before the cut. The gate is opened with `Release` and read with `Acquire`: the cut happens before what is
//! written by those who waited.

use super::primitive::{AtomicU32, FenceError, Ordering, heavy_fence, is_forked_child, light_fence, wait, wake};

const OPEN: u32 = 0;
const CLOSED: u32 = 1;

/// How those who go in, and those who close, see each other's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fences {
    /// Who closes fences for all.
    Asymmetric,
    /// Each fences for itself.
    Full,
}

/// A thread's place at a gate: how deep it is inside. Only this thread changes it, and after its end the thread that
/// closes. It lies alone in its lines of the cache, since processors fetch these in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Seat {
    depth: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct Gate {
    state: AtomicU32,
    fences: Fences,
}

/// Why a gate was not closed. It is open.
#[derive(Debug)]
pub(crate) enum NotClosed<'a> {
    /// The thread of this seat was inside for longer than one would wait.
    Inside(&'a Seat),
    /// There was no fence.
    NoFence(FenceError),
}

impl Seat {
    /// Whether its thread is inside.
    pub(crate) fn is_inside(&self) -> bool {
        self.depth.load(Ordering::Relaxed) > 0
    }
}

impl Gate {
    pub(crate) fn new(fences: Fences) -> Gate {
        Gate { state: AtomicU32::new(OPEN), fences }
    }

    pub(crate) fn fences(&self) -> Fences {
        self.fences
    }

    /// Goes in, or deeper in. Waits while the gate is closed, unless the thread is inside already.
    #[inline]
    pub(crate) fn enter(&self, seat: &Seat) {
        let depth = seat.depth.load(Ordering::Relaxed);
        seat.depth.store(depth + 1, Ordering::Relaxed);
        if depth == 0 && !self.is_open() {
            self.enter_later(seat);
        }
    }

    /// Whether a seat that was taken just now is seen by who closes.
    #[inline]
    fn is_open(&self) -> bool {
        light_fence(self.fences);
        self.state.load(Ordering::Acquire) == OPEN
    }

    #[cold]
    fn enter_later(&self, seat: &Seat) {
        loop {
            // In a child of fork(2) the gate may stay closed for good, and there is nothing to be cut.
            if is_forked_child() {
                return;
            }
            self.leave(seat);
            wait(&self.state, CLOSED);
            seat.depth.store(1, Ordering::Relaxed);
            if self.is_open() {
                return;
            }
        }
    }

    /// Goes out by one. False if the thread was not inside.
    #[inline]
    pub(crate) fn leave(&self, seat: &Seat) -> bool {
        match seat.depth.load(Ordering::Relaxed) {
            0 => return false,
            1 => {
                seat.depth.store(0, Ordering::Release);
                if !self.is_open() {
                    self.tell(seat);
                }
            }
            depth => seat.depth.store(depth - 1, Ordering::Relaxed),
        }
        true
    }

    /// Goes out, however deep inside. False if the thread was not inside.
    pub(crate) fn leave_for_good(&self, seat: &Seat) -> bool {
        let was_inside = seat.is_inside();
        if was_inside {
            seat.depth.store(1, Ordering::Relaxed);
            self.leave(seat);
        }
        was_inside
    }

    #[cold]
    fn tell(&self, seat: &Seat) {
        wake(&seat.depth, u32::MAX >> 1);
    }

    /// Lets nobody in until [`Gate::open`], and waits until all are out. One thread at a time may do so, and `seats`
    /// are those of all threads that have one when they are looked at: who gets one later finds the gate closed.
    /// `sleep` is given a seat, its word and the value of that. It sleeps while the word has that value, or returns
    /// false if it has waited for long enough.
    pub(crate) fn close<'a>(
        &self,
        seats: impl Iterator<Item = &'a Seat>,
        sleep: impl Fn(&Seat, &AtomicU32, u32) -> bool,
    ) -> Result<(), NotClosed<'a>> {
        self.state.store(CLOSED, Ordering::Relaxed);
        let fenced = heavy_fence(self.fences).map_err(NotClosed::NoFence);
        let left = fenced.and_then(|()| {
            let mut seats = seats;
            seats.try_for_each(|seat| wait_for(seat, &sleep).ok_or(NotClosed::Inside(seat)))
        });
        if left.is_err() {
            self.open();
        }
        left
    }

    /// Lets in who waits.
    pub(crate) fn open(&self) {
        self.state.store(OPEN, Ordering::Release);
        wake(&self.state, u32::MAX >> 1);
    }
}

/// Waits until nobody is inside by this seat.
fn wait_for(seat: &Seat, sleep: impl Fn(&Seat, &AtomicU32, u32) -> bool) -> Option<()> {
    loop {
        match seat.depth.load(Ordering::Acquire) {
            0 => return Some(()),
            depth if !sleep(seat, &seat.depth, depth) => return None,
            _ => {}
        }
    }
}
