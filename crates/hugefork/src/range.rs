//! Whole ranges of a region: `populate`, `prepare_write`, `discard`.

use std::ops::Range;

use crate::error::RegionError;
use crate::fault::resolver::Unresolved;
use crate::options::{OnLimit, Reserve};
use crate::space::Space;
use crate::sync::SignalsBlocked;
use crate::sys::Sys;
use crate::table::{Booked, Entry};
use crate::units::{EntryIndex, HUGE_PAGE};

/// Bytes of windows that are held at once: one system call for each 2 GiB, so that writers to them wait for microseconds.
const HELD_AT_ONCE: usize = 2 << 30;

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
        for index in self.touched(&range).map(EntryIndex) {
            if wanted(self.table.get(index)) {
                self.make_writable_patiently(index)?;
            }
        }
        Ok(())
    }

    /// Makes a block writable; waits where the region's limit says so, with signals let in.
    pub(crate) fn make_writable_patiently(&self, index: EntryIndex) -> Result<(), RegionError> {
        loop {
            let signals = SignalsBlocked::new();
            let resolved = self.make_writable(index, None);
            drop(signals);
            match resolved {
                Err(Unresolved::CowLimit(OnLimit::Stall)) => self.cow.wait_a_moment(),
                Err(Unresolved::NotYet) => {}
                resolved => return resolved.map(drop).map_err(|reason| self.error(reason)),
            }
        }
    }

    /// Drops the contents of `range`, which reads as zeros from then on. Blocks wholly inside go back to the pool; of the
    /// block at either end only the bytes in the range become zero.
    pub(crate) fn discard(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.check(&range)?;
        let size = self.pool().block_size;
        let whole = size.count(range.start.next_multiple_of(size.bytes()))..size.count(range.end);
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
        self.drop_blocks(whole.clone())?;
        self.book_again(whole)
    }

    /// Makes `bytes` of one block zero, copying it first if others hold it.
    fn zero_part(&self, index: usize, bytes: Range<usize>) -> Result<(), RegionError> {
        let index = EntryIndex(index);
        while self.table.get(index) != Entry::Zero {
            self.make_writable_patiently(index)?;
            let _signals = SignalsBlocked::new();
            let _window = self.table.lock(index);
            let _publishing = self.lock.shared();
            // A snapshot may share the block again as soon as it is writable: then once more.
            if let Entry::Private(block) = self.table.get(index) {
                // SAFETY: the block is held by this region alone and stays so under the region lock; `bytes` lie
                // within it. The program is told not to use the range meanwhile.
                unsafe { self.pool().direct(block).add(bytes.start).write_bytes(0, bytes.len()) };
                return Ok(());
            }
        }
        Ok(())
    }

    /// Makes whole blocks zero: pinned ones where they are, all others by giving them back.
    fn drop_blocks(&self, entries: Range<usize>) -> Result<(), RegionError> {
        let mut next = entries.start;
        while next < entries.end {
            next = self.drop_unpinned(next..entries.end)?;
            if next < entries.end {
                self.zero_part(next, 0..self.pool().block_size.bytes())?;
                next += 1;
            }
        }
        Ok(())
    }

    /// Gives whole blocks back up to the first that is pinned, which it returns, or the end. One system call for each run of
    /// windows.
    fn drop_unpinned(&self, entries: Range<usize>) -> Result<usize, RegionError> {
        let mut next = entries.start;
        while next < entries.end {
            // The first block that is there: what lies before it reads as zeros already.
            let Some(first) = (next..entries.end).find(|&index| self.table.get(EntryIndex(index)) != Entry::Zero)
            else {
                break;
            };
            let windows = self.windows_from(first, entries.end);
            let most = self.table.entries_of(windows.clone()).end.min(entries.end);
            let _signals = SignalsBlocked::new();
            let _windows = self.table.lock_windows(windows);
            let _publishing = self.lock.shared();
            let end = self.pins.first_in(first..most).unwrap_or(most);
            if end == first {
                return Ok(first);
            }
            self.check_budget_for(first..end, Entry::Zero).map_err(|reason| self.error(reason))?;
            let _changing = self.changing(first..end);
            let len = self.pool().block_size.len_of(end - first);
            if let Err(failure) = self.pool().sys.map_zeros(self.address_of(first), len) {
                self.restore(first..end, failure.left);
                return Err(failure.error.into());
            }
            self.publish(EntryIndex(first), end - first, |_| Entry::Zero);
            next = end;
        }
        Ok(entries.end)
    }

    /// Windows from that of `entry` on, to that of `end - 1`, as many as may be held at once.
    pub(crate) fn windows_from(&self, entry: usize, end: usize) -> Range<usize> {
        let first = self.table.window(EntryIndex(entry));
        first..(self.table.window(EntryIndex(end - 1)) + 1).min(first + self.most_held())
    }

    /// How many windows may be held at once.
    pub(crate) fn most_held(&self) -> usize {
        (HELD_AT_ONCE / self.pool().block_size.bytes().max(HUGE_PAGE)).max(1)
    }

    /// Books blocks for never-written entries that have lost theirs since others hold what was there.
    fn book_again(&self, entries: Range<usize>) -> Result<(), RegionError> {
        if self.reserve == Reserve::None {
            return Ok(());
        }
        for index in entries.map(EntryIndex) {
            if self.table.get(index) != Entry::Zero || self.table.is_booked(index) {
                continue;
            }
            self.pool().book(1)?;
            let _signals = SignalsBlocked::new();
            let _window = self.table.lock(index);
            let _publishing = self.lock.shared();
            if self.table.get(index) != Entry::Zero || !self.table.set_booked(index, Booked::Yes) {
                self.pool().frames.unreserve(1);
            }
        }
        Ok(())
    }

    /// The entries that `range` touches.
    pub(crate) fn touched(&self, range: &Range<usize>) -> Range<usize> {
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
            Unresolved::PoolFull | Unresolved::NotYet => pool.full(),
            Unresolved::OutOfMemory(source) => RegionError::OutOfMemory { pool: pool.name.clone(), source },
            Unresolved::TooManyMappings => {
                let budget = pool.sys.budget();
                RegionError::TooManyMappings { needed: 2, used: budget.used(), limit: budget.limit() }
            }
            Unresolved::Unmappable(error) => RegionError::System(error),
            Unresolved::Revoked => RegionError::Revoked,
            Unresolved::CowLimit(_) => RegionError::CowLimit {
                pool: pool.name.clone(),
                limit: pool.block_size.len_of(self.limit.map_or(0, |limit| limit.blocks)),
            },
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
