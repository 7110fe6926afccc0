//! Whole ranges of a region: `populate`, `prepare_write`, `discard`.

use std::ops::Range;

use crate::error::RegionError;
use crate::fault::resolver::Unresolved;
use crate::space::Space;
use crate::sync::{SignalsBlocked, WordGuard};
use crate::sys::Sys;
use crate::table::Entry;
use crate::units::EntryIndex;

/// Windows that `discard` holds at once: one system call for each 2 GiB of 2 MiB blocks, so that writers to them wait
/// for microseconds only.
const WINDOWS_AT_ONCE: usize = 1024;

impl<S: Sys> Space<S> {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.addresses.len
    }

    /// Checks that `range` lies inside the region.
    pub(crate) fn check(&self, range: &Range<usize>) -> Result<(), RegionError> {
        check_range(range, self.len())
    }

    /// Gives every never-written block in `range` its memory now.
    pub(crate) fn populate(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.make_each_writable(range, |entry| entry == Entry::Zero)
    }

    /// Makes every block in `range` writable now, so that no write to it faults until the next fork or snapshot.
    pub(crate) fn prepare_write(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.make_each_writable(range, |entry| !matches!(entry, Entry::Private(_)))
    }

    fn make_each_writable(&self, range: Range<usize>, wanted: impl Fn(Entry) -> bool) -> Result<(), RegionError> {
        self.check(&range)?;
        let _signals = SignalsBlocked::new();
        for index in self.touched(&range).map(EntryIndex) {
            if wanted(self.table.get(index)) {
                self.make_writable(index, None).map_err(|reason| self.error(reason))?;
            }
        }
        Ok(())
    }

    /// Drops the contents of `range`, which reads as zeros from then on. Blocks wholly inside go back to the pool; of the
    /// block at either end only the bytes in the range become zero.
    pub(crate) fn discard(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.check(&range)?;
        let size = self.pool().block_size;
        let whole = size.count(range.start.next_multiple_of(size.bytes()))..size.count(range.end);
        let _signals = SignalsBlocked::new();
        if whole.is_empty() {
            // At most two blocks, neither wholly inside.
            for index in self.touched(&range) {
                let start = size.len_of(index);
                self.zero_part(index, range.start.max(start) - start..range.end.min(start + size.bytes()) - start)?;
            }
            return Ok(());
        }
        if size.within(range.start) != 0 {
            self.zero_part(whole.start - 1, size.within(range.start)..size.bytes())?;
        }
        if size.within(range.end) != 0 {
            self.zero_part(whole.end, 0..size.within(range.end))?;
        }
        self.drop_blocks(whole)
    }

    /// Makes `bytes` of one block zero, copying it first if others hold it.
    fn zero_part(&self, index: usize, bytes: Range<usize>) -> Result<(), RegionError> {
        let index = EntryIndex(index);
        let _window = self.table.lock(index);
        if self.table.get(index) == Entry::Zero {
            return Ok(());
        }
        // A snapshot may share the block again as soon as it is writable: then once more.
        loop {
            self.make_writable_locked(index, Some(bytes.start)).map_err(|reason| self.error(reason))?;
            let _publishing = self.lock.shared();
            if let Entry::Private(block) = self.table.get(index) {
                // SAFETY: the block is held by this region alone and stays so under the region lock; `bytes` lie
                // within it. The program is told not to use the range meanwhile.
                unsafe { self.pool().direct(block).add(bytes.start).write_bytes(0, bytes.len()) };
                return Ok(());
            }
        }
    }

    /// Gives whole blocks back, one system call for each run of windows.
    fn drop_blocks(&self, entries: Range<usize>) -> Result<(), RegionError> {
        let mut next = entries.start;
        while next < entries.end {
            // The first block that is there: what lies before it reads as zeros already.
            let Some(first) = (next..entries.end).find(|&index| self.table.get(EntryIndex(index)) != Entry::Zero)
            else {
                break;
            };
            self.check_budget().map_err(|reason| self.error(reason))?;
            let mut locked: Vec<WordGuard<'_>> = Vec::with_capacity(WINDOWS_AT_ONCE);
            let mut end = first;
            while end < entries.end && locked.len() < WINDOWS_AT_ONCE {
                locked.push(self.table.lock(EntryIndex(end)));
                end = self.table.window_of(EntryIndex(end)).end.min(entries.end);
            }
            let _publishing = self.lock.shared();
            let len = self.pool().block_size.len_of(end - first);
            if let Err(failure) = self.pool().sys.map_zeros(self.address_of(first), len) {
                self.restore(first..end, failure.left);
                return Err(failure.error.into());
            }
            self.publish(EntryIndex(first), end - first, |_| Entry::Zero);
            next = end;
        }
        Ok(())
    }

    /// The entries that `range` touches.
    fn touched(&self, range: &Range<usize>) -> Range<usize> {
        let size = self.pool().block_size;
        if range.is_empty() {
            return 0..0;
        }
        size.count(range.start)..size.count(range.end - 1) + 1
    }

    /// What a call returns where a fault would be loud.
    pub(crate) fn error(&self, reason: Unresolved) -> RegionError {
        let pool = self.pool();
        match reason {
            Unresolved::PoolFull => pool.full(),
            Unresolved::OutOfMemory(source) => RegionError::OutOfMemory { pool: pool.name.clone(), source },
            Unresolved::TooManyMappings => {
                let budget = pool.sys.budget();
                RegionError::TooManyMappings { needed: 2, used: budget.used(), limit: budget.limit() }
            }
            Unresolved::Unmappable(error) => RegionError::System(error),
        }
    }
}

/// Checks that `range` lies in `0..len`.
pub(crate) fn check_range(range: &Range<usize>, len: usize) -> Result<(), RegionError> {
    if range.start > range.end || range.end > len {
        return Err(RegionError::OutOfRange { start: range.start, end: range.end, len });
    }
    Ok(())
}
