//! [`Operations`]: several writes of which a cut has all or none.
//!
//! Each thread keeps the seats that it has at gates (sync/gate.rs) in thread-local state, the last used in front:
//!
//! ```text
//!   LAST ─▶ seat          SEATS: Operations a ─▶ seat, Operations b ─▶ seat, …   given back when the thread ends
//! ```

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::time::Duration;

use super::region::Region;
use crate::mem::{EngineArc, EngineVec, Own};
use crate::region::state::{HeldOperations, OperationsCore, RegionCore, ThreadSeat};
use crate::sys::linux::memory::Linux;
use crate::sys::linux::owner;
use crate::types::error::RegionError;

/// Operations: what several writes are for the program, such as a `put` that writes a key, a value and a count.
///
/// A snapshot is one moment of every thread's *writes*. So it may have the first half of an operation and not the
/// second. Regions that are given an `Operations` ([`Region::set_operations`]) are forked, snapshotted and reset
/// *between* operations: while no thread is inside of one. Each cut then has all of an operation or nothing of it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(32 << 20).build()?;
/// use hugefork::Operations;
/// use std::sync::atomic::Ordering::Relaxed;
/// let accounts = pool.region(4 << 20)?;
/// let transfers = Operations::new();
/// accounts.set_operations(&transfers)?;
/// let balances = accounts.as_atomic_u64s();
/// balances[0].store(1000, Relaxed);
/// let saved = std::thread::scope(|scope| {
///     scope.spawn(|| {
///         for _ in 0..1000 {
///             let _transfer = transfers.enter();
///             balances[0].fetch_sub(1, Relaxed);
///             balances[1].fetch_add(1, Relaxed);
///         }
///     });
///     accounts.snapshot() // waits for the transfer that is under way, and keeps the next one waiting meanwhile
/// })?;
/// let balance = |nth: usize| u64::from_ne_bytes(saved[nth * 8..][..8].try_into().unwrap());
/// assert_eq!(balance(0) + balance(1), 1000);
/// # Ok(())
/// # }
/// ```
///
/// # What it costs
/// To enter or leave takes a few nanoseconds: a store to a word of the thread's own, and a load of one that only cuts
/// change. No fault takes longer. A cut takes some microseconds more, and waits for the operations that are under way;
/// threads that want to enter wait for it meanwhile, but not while pages are written back ahead ([`Region::fork`]).
/// Where `membarrier(2)` is refused, to enter and to leave take a full memory fence each.
///
/// # Rules
/// * **One for all regions** that an operation writes to or that are cut together: clones are the same. A cut of
///   regions with different ones is [`RegionError::AnotherOperations`].
/// * **Cuts happen outside.** A thread that forks, snapshots or resets such a region inside of an operation would wait
///   for itself. It gets [`RegionError::InsideOperation`].
/// * **Operations nest**: a thread that is inside enters again without waiting, and is outside when it has left as
///   often as it has entered.
/// * **Enter first, then lock.** A thread that enters may wait for a cut, which waits for threads inside. So enter
///   before you take a lock that others take inside, and take no cut with such a lock held.
/// * **Regions without operations** are cut and reset inside as everywhere, also one that others cut together with
///   regions that have some. Such a cut waits for the operations of those.
/// * **Do not block inside.** A thread that waits inside for a socket or a user keeps cuts waiting, and through them
///   all who want to enter. A cut waits for [`Operations::with_patience`], by default ten seconds. Then it is
///   [`RegionError::OperationGoesOn`], which names the thread, nothing has been done, and all go on. This counts from
///   the moment at which its pages are written back ahead, also while other cuts wait for the same thread. What it
///   waits for other cuts that are made, for write-backs of others, and for resets does not count.
/// * **A panic** leaves as every return does. What was half written then stays so in the region, and cuts have it like
///   this.
/// * **A guard that is forgotten** ([`std::mem::forget`]) leaves its thread inside: until [`Operations::leave`], or
///   until the thread ends, in whatever way. Cuts fail meanwhile, as for one that blocks.
/// * **A guard stays on its thread**: it is not `Send`. Do not hold one over an `await`.
/// * **Signal handlers** enter no operation, and neither do observers.
/// * **A child of `fork(2)`** has no regions, so operations mean nothing there, and nobody waits.
#[derive(Clone)]
pub struct Operations {
    held: HeldOperations,
}

/// A thread is inside of an operation until this is dropped, see [`Operations`].
///
/// ```
/// use hugefork::{Operation, Operations};
/// /// Asks for a proof that cuts are kept away.
/// fn add_to_index(_inside: &Operation<'_>, key: u64) {
///     println!("{key}");
/// }
/// let operations = Operations::new();
/// let put = operations.enter();
/// add_to_index(&put, 7);
/// ```
/// ```compile_fail
/// let operations = hugefork::Operations::new();
/// let put = operations.enter();
/// std::thread::scope(|scope| _ = scope.spawn(move || drop(put))); // it belongs to the thread that has entered
/// ```
#[must_use = "the operation is over when this is dropped: `let _operation = …`"]
pub struct Operation<'a> {
    /// `None` in a child of `fork(2)`.
    inside: Option<(&'a OperationsCore, NonNull<ThreadSeat>)>,
    /// It belongs to its thread.
    _not_send: PhantomData<*const ()>,
}

/// The seats of a thread.
struct Seats(RefCell<EngineVec<(EngineArc<OperationsCore>, NonNull<ThreadSeat>)>>);

