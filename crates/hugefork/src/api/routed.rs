//! [`Routed`]: a region, which its handle and its owned pins hold together.

use std::ops::Range;
use std::ptr::{self, NonNull};

use super::pool::{Pool, check_owner};
use crate::fault::route::Routes;
use crate::mem::EngineArc;
use crate::mem::pinned::PinnedBox;
use crate::region::children;
use crate::region::state::RegionCore;
use crate::sys::linux::mask::allow_faults;
use crate::sys::linux::memory::Linux;
use crate::sys::linux::owner;
use crate::types::error::RegionError;

/// A region whose faults are routed to it until its last holder is gone.
pub(super) struct Routed {
    core: PinnedBox<RegionCore<Linux>>,
    pub(super) pool: Pool,
}

impl Routed {
    pub(super) fn new(pool: Pool, core: PinnedBox<RegionCore<Linux>>) -> EngineArc<Routed> {
        if let Some(routes) = Routes::get() {
            // SAFETY: a fixed value; its addresses are forgotten before it is dropped, below.
            unsafe { routes.to_region(&core) };
        }
        if let Some(children) = &pool.shared.children {
            // SAFETY: as above.
            unsafe { children::inherit(&core, children) };
        }
        // The caller is about to write there.
        allow_faults();
        EngineArc::new(Routed { core, pool })
    }

    pub(super) fn core(&self) -> &RegionCore<Linux> {
        &self.core
    }

    /// Byte `offset` of the region.
    pub(super) fn at(&self, offset: usize) -> NonNull<u8> {
        let address = self.core().addresses.base() + offset;
        NonNull::new(ptr::with_exposed_provenance_mut(address)).expect("no region lies at address zero")
    }

    pub(super) fn pin(&self, range: Range<usize>) -> Result<(), RegionError> {
        check_owner()?;
        self.core().pin(range)
    }

    /// Removes a pin of [`Routed::pin`].
    pub(super) fn unpin(&self, range: &Range<usize>) {
        if !owner::is_forked_child() {
            self.core().unpin(range);
        }
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        if owner::is_forked_child() {
            return;
        }
        if self.pool.shared.children.is_some() {
            children::leave_out(&self.core);
        }
        if let Some(routes) = Routes::get() {
            routes.forget(self.core.addresses.base(), self.core.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::mem::{self, EngineVec, Own};
    use crate::sync::SignalsBlocked;
    use crate::types::options::{CopyGrain, RegionOptions};
    use crate::{Pool, Region, RegionError, Snapshot};

    const BLOCK: usize = 2 << 20;

    /// The calls and drops that a child of fork(2) may make.
    fn call_all(region: Region, snapshot: Snapshot, other: Snapshot) {
        let refused = |result: Result<(), RegionError>| assert_eq!(result, Err(RegionError::ForkedChild));
        let pool = region.pool().clone();
        assert_eq!((region.stats().blocks, pool.stats().blocks), (4, 16));
        assert!(!region.is_revoked() && !snapshot.is_revoked() && !format!("{pool:?}").is_empty());
        assert_eq!((region.origin(), snapshot.parent()), (Some(other.id()), None));
        refused(region.fork().map(drop));
        refused(region.snapshot().map(drop));
        refused(snapshot.fork().map(drop));
        refused(snapshot.map().map(drop));
        refused(snapshot.read_at(0, &mut [0]));
        refused(snapshot.export().map(drop));
        refused(region.changed_since(&snapshot).map(drop));
        refused(region.populate());
        refused(region.prepare_write(0..BLOCK));
        refused(region.discard(0..BLOCK));
        refused(region.lazy_free(0..BLOCK).map(drop));
        refused(region.pin(0..BLOCK).map(drop));
        refused(region.pin_owned(0..BLOCK).map(drop));
        refused(region.reset_to(&snapshot).map_err(|error| error.reason));
        refused(pool.region(BLOCK).map(drop));
        refused(pool.reclaim(1).map(drop));
        refused(pool.trim().map(drop));
        assert!(Pool::builder().capacity(BLOCK).build().is_err());
        // Its copy of the engine's memory is its own.
        let mut list = EngineVec::new_in(Own);
        list.extend(0..5000);
        assert!(list.iter().copied().eq(0..5000));
        drop((list, region, snapshot, other, pool));
    }

    /// Threads that are missing in the child never release their locks there, whatever the moment of the fork.
    #[test]
    fn a_child_that_was_made_while_others_held_all_locks_waits_for_none() {
        let pool = Pool::builder().capacity(16 * BLOCK).build().unwrap();
        let region =
            pool.region_with(4 * BLOCK, RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true)).unwrap();
        region.populate().unwrap();
        let (snapshot, other) = (region.snapshot().unwrap(), region.snapshot().unwrap());
        // SAFETY: inside the region, which no other code uses.
        unsafe { region.as_mut_ptr().write_volatile(1) };
        let all = (&region, &snapshot, &other);
        // SAFETY: bitwise copies for the child only; it forgets the values that the parent drops.
        let copies = unsafe { (std::ptr::read(all.0), std::ptr::read(all.1), std::ptr::read(all.2)) };
        let copies = std::mem::ManuallyDrop::new(copies);
        let signals = SignalsBlocked::new();
        let locks = (region.core().lock_all(), snapshot.core().lock.exclusive(), other.core().lock.exclusive());
        let (holders, heap) = (pool.core.holders.lock(), mem::lock());
        // SAFETY: the child makes the tested calls, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: an alarm ends a child that would wait for ever.
            unsafe { libc::alarm(300) };
            drop(signals);
            let (region, snapshot, other) = std::mem::ManuallyDrop::into_inner(copies);
            let calls = std::panic::AssertUnwindSafe(|| call_all(region, snapshot, other));
            let came = std::panic::catch_unwind(calls);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(came.is_err())) };
        }
        drop((heap, holders, locks, signals));
        let mut status = 0;
        // SAFETY: writes the status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child has waited for a lock (14), or has found something else");
    }
}
