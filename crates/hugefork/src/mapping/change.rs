//! The two transactions that change what addresses show. Each checks the budget of mappings, makes one call and handles
//! its failure. It ends when the caller publishes the new entries, and then charges their mappings.
//!
//! | transaction | changes | when the call fails |
//! |---|---|---|
//! | `remap` | the memory behind the addresses, and notifies the observer | shows again what the entries say |
//! | `remap` to writable memory | the same | the same; if only the right is missing, entries say so |
//! | `reprotect` | the right to write | the caller publishes entries that are correct with and without the right |
//!
//! Only these change what a region shows, apart from its private pages. [`Addresses::show_frozen`] makes the first
//! mappings of a fork or of a snapshot's view.
//!
//! [`Site::park`] makes all users of the addresses wait during a change, system calls included.

use std::ops::Range;

use super::addresses::{Addresses, Place};
use super::edges::Shown;
use crate::pool::core::PoolCore;
use crate::sys::linux::stderr::say_and_abort;
use crate::sys::{Access, Aftermath, MapFailure, Part, Shows, Sys, SystemError};
use crate::table::Locked;
use crate::types::observer::{Changing, Observer};
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// The reason why nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The process has too few mappings left.
    TooManyMappings,
    Call(SystemError),
}

/// The number of mappings before and after the entries were published.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recount {
    pub(crate) before: usize,
    pub(crate) after: usize,
}

/// Whether the pages have the access that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Granted,
    /// The call failed: some pages may have the access and others not.
    Unknown,
}

/// Addresses, and the entries that determine what they show.
pub(crate) struct Site<'a, S: Sys> {
    pub(crate) addresses: &'a Addresses<S>,
    pub(crate) shown: Shown<'a>,
    pub(crate) observer: Option<&'a dyn Observer>,
    /// The place where changes are made.
    pub(crate) place: Place,
}

/// The addresses show other memory; the caller has yet to publish entries that say so.
#[must_use = "publish the entries"]
pub(crate) struct Remapped<'a, S: Sys> {
    addresses: &'a Addresses<S>,
    right: Result<(), SystemError>,
    _changing: Changing<'a>,
}

/// The right to write has changed; the caller has yet to publish entries that say so.
#[must_use = "publish the entries"]
pub(crate) struct Reprotected<'a, S: Sys> {
    addresses: &'a Addresses<S>,
    result: Result<(), SystemError>,
}

