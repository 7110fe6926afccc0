//! The seats of the calling thread at the gates of operations (sync/gate.rs).

use std::cell::{Cell, RefCell};
use std::ptr::{self, NonNull};
use std::thread::AccessError;

use super::operations::{HeldOperations, OperationsCore, ThreadSeat};
use crate::mem::{EngineArc, EngineVec, Own};
use crate::sys::linux::owner;

/// The seats of a thread.
struct Seats(RefCell<EngineVec<(EngineArc<OperationsCore>, NonNull<ThreadSeat>)>>);

thread_local! {
    /// The operations that the thread has entered last, and its seat there, which is also in `SEATS`.
    static LAST: Cell<(*const OperationsCore, Option<NonNull<ThreadSeat>>)> = const { Cell::new((ptr::null(), None)) };
    static SEATS: Seats = const { Seats(RefCell::new(EngineVec::new_in(Own))) };
}

impl Drop for Seats {
    fn drop(&mut self) {
        LAST.set((ptr::null(), None));
        for (operations, seat) in self.0.get_mut().drain(..) {
            // SAFETY: a seat lives as long as its operations.
            operations.vacate(unsafe { seat.as_ref() });
        }
    }
}

impl HeldOperations {
    /// Whether the calling thread is inside any operation.
    pub(crate) fn is_this_thread_inside() -> bool {
        let is_inside = SEATS.try_with(|seats| {
            // SAFETY: a seat lives as long as its operations.
            seats.0.borrow().iter().any(|(_, seat)| unsafe { seat.as_ref() }.is_inside())
        });
        // When the thread's locals are dropped, it is inside none any more.
        is_inside == Ok(true)
    }

    /// The calling thread's seat, if these are the operations that the thread has entered last.
    #[cfg(feature = "heap")]
    #[inline]
    pub(crate) fn last_seat(&self) -> Option<NonNull<ThreadSeat>> {
        let (last, seat) = LAST.get();
        seat.filter(|_| ptr::eq(last, &raw const **self.core()))
    }

    /// The calling thread's seat; `None` in a child of `fork(2)`, and an error while the thread's locals are dropped.
    #[inline]
    pub(crate) fn seat(&self) -> Result<Option<NonNull<ThreadSeat>>, AccessError> {
        let (last, seat) = LAST.get();
        if ptr::eq(last, &raw const **self.core()) { Ok(seat) } else { self.find_seat() }
    }

    #[cold]
    fn find_seat(&self) -> Result<Option<NonNull<ThreadSeat>>, AccessError> {
        // In a fork(2) child, a missing thread may hold the lock of the seats.
        if owner::is_forked_child() {
            return Ok(None);
        }
        let core = self.core();
        SEATS.try_with(|seats| {
            let found = seats.0.borrow().iter().find(|(operations, _)| operations.is(core)).map(|(_, seat)| *seat);
            let seat = found.unwrap_or_else(|| {
                let seat = NonNull::from(core.take_seat());
                let mut seats = seats.0.borrow_mut();
                seats.retain(|(operations, _)| !operations.is_given_up());
                seats.push((core.clone(), seat));
                seat
            });
            LAST.set((&raw const **core, Some(seat)));
            Some(seat)
        })
    }
}
