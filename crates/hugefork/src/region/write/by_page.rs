//! Faults at CoW mappings, and at blocks that are to become CoW mappings. Such a fault makes the kernel copy the pages
//! that are written, or writes the private pages back into a block.

use hugefork_kernels::Use;

use super::fault::{Fault, Resolution};
use crate::mapping::addresses::Place;
use crate::region::private::Quiesced;
use crate::region::state::Unresolved;
use crate::stats::counters::count;
use crate::sync::SharedGuard;
use crate::sys::{Access, Sys};
use crate::table::transition::Grain;
use crate::table::{Entry, Locked};
use crate::types::options::CopyGrain;

impl<S: Sys> Fault<'_, S> {
    /// Whether a write to `entry`, whose block others hold too, copies a page or the block.
    pub(super) fn grain(&self, entry: Entry) -> Grain {
        let by_page = self.region.may_cow_map() && self.is_sparse();
        match entry {
            // Another thread has made the entry writable.
            Entry::CowMapped(_, _, Access::ReadWrite) => Grain::Page,
            Entry::Shared(..) | Entry::CowMapped(..) if by_page => Grain::Page,
            Entry::Zero
            | Entry::Private(_)
            | Entry::Shared(..)
            | Entry::Lazy(_)
            | Entry::Split(_)
            | Entry::CowMapped(..)
            | Entry::Revoked => Grain::Block,
        }
    }

    fn is_sparse(&self) -> bool {
        let region = self.region;
        let is_whole = self.outlook.manner.used == Use::Whole;
        let is_guessed = match region.pool().maintenance.is_paced() {
            // The pool's thread promotes blocks that turn out to be dense.
            true => !is_whole,
            // With several snapshots, each copy of a block stays with one of them.
            false if region.has_history() => !is_whole,
            // A write to the first or last page of a block may be part of a stream.
            false => !is_whole && self.outlook.stream.is_none() && !region.captured.is_dense(self.index),
        };
        region.accounts.grain == CopyGrain::Page || is_guessed
    }

    /// The most blocks that may become CoW mappings in this fault. With a limit, only one block of the region's own
    /// may: a block that nobody has written to must not be charged.
    fn most_cow_mapped(&self, entry: Entry, limit: Option<usize>) -> Result<usize, Unresolved> {
        if entry.is_charged() {
            // Another thread has made the entry writable.
            return Ok(1);
        }
        self.check_limit(limit)?;
        Ok(if limit.is_some() && entry.is_owner() { 1 } else { usize::MAX })
    }

    /// Makes the kernel copy the pages that are written in the block and its neighbours: shows them through a private
    /// mapping, or makes the private mapping that is there writable.
    pub(super) fn by_page(
        &self,
        publishing: &SharedGuard<'_>,
        entry: Entry,
        limit: Option<usize>,
    ) -> Result<Resolution, Unresolved> {
        let most = self.most_cow_mapped(entry, limit)?;
        let (_before, _after, run) = self.alike_by_page(entry, most);
        let locked = Locked::windows(self.window, publishing);
        match entry.is_cow_mapping() {
            true => self.region.allow_writes(locked, run, Place::Own)?,
            false => self.region.cow_map(locked, run, Place::Own)?,
        }
        Ok(Resolution::CowMapped)
    }

    /// Keeps writers off the block that is copied, if it is a CoW mapping.
    pub(super) fn keep_writers_off(&mut self) -> Result<(), Unresolved> {
        self.quiesced.as_mut().filter(|_| !seeded!("copy-without-write-protection")).map_or(Ok(()), Quiesced::keep_off)
    }

    /// Makes a CoW mapping writable after the kernel refused its write-back or copy. True if that worked: the write is
    /// resolved then. The next fork or snapshot tries the write-back again, and reports an error if that fails too.
    #[cold]
    pub(super) fn goes_on_by_page(&self) -> bool {
        let publishing = self.region.lock.shared();
        let locked = Locked::windows(self.window, &publishing);
        let is_cow_mapping = self.region.table.get(self.index).is_cow_mapping();
        is_cow_mapping && self.region.allow_writes(locked, self.index.0..self.index.0 + 1, Place::Own).is_ok()
    }

    /// Adds the private pages to the copy of the block, if the block is a CoW mapping.
    pub(super) fn patch(&self) -> Result<(), Unresolved> {
        let (region, Some(quiesced)) = (self.region, &self.quiesced) else { return Ok(()) };
        let new = region.pool().direct(self.taken.wanted);
        // SAFETY: this fault alone uses `new`. The guard keeps writers off, and our window lock lets nothing change
        // that.
        unsafe { region.copy_private(&(self.index.0..self.index.0 + 1), quiesced.place(), new) }
            .map_err(|error| self.returned(Unresolved::Unmappable(error)))?;
        count(&region.counters.blocks_written_back, 1);
        Ok(())
    }

    /// Writes the private pages back into their block, which this region alone holds.
    pub(super) fn write_back(&mut self, publishing: SharedGuard<'_>) -> Result<Resolution, Unresolved> {
        let only = self.index.0..self.index.0 + 1;
        let Some(block) = self.region.table.get(self.index).block() else { return Ok(Resolution::Raced) };
        self.region.write_back_in_place(self.window, publishing, only, block)?;
        Ok(Resolution::Reused)
    }
}