thread_local! {
    /// The operations that the thread has entered last, and its seat there. It is one of `SEATS`.
    static LAST: Cell<(*const OperationsCore, Option<NonNull<ThreadSeat>>)> = const { Cell::new((ptr::null(), None)) };
    static SEATS: Seats = const { Seats(RefCell::new(EngineVec::new_in(Own))) };
}

impl Drop for Seats {
    fn drop(&mut self) {
        LAST.set((ptr::null(), None));
        for (operations, seat) in self.0.get_mut().drain(..) {
            // SAFETY: a seat stays while its operations do.
            operations.vacate(unsafe { seat.as_ref() });
        }
    }
}

/// A cut that waits for operations is not taken inside of any: two threads inside of different ones could wait for each
/// other.
fn check_outside() -> Result<(), RegionError> {
    let is_inside = SEATS.try_with(|seats| {
        // SAFETY: a seat stays while its operations do.
        seats.0.borrow().iter().any(|(_, seat)| unsafe { seat.as_ref() }.is_inside())
    });
    // When the thread's locals are dropped, it is inside of none any more.
    if is_inside == Ok(true) { Err(RegionError::InsideOperation) } else { Ok(()) }
}

/// Whether a cut of these regions may be taken on this thread.
pub(super) fn check_cut<'a>(mut regions: impl Iterator<Item = &'a RegionCore<Linux>>) -> Result<(), RegionError> {
    if regions.any(|region| region.operations.get().is_some()) { check_outside() } else { Ok(()) }
}

impl Operations {
    /// New ones, for which a cut waits ten seconds.
    pub fn new() -> Operations {
        Operations::with_patience(Duration::from_secs(10))
    }

    /// As [`Operations::new`], for which a cut waits as long as this. [`Duration::MAX`] is for ever. Several cuts that
    /// wait for the same operation wait side by side; a thread that enters waits until the last of them has given up or
    /// is made.
    pub fn with_patience(patience: Duration) -> Operations {
        Operations { held: HeldOperations::new(patience) }
    }

    /// Enters an operation. Waits while a cut of one of the regions is made, unless the thread is inside already.
    ///
    /// # Panics
    /// If it is the first time on this thread, and the thread's local values are being dropped already.
    #[inline]
    pub fn enter(&self) -> Operation<'_> {
        let core: &OperationsCore = &self.held;
        let seat = self.seat();
        if let Some(seat) = seat {
            // SAFETY: a seat stays while its operations do.
            core.enter(unsafe { seat.as_ref() });
        }
        Operation { inside: seat.map(|seat| (core, seat)), _not_send: PhantomData }
    }

    /// Leaves the operation that this thread has entered last, and whose guard it has forgotten ([`std::mem::forget`]):
    /// for bindings to languages that have no guards. False if the thread is inside of none.
    ///
    /// ```
    /// let operations = hugefork::Operations::new();
    /// std::mem::forget(operations.enter());
    /// assert!(operations.leave());
    /// assert!(!operations.leave());
    /// ```
    pub fn leave(&self) -> bool {
        let core: &OperationsCore = &self.held;
        // SAFETY: a seat stays while its operations do.
        self.seat().is_none_or(|seat| core.leave(unsafe { seat.as_ref() }))
    }

    /// The calling thread's seat.
    #[inline]
    fn seat(&self) -> Option<NonNull<ThreadSeat>> {
        let (last, seat) = LAST.get();
        if ptr::eq(last, &raw const **self.held.core()) { seat } else { self.find_seat() }
    }

    #[cold]
    fn find_seat(&self) -> Option<NonNull<ThreadSeat>> {
        // A thread that did not come along may hold the lock of the seats.
        if owner::is_forked_child() {
            return None;
        }
        let core = self.held.core();
        let found = SEATS.try_with(|seats| {
            let found = seats.0.borrow().iter().find(|(operations, _)| operations.is(core)).map(|(_, seat)| *seat);
            let seat = found.unwrap_or_else(|| {
                let seat = NonNull::from(core.take_seat());
                let mut seats = seats.0.borrow_mut();
                seats.retain(|(operations, _)| !operations.is_given_up());
                seats.push((core.clone(), seat));
                seat
            });
            LAST.set((&raw const **core, Some(seat)));
            seat
        });
        Some(found.unwrap_or_else(|_| panic!("an operation cannot be entered while the thread's locals are dropped")))
    }
}

impl Drop for Operation<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((core, seat)) = self.inside {
            // SAFETY: a seat stays while its operations do, which are borrowed.
            core.leave(unsafe { seat.as_ref() });
        }
    }
}

impl Default for Operations {
    fn default() -> Operations {
        Operations::new()
    }
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operations")
            .field("patience", &self.held.patience())
            .field("fences", &self.held.fences())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").finish_non_exhaustive()
    }
}

impl Region {
    /// Has forks, snapshots and resets of this region wait for `operations`, so that each cut has all writes of an
    /// operation or none. A region has one [`Operations`], for good; to give it again changes nothing. Forks have none
    /// of their own at first. Waits for a cut of the region that is being made, and for no operation: it may be called
    /// inside of one, but a cut may then have what that has written before, and lack the rest.
    ///
    /// # Errors
    /// [`RegionError::AnotherOperations`] if the region has others. [`RegionError::ForkedChild`].
    pub fn set_operations(&self, operations: &Operations) -> Result<(), RegionError> {
        super::pool::check_owner()?;
        if self.core().set_operations(&operations.held).is(&operations.held) {
            Ok(())
        } else {
            Err(RegionError::AnotherOperations)
        }
    }
}
