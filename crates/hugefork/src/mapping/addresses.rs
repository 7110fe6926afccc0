//! The addresses of a region or snapshot, and how many mappings they are split into.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::edges::Shown;
use crate::mem::EngineArc;
use crate::pool::core::PoolCore;
use crate::sys::{Access, Extent, Part, Shows, Sys, SystemError, answer};
use crate::table::Entries;
use crate::types::error::RegionError;

/// A range of addresses, and its mappings as the budget counts them.
pub(crate) struct Addresses<S: Sys> {
    pub(crate) pool: EngineArc<PoolCore<S>>,
    /// `None` once it is released.
    extent: Option<Extent>,
    base: usize,
    mappings: AtomicUsize,
    /// Where what is held lies.
    parked: Option<Extent>,
    /// Where private pages lie while a reset puts them back, once one wants that.
    staging: OnceLock<Option<Extent>>,
}

/// Which addresses show a part of a region just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Its own.
    Own,
    /// The parking, while whoever uses its own waits.
    Parked,
    /// The staging, while a reset puts private pages back there. Its own show the blocks below them.
    Staging,
}

impl<S: Sys> Addresses<S> {
    /// Claims `len` bytes that read as zeros and that will soon be split into `mappings` mappings.
    pub(crate) fn claim(pool: &EngineArc<PoolCore<S>>, len: usize, mappings: usize) -> Result<Self, RegionError> {
        let budget = pool.sys.budget();
        // Setting a range aside may split the arena around it.
        let needed = mappings + 2;
        // With many mappings it takes milliseconds to count those of the rest of the program, so count only when it
        // matters.
        if !budget.fits(needed + budget.limit() / 2) {
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

    /// Length in bytes; 0 once it is closed.
    pub(crate) fn len(&self) -> usize {
        self.extent.as_ref().map_or(0, Extent::len)
    }

    /// Some of the bytes.
    ///
    /// # Panics
    /// If the addresses are closed.
    pub(crate) fn part(&self, bytes: &Range<usize>) -> Part<'_> {
        self.extent.as_ref().expect("open").part(bytes.start, bytes.len())
    }

    /// Claims parking, so that some of the bytes can be held, if the process may do so.
    pub(crate) fn claim_parking(&mut self) {
        self.parked = self.pool.sys.claim_parking(self.len(), self.pool.block_size.bytes()).ok();
    }

    /// Whether anything can be held.
    pub(crate) fn can_hold(&self) -> bool {
        self.parked.is_some()
    }

    /// The parking of some of the bytes.
    pub(super) fn parked(&self, bytes: &Range<usize>) -> Option<Part<'_>> {
        self.parked.as_ref().map(|extent| extent.part(bytes.start, bytes.len()))
    }

    /// Claims staging, if others may write and that was not tried yet. Not for faults.
    pub(crate) fn claim_staging(&self) {
        if self.staging.get().is_none() && !self.pool.sys.is_alone() {
            // The arena is split around them.
            let fits = self.pool.sys.budget().fits(2);
            let claim_staging = || self.pool.sys.claim_staging(self.len(), self.pool.block_size.bytes()).ok();
            self.staging.get_or_init(|| if fits { claim_staging() } else { None });
        }
    }

    /// Whether there is staging.
    pub(crate) fn has_staging(&self) -> bool {
        self.staging.get().is_some_and(Option::is_some)
    }

    /// The staging of some of the bytes.
    pub(super) fn staging(&self, bytes: &Range<usize>) -> Option<Part<'_>> {
        self.staging.get()?.as_ref().map(|extent| extent.part(bytes.start, bytes.len()))
    }

    /// Where some of the bytes are shown.
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

    /// Counts `after` mappings in place of `before`.
    pub(crate) fn recount(&self, before: usize, after: usize) {
        self.pool.sys.budget().replace(before, after);
        // Two faults at neighbouring entries may count their common edge twice or not at all; the next snapshot counts
        // anew.
        let _ = self.mappings.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |mappings| {
            Some((mappings + after).saturating_sub(before))
        });
    }

    /// Shows the blocks of a fork or snapshot, with one call for each run of neighbours. Those that have pages of a
    /// snapshot over them are hidden (snapshot/view.rs).
    pub(crate) fn show_frozen(&self, entries: &Entries) -> Result<(), SystemError> {
        let size = self.pool.block_size;
        for (run, first) in Shown::of_snapshot(&self.pool, entries).runs() {
            if let Some(start) = first.block().map(|block| self.pool.offset(block)) {
                let part = self.part(&(size.len_of(run.start)..size.len_of(run.end)));
                let shows = match first.is_cow_mapping() {
                    true => Shows::Hidden,
                    false => Shows::Memory { start, access: Access::Read },
                };
                let shown = self.pool.sys.show(part, shows);
                shown.map_err(|failure| failure.error)?;
            }
        }
        Ok(())
    }

    /// Unmaps everything. If that fails, the addresses are lost, and the caller must not reuse the blocks that were
    /// mapped there.
    pub(crate) fn close(&mut self) -> Result<(), SystemError> {
        let Some(extent) = self.extent.take() else { return Ok(()) };
        for other in [self.parked.take(), self.staging.take().flatten()].into_iter().flatten() {
            // It shows nothing. If the kernel refuses, the addresses stay taken.
            let _ = self.pool.sys.release(other);
        }
        self.pool.sys.budget().replace(self.mappings(), 0);
        self.pool.sys.release(extent)
    }
}

impl<S: Sys> Drop for Addresses<S> {
    fn drop(&mut self) {
        // Whoever mapped blocks here has closed it and looked at the result. Only zeros can be left.
        let _ = self.close();
    }
}
