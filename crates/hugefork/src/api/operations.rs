//! [`Operations`]: groups of writes; a cut contains all writes of an operation or none.
//!
//! A thread has a *seat* at the gate of each `Operations` (sync/gate.rs). It keeps its seats in thread-local state,
//! with the last used one in front:
//!
//! ```text
//!   LAST ─▶ seat          SEATS: Operations a ─▶ seat, Operations b ─▶ seat, …   given back when the thread ends
//! ```

use std::fmt;
use std::ptr::NonNull;
use std::time::Duration;

use super::region::Region;
use crate::region::state::{HeldOperations, OperationsCore, RegionCore, ThreadSeat};
use crate::sys::linux::memory::Linux;
use crate::types::error::RegionError;

/// Groups of writes that belong together, such as a `put` that writes a key, a value and a count.
///
/// A snapshot captures all threads' *writes* at one moment, so it may contain the first half of an operation without
/// the second. Regions that use an `Operations` ([`Region::set_operations`]) are forked, snapshotted and reset
/// *between* operations, while no thread is inside one. So each cut contains all of an operation or none of it.
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
/// # Costs
/// Entering or leaving takes a few nanoseconds: a store to a word of the thread's own, and a load of a word that only
/// cuts change. Faults take no longer. A cut takes some microseconds more, and waits for the operations in progress.
/// Threads that want to enter wait for the cut meanwhile, but not while pages are written back ahead
/// ([`Region::fork`]). If `membarrier(2)` is refused, entering and leaving take a full memory fence each.
///
/// # Rules
/// * **One for all regions** that an operation writes to or that are cut together: clones are the same. A cut of
///   regions with different ones fails with [`RegionError::AnotherOperations`].
/// * **Cuts happen outside.** A thread that forks, snapshots or resets such a region inside an operation would wait for
///   itself. It gets [`RegionError::InsideOperation`].
/// * **Operations nest**: a thread that is inside enters again without waiting, and is outside after it has left as
///   many times.
/// * **Enter first, then lock.** A thread that enters may wait for a cut, which waits for threads inside. So enter
///   before taking a lock that other threads take inside, and take no cut while holding such a lock.
/// * **To take back what failed**, beside other writers, keep these out from the snapshot to the reset, both of which
///   are taken outside of operations: by an `RwLock` that each thread takes before it enters, for writing where it may
///   take writes back, and for reading otherwise. Threads that take other snapshots take it for reading.
/// * **A region that was loaded or forked** has no operations until they are set.
/// * **Regions without operations** can be cut inside an operation, even if other threads cut them together with
///   regions that have operations. Those cuts wait for the operations of the latter.
/// * **Do not block inside.** A thread that waits inside for a socket or a user makes cuts wait, and through them all
///   threads that want to enter. A cut waits for [`Operations::with_patience`], by default ten seconds. Then it fails
///   with [`RegionError::OperationGoesOn`], which names the thread; nothing was changed, and all threads continue. The
///   time counts from the end of the write-back ahead, also while other cuts wait for the same thread. Waiting for
///   other cuts in progress, for write-backs of others, and for resets does not count.
/// * **A panic** leaves, as every return does. The writes done so far remain in the region, and later cuts contain
///   them.
/// * **A forgotten guard** ([`std::mem::forget`]) leaves its thread inside until [`Operations::leave`], or until the
///   thread ends in any way. Cuts fail meanwhile, as for a thread that blocks.
/// * **A guard belongs to its thread**: it is not `Send`. Do not hold one over an `await`.
/// * **Signal handlers** enter no operation, and neither do observers.
/// * **In a child of `fork(2)`** operations have no effect, and no thread waits.
#[derive(Clone)]
pub struct Operations {
    held: HeldOperations,
}

/// Marks the thread as inside an operation until it is dropped, see [`Operations`].
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
    /// `None` in a child of `fork(2)`. The pointer makes the guard not `Send`.
    inside: Option<(&'a OperationsCore, NonNull<ThreadSeat>)>,
}

/// Checks that a cut of these regions may be taken on this thread. A cut that waits for operations must not be taken
/// inside any: two threads inside different ones could wait for each other.
pub(super) fn check_cut<'a>(mut regions: impl Iterator<Item = &'a RegionCore<Linux>>) -> Result<(), RegionError> {
    let waits = regions.any(|region| region.operations.get().is_some());
    if waits && HeldOperations::is_this_thread_inside() { Err(RegionError::InsideOperation) } else { Ok(()) }
}

impl Operations {
    /// A new `Operations`, for which a cut waits ten seconds.
    pub fn new() -> Operations {
        Operations::with_patience(Duration::from_secs(10))
    }

