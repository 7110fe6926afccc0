//! [`Routed`]: a region, which its handle and its owned pins hold together.

use std::ops::Range;
use std::ptr::{self, NonNull};

use super::pool::{Pool, check_owner};
use crate::fault::route::Routes;
use crate::own::Counted;
use crate::own::fixed::Fixed;
use crate::region::core::RegionCore;
use crate::sys::linux::memory::Linux;
use crate::sys::linux::owner;
use crate::terms::error::RegionError;

/// A region whose faults are routed to it until the last of those who hold it is gone.
pub(super) struct Routed {
    /// Taken out only to be left behind in a `fork(2)` child.
    core: Option<Fixed<RegionCore<Linux>>>,
    pub(super) pool: Pool,
}

impl Routed {
    pub(super) fn new(pool: Pool, core: Fixed<RegionCore<Linux>>) -> Counted<Routed> {
        if let Some(routes) = Routes::get() {
            // SAFETY: a fixed value; its addresses are forgotten before it is dropped, below.
            unsafe { routes.to_region(&core) };
        }
        Counted::new(Routed { core: Some(core), pool })
    }

    pub(super) fn core(&self) -> &RegionCore<Linux> {
        self.core.as_ref().expect("taken only when dropped")
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

    /// Takes off what [`Routed::pin`] put on.
    pub(super) fn unpin(&self, range: &Range<usize>) {
        if !owner::is_forked_child() {
            self.core().unpin(range);
        }
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        let Some(core) = self.core.take() else { return };
        if owner::is_forked_child() {
            // The memory is the parent's, and locks may be held by threads that did not come along.
            std::mem::forget(core);
        } else if let Some(routes) = Routes::get() {
            routes.forget(core.addresses.base(), core.len());
        }
    }
}
