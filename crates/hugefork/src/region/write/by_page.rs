//! What a fault does with blocks that are shown through private mappings, or are to be: it has the kernel copy the
//! pages that are written, or puts the private pages back into a block.

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
    /// What is to be copied at a write to `entry`, which others hold too.
    pub(super) fn grain(&self, entry: Entry) -> Grain {
        let by_page = self.region.may_cow_map() && self.is_sparse();
        match entry {
            // Another thread was faster.
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
            // The thread promotes what is dense.
            true => !is_whole,
            // With a history, each copy of a block stays.
            false if region.has_history() => !is_whole,
            // A write to the first or last page of a block may be part of a stream.
            false => !is_whole && self.outlook.stream.is_none() && !region.captured.is_dense(self.index),
        };
        region.accounts.grain == CopyGrain::Page || is_guessed
    }

    /// How many blocks may become CoW mappings. Where there is a limit, none is charged to it that nobody has written
    /// to.
    fn most_cow_mapped(&self, entry: Entry, limit: Option<usize>) -> Result<usize, Unresolved> {
        if entry.is_charged() {
            // Another thread was faster.
            return Ok(1);
        }
        self.check_limit(limit)?;
        Ok(if limit.is_some() && entry.is_owner() { 1 } else { usize::MAX })
    }

    /// Has the kernel copy what is written to the block and its neighbours: they are shown through a private mapping,
    /// or that is there and gets the right to write.
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

    /// Keeps writers off the CoW mapping that is copied, if it is one.
    pub(super) fn keep_writers_off(&mut self) -> Result<(), Unresolved> {
        self.quiesced.as_mut().filter(|_| !seeded!("copy-without-write-protection")).map_or(Ok(()), Quiesced::keep_off)
    }

    /// After a write-back or copy that the kernel refused: a CoW mapping can do without, and takes the write. The next
    /// fork or snapshot tries again, and says so if it fails too.
    #[cold]
    pub(super) fn goes_on_by_page(&self) -> bool {
        let publishing = self.region.lock.shared();
        let locked = Locked::windows(self.window, &publishing);
        let is_cow_mapping = self.region.table.get(self.index).is_cow_mapping();
        is_cow_mapping && self.region.allow_writes(locked, self.index.0..self.index.0 + 1, Place::Own).is_ok()
    }

    /// Adds the private pages of the CoW mapping, if it is one, to its copy.
    pub(super) fn patch(&self) -> Result<(), Unresolved> {
        let (region, Some(quiesced)) = (self.region, &self.quiesced) else { return Ok(()) };
        let new = region.pool().direct(self.taken.wanted);
        // SAFETY: `new` is ours alone. Writers are kept off, and our window lock keeps it so.
        unsafe { region.copy_private(&(self.index.0..self.index.0 + 1), quiesced.place(), new) }
            .map_err(|error| self.returned(Unresolved::Unmappable(error)))?;
        count(&region.counters.blocks_written_back, 1);
        Ok(())
    }

    /// Writes back the private pages into the block, which this region alone holds.
    pub(super) fn write_back(&mut self, publishing: SharedGuard<'_>) -> Result<Resolution, Unresolved> {
        let only = self.index.0..self.index.0 + 1;
        let Some(block) = self.region.table.get(self.index).block() else { return Ok(Resolution::Raced) };
        self.region.write_back_in_place(self.window, publishing, only, block)?;
        Ok(Resolution::Reused)
    }
}
