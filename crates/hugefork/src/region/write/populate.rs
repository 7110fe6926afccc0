//! Makes blocks writable before the program writes to them: `populate`, `prepare_write`, and the same for other calls.

use std::ops::Range;

use super::fault::{Become, Turns};
use crate::mapping::addresses::Place;
use crate::region::state::{RegionCore, Unresolved};
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::table::Entry;
use crate::types::error::RegionError;
use crate::units::{EntryIndex, HUGE_PAGE};

/// The bytes whose windows are locked at once while writes are prepared.
const PREPARED_AT_ONCE_BYTES: usize = 256 << 20;

impl<S: Sys> RegionCore<S> {
    /// Gives memory to every never-written block in `range`. A revoked block is an error, because no write to it can
    /// succeed.
    pub(crate) fn populate(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.make_each_own(range, |entry| matches!(entry, Entry::Zero | Entry::Revoked))
    }

    /// Makes every block in `range` the region's own, so that no write to it faults until the next fork or snapshot.
    pub(crate) fn prepare_blocks(&self, range: Range<usize>) -> Result<(), RegionError> {
        let may_lack_right = self.pins.may_lack_right();
        self.make_each_own(range, |entry| !matches!(entry, Entry::Private(_)) || may_lack_right)
    }

    /// Makes sure that no write in `range` faults until the next fork, snapshot or reset. Blocks that others hold too
    /// become CoW mappings where that is possible. With a limit they are copied instead: a prepared CoW mapping is not
    /// written back when its block has no other holder any more, so it would go on counting against the limit.
    pub(crate) fn prepare_write(&self, range: Range<usize>) -> Result<(), RegionError> {
        if !self.may_cow_map() || self.accounts.limit.is_some() {
            return self.prepare_blocks(range);
        }
        self.check(&range)?;
        let entries = self.touched(&range);
        // The density after earlier snapshots does not matter: a copy now would take a thousand times as long as a CoW
        // mapping.
        self.captured.forget_density(entries.clone());
        let at_once = (PREPARED_AT_ONCE_BYTES / self.pool().block_size.bytes().max(HUGE_PAGE)).max(1);
        let mut next = entries.start;
        while next < entries.end {
            let window = self.table.window(EntryIndex(next));
            let end = entries.end.min(self.table.entries_of(window..window + at_once).end);
            next = self.prepare_some(next..end).map_err(|reason| self.error(reason))?;
            if next < end {
                // This makes neighbours writable, too.
                self.make_until_done(Become::Writable, EntryIndex(next), Turns::Free)?;
            }
        }
        Ok(())
    }

    /// Prepares writes from the first of `entries` on, up to an entry where a write would fault. Returns that one, or
    /// the end.
    fn prepare_some(&self, entries: Range<usize>) -> Result<usize, Unresolved> {
        let held = self.lock_entries(&entries);
        let locked = held.locked();
        let get = |index: usize| self.table.get(EntryIndex(index));
        let mut next = entries.start;
        while next < entries.end {
            let is_open = |index: &usize| get(*index).is_writable_cow_mapping();
            let end = (next..entries.end).find(|index| !is_open(index)).unwrap_or(entries.end);
            if end > next {
                // After a failed call, some entries that count as writable may be read-only. Where they are writable,
                // this costs nothing.
                self.allow_writes(locked, next..end, Place::Own)?;
                self.captured.prepare(locked, next..end);
                next = end;
            } else if matches!(get(next), Entry::Private(_)) {
                self.see_to_right(locked, EntryIndex(next))?;
                next += 1;
            } else {
                break;
            }
        }
        Ok(next)
    }

    fn make_each_own(&self, range: Range<usize>, wanted: impl Fn(Entry) -> bool) -> Result<(), RegionError> {
        self.check(&range)?;
        let mut entries = self.touched(&range).map(EntryIndex).filter(|&index| wanted(self.table.get(index)));
        entries.try_for_each(|index| self.make_own(index))
    }

    /// Replaces all CoW mappings by blocks of the region's own. The caller has made sure that no new ones come.
    pub(crate) fn end_cow_mappings(&self) -> Result<(), RegionError> {
        let signals = SignalsBlocked::new();
        // Waits for faults under way, which may still make CoW mappings: they hold the lock.
        drop(self.lock.exclusive());
        drop(signals);
        self.make_each_own(0..self.len(), Entry::is_cow_mapping)
    }

    /// Makes a block the region's own, with all bytes that the region shows there, and writable. Goes on until the
    /// search for a block is over, and lets signals be delivered meanwhile.
    pub(in crate::region) fn make_own(&self, index: EntryIndex) -> Result<(), RegionError> {
        self.make_until_done(Become::Own, index, Turns::Free)
    }

    /// As [`RegionCore::make`], until the search for a block is over.
    pub(in crate::region) fn make_until_done(
        &self,
        what: Become,
        index: EntryIndex,
        turns: Turns,
    ) -> Result<(), RegionError> {
        loop {
            let signals = SignalsBlocked::new();
            let resolved = self.make(what, index, None, turns);
            drop(signals);
            match resolved {
                Err(Unresolved::NotYet) => {}
                resolved => return resolved.map(drop).map_err(|reason| self.error(reason)),
            }
        }
    }
}
