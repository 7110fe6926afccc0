//! `discard` drops contents at once.

use std::ops::Range;

use crate::mapping::addresses::Place;
use crate::region::state::{RegionCore, Unresolved};
use crate::sync::SignalsBlocked;
use crate::sys::{Shows, Sys};
use crate::table::transition::{Event, OnDiscard, on_discard};
use crate::table::{Entry, Locked};
use crate::types::error::RegionError;
use crate::units::{EntryIndex, HUGE_PAGE};

/// The bytes whose windows are locked at once. There is one system call for each 2 GiB, so that writers there wait for
/// microseconds.
const HELD_AT_ONCE_BYTES: usize = 2 << 30;

impl<S: Sys> RegionCore<S> {
    /// Drops the contents of `range`, which then reads as zeros. Blocks that lie wholly inside go back to the pool. Of
    /// the block at either end, only the bytes in the range become zero.
    pub(crate) fn discard(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.check(&range)?;
        let size = self.pool().block_size;
        let to_whole = if seeded!("discard-of-a-part-takes-the-whole") { 1 } else { size.bytes() };
        let whole = size.count(range.start.next_multiple_of(to_whole))..size.count(range.end);
        if whole.is_empty() {
            // The range touches two blocks at most and covers neither.
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
        let mut next = whole.start;
        while next < whole.end {
            next = self.drop_some(next..whole.end).map_err(|reason| self.error(reason))?;
            if next < whole.end {
                // The block is pinned, so it becomes zero where it is.
                self.zero_part(next, 0..size.bytes())?;
                next += 1;
            }
        }
        self.reserve_again(whole)
    }

    /// Makes `bytes` of one block zero. Copies the block first if others hold it.
    fn zero_part(&self, index: usize, bytes: Range<usize>) -> Result<(), RegionError> {
        let index = EntryIndex(index);
        while self.table.get(index) != Entry::Zero {
            self.make_own(index)?;
            let _signals = SignalsBlocked::new();
            let _window = self.table.lock(index);
            let _publishing = self.lock.shared();
            // A snapshot may share the block again as soon as it is writable. Then the loop tries again.
            if let Entry::Private(block) = self.table.get(index) {
                // SAFETY: this region alone holds the block, and the region lock keeps it so; `bytes` lie within it.
                // The caller has promised not to use the range meanwhile.
                unsafe { self.pool().direct(block).add(bytes.start).write_bytes(0, bytes.len()) };
                return Ok(());
            }
        }
        Ok(())
    }

    /// Shows zeros in place of whole blocks, which go back to the pool, up to the first block that has to become zero
    /// where it is. Returns that one, or the end. Makes one system call for each run of windows.
    fn drop_some(&self, entries: Range<usize>) -> Result<usize, Unresolved> {
        let on = |index: usize| {
            let entry = self.table.get(EntryIndex(index));
            on_discard(entry.state(), self.pins.of(EntryIndex(index))).1
        };
        let mut next = entries.start;
        // Entries before the first block read as zeros already.
        while let Some(first) = (next..entries.end).find(|&index| on(index) != OnDiscard::Nothing) {
            let windows = self.windows_from(first, entries.end);
            let most = self.table.entries_of(windows.clone()).end.min(entries.end);
            let _signals = SignalsBlocked::new();
            let windows = self.table.lock_windows(windows);
            let publishing = self.lock.shared();
            let end = (first..most).find(|&index| on(index) == OnDiscard::ZeroInPlace).unwrap_or(most);
            if end == first {
                return Ok(first);
            }
            let locked = Locked::windows(&windows, &publishing);
            let remapped = self.remap(locked, Place::Own, &(first..end), Shows::Zeros)?;
            remapped.published(self.store(locked, Event::Discard, first..end, |_, _| Entry::Zero));
            next = end;
        }
        Ok(entries.end)
    }

    /// The windows from that of `entry` to that of `end - 1`, as many as may be locked at once.
    fn windows_from(&self, entry: usize, end: usize) -> Range<usize> {
        let windows = self.windows_of(&(entry..end));
        windows.start..windows.end.min(windows.start + self.most_held())
    }

    /// How many windows may be locked at once.
    pub(super) fn most_held(&self) -> usize {
        (HELD_AT_ONCE_BYTES / self.pool().block_size.bytes().max(HUGE_PAGE)).max(1)
    }
}
