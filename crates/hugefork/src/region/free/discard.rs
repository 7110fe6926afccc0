//! `discard` drops contents at once.

use std::ops::Range;

use super::lazy_free::whole;
use crate::region::state::{RegionCore, Unresolved};
use crate::sys::{Shows, Sys};
use crate::table::Entry;
use crate::table::transition::{Event, OnDiscard, on_discard};
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
        let start =
            range.start - if seeded!("discard-of-a-part-takes-the-whole") { size.within(range.start) } else { 0 };
        let (before, blocks, after) = whole(&(start..range.end), size.bytes());
        self.parts(before).chain(self.parts(after)).try_for_each(|(index, part)| self.zero_part(index, part))?;
        let whole = size.count(blocks.start)..size.count(blocks.end);
        let mut next = whole.start;
        while next < whole.end {
            next = self.drop_some(next..whole.end).map_err(|reason| self.error(reason))?;
            if next < whole.end {
                // The block is pinned, so it becomes zero where it is.
                self.zero_part(EntryIndex(next), 0..size.bytes())?;
                next += 1;
            }
        }
        self.reserve_again(whole)
    }

    /// Makes `bytes` of one block zero. Copies the block first if others hold it.
    fn zero_part(&self, index: EntryIndex, bytes: Range<usize>) -> Result<(), RegionError> {
        while self.table.get(index) != Entry::Zero {
            self.make_own(index)?;
            let _held = self.lock_entry(index);
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
            let windows = self.windows_of(&(first..entries.end));
            let windows = windows.start..windows.end.min(windows.start + self.most_held());
            let most = self.table.entries_of(windows).end.min(entries.end);
            let held = self.lock_entries(&(first..most));
            let end = (first..most).find(|&index| on(index) == OnDiscard::ZeroInPlace).unwrap_or(most);
            if end == first {
                return Ok(first);
            }
            self.replace(held.locked(), first..end, Shows::Zeros, Event::Discard, |_, _| Entry::Zero)?;
            next = end;
        }
        Ok(entries.end)
    }

    /// How many windows may be locked at once.
    pub(super) fn most_held(&self) -> usize {
        (HELD_AT_ONCE_BYTES / self.pool().block_size.bytes().max(HUGE_PAGE)).max(1)
    }
}
