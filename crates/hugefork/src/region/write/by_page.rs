//! Faults at CoW mappings, and at blocks that are to become CoW mappings. Such a fault makes the kernel copy the pages
//! that are written, or writes the private pages back into a block.

use hugefork_kernels::Use;

use super::fault::{Fault, Resolution};
use crate::mapping::addresses::Place;
use crate::region::private::{Quiesced, WrittenBack};
use crate::region::state::Unresolved;
use crate::stats::counters::count;
use crate::sync::SharedGuard;
use crate::sys::{PageRun, Sys};
use crate::table::transition::Grain;
use crate::table::{Entry, Locked, State};
use crate::types::options::CopyGrain;

/// The runs of pages that one scan asks for. They lie on the handler's stack.
const RUNS_AT_ONCE: usize = 4;

impl<S: Sys> Fault<'_, S> {
    /// Whether a write to `entry`, whose block others hold too, copies a page or the block.
    pub(super) fn grain(&self, entry: Entry) -> Grain {
        let is_shared = matches!(entry.state(), State::Shared | State::CowMapped(_));
        // If the entry is writable, another thread has made it so.
        let is_by_page = entry.is_writable_cow_mapping() || is_shared && self.region.may_cow_map() && self.is_sparse();
        if is_by_page { Grain::Page } else { Grain::Block }
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

    /// Makes the kernel copy the pages that are written in the block and its neighbours: shows them through a private
    /// mapping, or makes the private mapping that is there writable.
    pub(super) fn by_page(
        &self,
        publishing: &SharedGuard<'_>,
        entry: Entry,
        limit: Option<usize>,
    ) -> Result<Resolution, Unresolved> {
        // If the entry is charged, another thread has made it writable.
        if !entry.is_charged() {
            self.check_limit(limit)?;
        }
        // With a limit, only one block of the region's own may become a CoW mapping in this fault: a block that nobody
        // has written to must not be charged.
        let is_one = entry.is_charged() || limit.is_some() && entry.is_owner();
        let most = if is_one { 1 } else { usize::MAX };
        let (_others, run) = self.alike_by_page(entry, most);
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
        let (new, only) = (region.pool().direct(self.taken.wanted), self.index.0..self.index.0 + 1);
        // SAFETY: this fault alone uses `new`. The guard keeps writers off, and our window lock lets nothing change
        // that.
        unsafe { region.copy_private(&mut [PageRun::default(); RUNS_AT_ONCE], &only, quiesced.place, new) }
            .map_err(|error| self.returned(Unresolved::Unmappable(error)))?;
        count(&region.counters.blocks_written_back, 1);
        Ok(())
    }

    /// Writes the private pages back into their block, which this region alone holds.
    pub(super) fn write_back(&mut self, publishing: SharedGuard<'_>) -> Result<Resolution, Unresolved> {
        let only = self.index.0..self.index.0 + 1;
        let mut runs = [PageRun::default(); RUNS_AT_ONCE];
        self.region.write_back_in_place(self.window, publishing, only, WrittenBack::Blocks, &mut runs)?;
        Ok(Resolution::Reused)
    }
}