impl<'a, S: Sys> Site<'a, S> {
    fn pool(&self) -> &'a PoolCore<S> {
        &self.addresses.pool
    }

    /// Shows `shows` at whole entries. If that is memory, it is consecutive and begins with the first entry's block.
    pub(crate) fn remap(
        &self,
        _locked: Locked<'_>,
        entries: &Range<usize>,
        shows: Shows<BlockId>,
    ) -> Result<Remapped<'a, S>, Refused> {
        let bytes = self.bytes_of(entries);
        let shows = shows.map(|block| self.pool().offset(block));
        let face = self.shown.face(shows, bytes.len());
        self.check_budget(self.shown.more_edges_as(entries, face))?;
        self.show(&bytes, shows)
    }

    /// As [`Site::remap`], for pages of a split entry.
    pub(crate) fn remap_pages(
        &self,
        _locked: Locked<'_>,
        index: EntryIndex,
        pages: &Range<usize>,
        shows: Shows<usize>,
    ) -> Result<Remapped<'a, S>, Refused> {
        let start = self.pool().block_size.len_of(index.0);
        let bytes = start + pages.start * BASE_PAGE..start + pages.end * BASE_PAGE;
        let face = self.shown.face(shows, bytes.len());
        self.check_budget(self.shown.more_edges(&bytes, face))?;
        self.show(&bytes, shows)
    }

    fn show(&self, bytes: &Range<usize>, shows: Shows<usize>) -> Result<Remapped<'a, S>, Refused> {
        let changing = Changing::start(self.observer, self.blocks(bytes));
        let right = match self.pool().sys.show(self.part(bytes), shows) {
            Ok(()) => Ok(()),
            Err(failure) => self.make_up_for(bytes, shows, failure)?,
        };
        Ok(Remapped { addresses: self.addresses, right, _changing: changing })
    }

    /// The bytes of all blocks that `bytes` touches, because the observer gets whole blocks.
    fn blocks(&self, bytes: &Range<usize>) -> Range<usize> {
        let size = self.pool().block_size;
        bytes.start - size.within(bytes.start)..bytes.end.next_multiple_of(size.bytes())
    }

    /// Handles a failed mapping call, by what it has left behind:
    /// * Everything is as it was: nothing to do.
    /// * Only the right to write is missing: the caller publishes entries that say so. Going back would lose what
    ///   another thread may have written by now.
    /// * Unknown: this shows again what the entries say. Private pages may be gone and cannot come back, so where there
    ///   may have been some, this repeats the new mapping instead: the caller has copied these pages or means to drop
    ///   them.
    ///
    /// If the repair fails too, the program no longer sees its own memory there, so the process prints a line and
    /// aborts.
    #[cold]
    fn make_up_for(
        &self,
        bytes: &Range<usize>,
        shows: Shows<usize>,
        failure: MapFailure,
    ) -> Result<Result<(), SystemError>, Refused> {
        match failure.aftermath {
            Aftermath::Unchanged => Err(Refused::Call(failure.error)),
            Aftermath::NotWritable if !seeded!("shown-memory-is-taken-away") => Ok(Err(failure.error)),
            Aftermath::Unknown if self.shown.has_cow_mapping(self.blocks(bytes)) => {
                match self.pool().sys.show(self.part(bytes), shows) {
                    Ok(()) => Ok(Ok(())),
                    Err(again) if again.aftermath == Aftermath::NotWritable => Ok(Err(again.error)),
                    Err(again) => self.abort(bytes.start, &again),
                }
            }
            Aftermath::NotWritable | Aftermath::Unknown => {
                self.restore(bytes);
                Err(Refused::Call(failure.error))
            }
        }
    }

    /// Shows again what the entries say.
    #[cold]
    fn restore(&self, bytes: &Range<usize>) {
        let Range { start: mut at, end } = self.blocks(bytes);
        while at < end && !seeded!("nothing-shown-again-after-a-failure") {
            let (len, shows) = self.shown.shown_from(at);
            if let Err(again) = self.pool().sys.show(self.part(&(at..at + len)), shows) {
                self.abort(at, &again);
            }
            at += len;
        }
    }

    fn part(&self, bytes: &Range<usize>) -> Part<'a> {
        self.addresses.part_at(self.place, bytes)
    }

    fn bytes_of(&self, entries: &Range<usize>) -> Range<usize> {
        let size = self.pool().block_size;
        size.len_of(entries.start)..size.len_of(entries.end)
    }

    #[cold]
    fn abort(&self, offset: usize, MapFailure { error, .. }: &MapFailure) -> ! {
        say_and_abort(format_args!(
            "pool `{}`: the kernel refused to map a block at {:#x} and to put back what was there: {error}; aborting",
            self.pool().name,
            self.addresses.base() + offset,
        ));
    }

    /// Makes `bytes`, which show memory or zeros, writable or read-only. Zeros cannot become writable.
    pub(crate) fn reprotect(
        &self,
        _locked: Locked<'_>,
        bytes: Range<usize>,
        access: Access,
    ) -> Result<Reprotected<'a, S>, Refused> {
        self.check_budget(self.shown.more_edges_protected(&bytes, access))?;
        let result = self.pool().sys.protect(self.part(&bytes), access);
        Ok(Reprotected { addresses: self.addresses, result })
    }

    /// Makes threads and system calls that touch these bytes wait. Meanwhile the parking shows the contents, which are
    /// consecutive memory or one CoW mapping. False if the kernel refuses; then nothing has changed. The caller has
    /// checked the budget of mappings.
    pub(crate) fn park(&self, _locked: Locked<'_>, bytes: &Range<usize>) -> bool {
        let Some(parked) = self.addresses.parked(bytes) else { return false };
        self.pool().sys.hold(self.addresses.part(bytes), parked).is_ok()
    }

    /// Moves the parked part of these bytes back to the region's own addresses.
    pub(crate) fn unpark(&self, _locked: Locked<'_>, bytes: &Range<usize>) {
        if let Some(parked) = self.addresses.parked(bytes) {
            self.pool().sys.unpark(self.addresses.part(bytes), parked);
        }
    }

    /// Wakes the threads that wait for these bytes. None of the bytes may be parked any more.
    pub(crate) fn resume(&self, bytes: &Range<usize>) {
        if let Some(parked) = self.addresses.parked(bytes) {
            self.pool().sys.resume(self.addresses.part(bytes), parked);
        }
    }

    /// Moves the private pages of these entries, which are one CoW mapping, to the staging. False if the kernel
    /// refuses; then nothing has changed. The caller has checked the budget of mappings.
    pub(crate) fn take_pages(&self, _locked: Locked<'_>, entries: &Range<usize>) -> bool {
        let bytes = self.bytes_of(entries);
        let Some(staging) = self.addresses.staging(&bytes) else { return false };
        self.pool().sys.take_pages(self.addresses.part(&bytes), staging).is_ok()
    }

    /// Moves the staged pages of these entries back to the region's own addresses.
    pub(crate) fn bring_pages(&self, _locked: Locked<'_>, entries: &Range<usize>) -> Result<(), SystemError> {
        let bytes = self.bytes_of(entries);
        let Some(staging) = self.addresses.staging(&bytes) else { return Ok(()) };
        self.pool().sys.bring_pages(self.addresses.part(&bytes), staging)
    }

    /// The rule of the budget: a change needs as many free mappings as it adds edges. A change that adds none works
    /// even with no mapping left.
    fn check_budget(&self, more: usize) -> Result<(), Refused> {
        let fits = more == 0 || self.pool().sys.budget().fits(more) || seeded!("budget-of-mappings-ignored");
        if fits { Ok(()) } else { Err(Refused::TooManyMappings) }
    }
}

impl<S: Sys> Remapped<'_, S> {
    /// Whether the addresses have the access that was asked for. An error is possible only for writable memory that is
    /// a CoW mapping or whose mappings do not merge.
    pub(crate) fn right(&self) -> Result<(), SystemError> {
        self.right
    }

    /// Ends the transaction: the caller has published entries that say what the addresses show.
    pub(crate) fn published(self, recount: Recount) {
        self.addresses.recount(recount.before, recount.after);
    }
}

impl<S: Sys> Reprotected<'_, S> {
    /// The access that the entries have to record.
    pub(crate) fn right(&self) -> Right {
        if self.result.is_ok() { Right::Granted } else { Right::Unknown }
    }

    /// Ends the transaction: the caller has published entries with the new access or, after a failure, with the access
    /// that the pages may have.
    pub(crate) fn published(self, recount: Recount) -> Result<(), Refused> {
        self.addresses.recount(recount.before, recount.after);
        self.result.map_err(Refused::Call)
    }
}