    /// Like [`Operations::new`], with the time that a cut waits. [`Duration::MAX`] means no limit. Several cuts can
    /// wait for the same operation at once; a thread that enters waits until the last of them is done or has failed.
    pub fn with_patience(patience: Duration) -> Operations {
        Operations { held: HeldOperations::new(patience) }
    }

    /// Does `work` inside an operation, see [`Operations::enter`].
    ///
    /// # Panics
    /// As [`Operations::enter`].
    #[inline]
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _operation = self.enter();
        work()
    }

    /// Enters an operation. Waits while a cut of one of the regions is in progress, unless the thread is inside
    /// already. `let _ = …` leaves it at once: give the guard a name, or use [`Operations::run`].
    ///
    /// # Panics
    /// If it is the first call on this thread, and the thread's local values are already being dropped.
    #[inline]
    pub fn enter(&self) -> Operation<'_> {
        match self.held.seat() {
            Ok(seat) => self.enter_seat(seat),
            Err(_) => panic!("an operation cannot be entered while the thread's locals are dropped"),
        }
    }

    #[inline]
    fn enter_seat(&self, seat: Option<NonNull<ThreadSeat>>) -> Operation<'_> {
        let core: &OperationsCore = self.held.core();
        if let Some(seat) = seat {
            // SAFETY: a seat lives as long as its operations.
            core.enter(unsafe { seat.as_ref() });
        }
        Operation { inside: seat.map(|seat| (core, seat)) }
    }

    /// Enters an operation if these operations are those that the thread has entered last, and no cut keeps it from
    /// entering. Returns the number of the thread's seat, too, which no other thread has meanwhile.
    #[cfg(feature = "heap")]
    #[inline]
    pub(crate) fn enter_again(&self) -> Option<(Operation<'_>, usize)> {
        let (core, seat): (&OperationsCore, _) = (self.held.core(), self.held.last_seat()?);
        // SAFETY: a seat lives as long as its operations.
        let entered = unsafe { seat.as_ref() };
        core.enter_if_open(entered).then(|| (Operation { inside: Some((core, seat)) }, entered.nth()))
    }

    /// Calls `body` inside an operation, also while the thread's locals are dropped. `body` gets the number of the
    /// thread's seat. It gets `None` in a child of `fork(2)`, unless the operation is the last that the thread has
    /// entered before.
    #[cfg(feature = "heap")]
    #[inline]
    pub(crate) fn within<T>(&self, body: impl FnOnce(Option<usize>) -> T) -> T {
        let Ok(seat) = self.held.seat() else { return self.within_for_once(body) };
        let _inside = self.enter_seat(seat);
        // SAFETY: as above.
        body(seat.map(|seat| unsafe { seat.as_ref() }.nth()))
    }

    /// As [`Operations::within`], with a seat for this call alone.
    #[cfg(feature = "heap")]
    #[cold]
    fn within_for_once<T>(&self, body: impl FnOnce(Option<usize>) -> T) -> T {
        let seat = self.held.core().take_seat();
        let inside = self.enter_seat(Some(NonNull::from(seat)));
        let result = body(Some(seat.nth()));
        drop(inside);
        self.held.core().vacate(seat);
        result
    }

    /// Leaves the operation that this thread has entered last and whose guard it has forgotten ([`std::mem::forget`]):
    /// for bindings to languages without guards. Returns false if the thread is inside none.
    ///
    /// ```
    /// let operations = hugefork::Operations::new();
    /// std::mem::forget(operations.enter());
    /// assert!(operations.leave());
    /// assert!(!operations.leave());
    /// ```
    pub fn leave(&self) -> bool {
        let core: &OperationsCore = self.held.core();
        let Ok(seat) = self.held.seat() else { return false };
        // SAFETY: a seat lives as long as its operations.
        seat.is_none_or(|seat| core.leave(unsafe { seat.as_ref() }))
    }
}

impl Drop for Operation<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((core, seat)) = self.inside {
            // SAFETY: a seat lives as long as its operations, which are borrowed.
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
            .field("patience", &self.held.core().patience())
            .field("fences", &self.held.core().fences())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").finish_non_exhaustive()
    }
}

impl Region {
    /// Makes forks, snapshots and resets of this region wait for `operations`, so that each cut contains all writes of
    /// an operation or none. A region has one [`Operations`], which cannot be changed; setting the same one again does
    /// nothing. Forks start with none. The call waits for a cut of the region in progress, but not for operations. If
    /// it is called inside an operation, a cut may contain that operation's earlier writes without the later ones.
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
