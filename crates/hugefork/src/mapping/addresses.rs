//! The addresses of a region or snapshot, and the number of mappings (VMAs) that they take.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::edges::Shown;
use crate::mem::EngineArc;
use crate::pool::core::PoolCore;
use crate::sys::{Access, Extent, Part, Shows, Sys, SystemError, answer};
use crate::table::Entries;
use crate::types::error::RegionError;

/// A range of addresses, with the number of mappings charged to the budget for it.
pub(crate) struct Addresses<S: Sys> {
    pub(crate) pool: EngineArc<PoolCore<S>>,
    /// `None` once the addresses are released.
    extent: Option<Extent>,
    base: usize,
    mappings: AtomicUsize,
    /// Addresses that show the contents of held bytes meanwhile; `None` if bytes cannot be held.
    parked: Option<Extent>,
    /// Addresses that show private pages while a reset puts them back. Claimed on first use; `None` inside if that
    /// failed.
    staging: OnceLock<Option<Extent>>,
}

/// The addresses that show a part of a region at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The region's own.
    Own,
    /// The parking, while threads that touch the region's own addresses wait.
    Parked,
    /// The staging, while a reset puts private pages back there. The region's own addresses then show the blocks below.
    Staging,
}

impl<S: Sys> Addresses<S> {
    /// Claims `len` bytes of addresses that show zeros at first and will soon be split into `mappings` mappings.
    pub(crate) fn claim(pool: &EngineArc<PoolCore<S>>, len: usize, mappings: usize) -> Result<Self, RegionError> {
        let budget = pool.sys.budget();
        // The reservation of a range may split the arena around it.
        let needed = mappings + 2;
        if budget.is_count_due(needed) {
            pool.sys.refresh_budget();
        }
        if !budget.fits(needed) {
            return Err(RegionError::too_many_mappings(needed, budget));
        }
        let extent = pool.sys.claim(len, pool.block_size.bytes()).map_err(|error| match error.raw_os_error() {
            answer::OUT_OF_MEMORY => RegionError::OutOfAddresses { len },
            _ => RegionError::System(error),
        })?;
        budget.replace(0, mappings);
        let base = extent.base();
        Ok(Addresses {
            pool: pool.clone(),
            extent: Some(extent),
            base,
            mappings: AtomicUsize::new(mappings),
            parked: None,
            staging: OnceLock::new(),
        })
    }

    /// The first address.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Length in bytes; 0 once the addresses are closed.
    pub(crate) fn len(&self) -> usize {
        self.extent.as_ref().map_or(0, Extent::len)
    }

    /// The addresses of `bytes`.
    ///
    /// # Panics
    /// If the addresses are closed.
    pub(crate) fn part(&self, bytes: &Range<usize>) -> Part<'_> {
        self.extent.as_ref().expect("open").part(bytes.start, bytes.len())
    }

    /// Claims parking, so that bytes can be held. Without the right to do so, nothing can be held.
    pub(crate) fn claim_parking(&mut self) {
        self.parked = self.pool.sys.claim_parking(self.len(), self.pool.block_size.bytes()).ok();
    }

    /// Whether bytes can be held.
    pub(crate) fn can_hold(&self) -> bool {
        self.parked.is_some()
    }

    /// The parking of `bytes`.
    pub(super) fn parked(&self, bytes: &Range<usize>) -> Option<Part<'_>> {
        self.parked.as_ref().map(|extent| extent.part(bytes.start, bytes.len()))
    }

    /// Claims staging on the first call, if the process has other threads that may write. Must not be called in a
    /// fault.
    pub(crate) fn claim_staging(&self) {
        if self.staging.get().is_none() && !self.pool.sys.is_alone() {
            // Staging splits the arena around it.
            let fits = self.pool.sys.budget().fits(2);
            let claim_staging = || self.pool.sys.claim_staging(self.len(), self.pool.block_size.bytes()).ok();
            self.staging.get_or_init(|| if fits { claim_staging() } else { None });
        }
    }

    /// Whether there is staging.
    pub(crate) fn has_staging(&self) -> bool {
        self.staging.get().is_some_and(Option::is_some)
    }

    /// The staging of `bytes`.
    pub(super) fn staging(&self, bytes: &Range<usize>) -> Option<Part<'_>> {
        self.staging.get()?.as_ref().map(|extent| extent.part(bytes.start, bytes.len()))
    }

    /// The addresses of `bytes` at `place`.
    pub(crate) fn part_at(&self, place: Place, bytes: &Range<usize>) -> Part<'_> {
        match place {
            Place::Own => self.part(bytes),
            Place::Parked => self.parked(bytes).expect("parking"),
            Place::Staging => self.staging(bytes).expect("staging"),
        }
    }

    pub(crate) fn mappings(&self) -> usize {
        self.mappings.load(Ordering::Relaxed)
    }

    /// Charges `after` mappings in place of `before`.
    pub(crate) fn recount(&self, before: usize, after: usize) {
        // Two faults at neighbouring entries may count their common edge twice or not at all. The next snapshot
        // corrects the count. The budget changes by as much as the count does, so it stays the sum of all counts.
        let count = |mappings: usize| (mappings + after).saturating_sub(before);
        let old = self.mappings.update(Ordering::Relaxed, Ordering::Relaxed, count);
        self.pool.sys.budget().replace(old, count(old));
    }

    /// Shows the blocks of a fork or snapshot, with one call for each run of neighbours. Blocks with a snapshot's pages
    /// over them are hidden (snapshot/view.rs).
    pub(crate) fn show_frozen(&self, entries: &Entries) -> Result<(), SystemError> {
        let size = self.pool.block_size;
        for (run, first) in Shown::of_snapshot(&self.pool, entries).runs() {
            if let Some(start) = first.block().map(|block| self.pool.offset(block)) {
                let part = self.part(&(size.len_of(run.start)..size.len_of(run.end)));
                let memory = Shows::Memory { start, access: Access::Read };
                let shows = if first.is_cow_mapping() { Shows::Hidden } else { memory };
                self.pool.sys.show(part, shows).map_err(|failure| failure.error)?;
            }
        }
        Ok(())
    }

    /// Unmaps everything. If the kernel refuses, the addresses are lost, and the caller must not reuse the blocks that
    /// were mapped there.
    pub(crate) fn close(&mut self) -> Result<(), SystemError> {
        let Some(extent) = self.extent.take() else { return Ok(()) };
        for other in [self.parked.take(), self.staging.take().flatten()].into_iter().flatten() {
            // These addresses show nothing. If the kernel refuses, they stay taken.
            let _ = self.pool.sys.release(other);
        }
        self.pool.sys.budget().replace(self.mappings(), 0);
        self.pool.sys.release(extent)
    }
}

impl<S: Sys> Drop for Addresses<S> {
    fn drop(&mut self) {
        // A caller that mapped blocks here has closed the addresses and checked the result. Here only zeros can be
        // left.
        let _ = self.close();
    }
}
