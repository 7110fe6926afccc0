//! A gate for operations and snapshots: many threads pass through all the time, and a snapshot closes it now and then.
//! It is a readers-writer lock whose readers must not pay for it: entering takes one load, one store and one more load,
//! of words that no other thread writes meanwhile.
//!
//! ```text
//!   a thread that enters                      a thread that closes
//!   seat := 1                                 gate := closed
//!   ── light fence ──                         ── heavy fence ──
//!   gate is open?  enter                      each seat: sleep until it is 0
//!   closed?        seat := 0, sleep, again    (the cut)
//!   …                                         gate := open, wake all
//!   seat := 0
//!   ── light fence ──
//!   gate is closed?  wake the thread that sleeps on the seat
//! ```
//! Each thread has a [`Seat`] of its own, which counts how deep the thread is inside. A thread that is inside enters
//! again without reading the gate, since the closing thread waits for it anyway.
//!
//! # Why no thread is overlooked
//! Each side writes its own word and then reads the other's. If both read the old value, a thread would be inside a
//! closed gate. A full fence on each side rules that out, but costs the entering thread some 20 cycles. So the closing
//! thread has the kernel run both of them ([`heavy_fence`], `membarrier(2)`): within this call, each thread of the
//! process that is running has a full fence at some moment. The closing thread afterwards sees everything that the
//! other did before its moment, and after it the other sees the closed gate. So the light fence only has to keep the
//! compiler from exchanging the store and the load. Where the kernel lacks the call, the light fence is a full one.
//!
//! The same holds for leaving. If the leaving thread's load comes before its moment, so does its store, and the closing
//! thread reads 0 and does not sleep. Otherwise the leaving thread sees the closed gate, and wakes the closing one.
//!
//! Light fences are never paired with each other, so it does not matter that two of them order nothing.
//!
//! The other orders are the usual ones of locks. A seat is set to 0 with `Release` and read with `Acquire`: writes from
//! inside happen before the cut. The gate is opened with `Release` and read with `Acquire`: the cut happens before the
//! writes of the threads that waited.

use super::primitive::{AtomicU32, FenceError, Ordering, heavy_fence, is_forked_child, light_fence, wait, wake};

const OPEN: u32 = 0;
const CLOSED: u32 = 1;

/// How entering and closing threads come to see each other's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fences {
    /// The closing thread fences for all threads.
    Asymmetric,
    /// Each thread fences for itself.
    Full,
}

/// A thread's counter at a gate: how deep it is inside. Only this thread writes it and, after the thread's end, the
/// closing thread. It fills two cache lines alone, since processors fetch lines in pairs.
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

/// The reason why a gate was not closed. It is open again.
#[derive(Debug)]
pub(crate) enum NotClosed<'a> {
    /// The thread of this seat stayed inside for longer than the caller would wait.
    Inside(&'a Seat),
    /// The heavy fence failed.
    NoFence(FenceError),
}

impl Seat {
    /// Whether the seat's thread is inside.
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

    /// Enters, or enters once more. Waits while the gate is closed, unless the thread is inside already.
    #[inline]
    pub(crate) fn enter(&self, seat: &Seat) {
        if !self.enter_if_open(seat) {
            self.enter_later(seat);
        }
    }

    /// Enters, or enters once more. False if the gate is closed and the thread is outside.
    #[inline]
    pub(crate) fn enter_if_open(&self, seat: &Seat) -> bool {
        let depth = seat.depth.load(Ordering::Relaxed);
        seat.depth.store(depth + 1, Ordering::Relaxed);
        if depth > 0 || self.is_open() {
            return true;
        }
        self.leave(seat);
        false
    }

    /// Whether the gate is open. Its fence makes the seat's last store visible to a closing thread, or the closed gate
    /// to this one.
    #[inline]
    fn is_open(&self) -> bool {
        if !seeded!("operation-entered-without-a-fence") {
            light_fence(self.fences);
        }
        self.state.load(Ordering::Acquire) == OPEN
    }

    #[cold]
    fn enter_later(&self, seat: &Seat) {
        loop {
            // In a fork(2) child the gate may stay closed for good, and no snapshot is taken.
            if is_forked_child() {
                seat.depth.store(1, Ordering::Relaxed);
                return;
            }
            wait(&self.state, CLOSED);
            if self.enter_if_open(seat) {
                return;
            }
        }
    }

    /// Leaves one level. False if the thread was not inside.
    #[inline]
    pub(crate) fn leave(&self, seat: &Seat) -> bool {
        match seat.depth.load(Ordering::Relaxed) {
            0 => return false,
            1 => {
                let order = if seeded!("operation-left-without-order") { Ordering::Relaxed } else { Ordering::Release };
                seat.depth.store(0, order);
                if !self.is_open() {
                    self.tell(seat);
                }
            }
            depth => seat.depth.store(depth - 1, Ordering::Relaxed),
        }
        true
    }

    /// Leaves all levels. False if the thread was not inside.
    pub(crate) fn leave_for_good(&self, seat: &Seat) -> bool {
        if seat.is_inside() {
            seat.depth.store(1, Ordering::Relaxed);
        }
        self.leave(seat)
    }

    #[cold]
    #[inline(never)]
    fn tell(&self, seat: &Seat) {
        wake(&seat.depth, u32::MAX >> 1);
    }

    /// Closes the gate until [`Gate::open`], and waits until all threads have left. Only one thread at a time may
    /// close. `seats` yields the seats of all threads that have one when they are visited; a thread that gets a seat
    /// later finds the gate closed. `sleep` gets a seat, its word and the word's value. It sleeps while the word has
    /// this value, or returns false to give up.
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

    /// Opens the gate and wakes the threads that wait to enter.
    pub(crate) fn open(&self) {
        self.state.store(OPEN, Ordering::Release);
        wake(&self.state, u32::MAX >> 1);
    }
}

/// Waits until the seat's thread is outside; `None` if `sleep` gave up.
fn wait_for(seat: &Seat, sleep: impl Fn(&Seat, &AtomicU32, u32) -> bool) -> Option<()> {
    loop {
        match seat.depth.load(Ordering::Acquire) {
            0 => return Some(()),
            depth if !sleep(seat, &seat.depth, depth) => return None,
            _ => {}
        }
    }
}
