//! Room in a pool that has none, and memory that it does not need: bookings, reclaim, trim.
//!
//! ```text
//!   drop_lazy   lazily freed blocks of all regions, oldest first ─▶ free blocks, of this pool still
//!   trim        free blocks ─▶ memory of the system
//! ```

use super::core::PoolCore;
use super::frames::Content;
use super::holders::{Droppable, Dropped, Enough};
use crate::error::{RegionError, SystemError};
use crate::sync::SignalsBlocked;
use crate::sys::{Merging, Sys};
use crate::units::{BlockId, HUGE_PAGE};

/// What a fault that finds no block drops at least, where there is as much: it is as quick as dropping one block, and the next
/// faults find some.
const DROPPED_AT_ONCE: usize = 64 << 20;

/// Free blocks are given back to the system in runs of at most this many bytes: faults that need one of them wait so long.
const TRIMMED_AT_ONCE: usize = 32 << 20;

impl<S: Sys> PoolCore<S> {
    /// Books blocks for `count` entries, dropping what is lazily freed if need be. Not in a fault.
    pub(crate) fn book(&self, count: usize) -> Result<(), RegionError> {
        let _signals = SignalsBlocked::new();
        while self.frames.reserve(count).is_none() {
            if !self.drop_some_lazy() {
                return Err(RegionError::NotReservable {
                    pool: self.name.clone(),
                    wanted: count,
                    available: self.frames.available(),
                    block_size: self.block_size,
                });
            }
        }
        Ok(())
    }

    /// Drops lazily freed blocks so that others can have them; false if there are none. For a fault handler that holds no
    /// lock, and for calls, with signals blocked.
    pub(crate) fn drop_some_lazy(&self) -> bool {
        self.drop_lazy(DROPPED_AT_ONCE, Droppable::Blocks).blocks > 0
    }

    /// Drops what was lazily freed, oldest first, until `bytes` are reached or nothing is left. Takes time in proportion to
    /// the windows of all regions for each call of `lazy_free` whose blocks are dropped; for all there is, only once.
    pub(crate) fn drop_lazy(&self, bytes: usize, what: Droppable) -> Dropped {
        let mut done = Dropped::default();
        let mut after = 0;
        while done.bytes < bytes {
            let mark = if bytes >= self.block_size.len_of(self.frames.len()) {
                Some(u32::MAX)
            } else {
                self.oldest_lazy(after)
            };
            let Some(mark) = mark else { break };
            self.holders.visit(|holder| {
                let wanted = self.block_size.count((bytes - done.bytes).saturating_add(self.block_size.bytes() - 1));
                let dropped = holder.drop_lazy(mark, wanted, what);
                done.blocks += dropped.blocks;
                done.bytes += dropped.bytes;
                if done.bytes < bytes { Enough::No } else { Enough::Yes }
            });
            if mark == u32::MAX {
                break;
            }
            after = mark;
        }
        done
    }

    fn oldest_lazy(&self, after: u32) -> Option<u32> {
        let mut oldest = None;
        self.holders.visit(|holder| {
            let of_holder = holder.oldest_lazy(after);
            oldest = match (oldest, of_holder) {
                (Some(a), Some(b)) => Some(u32::min(a, b)),
                (a, b) => a.or(b),
            };
            Enough::No
        });
        oldest
    }

    /// Gives the memory of all free blocks back to the system, as [`PoolCore::trim_some`] does.
    pub(crate) fn trim(&self) -> Result<usize, SystemError> {
        self.trim_some(usize::MAX)
    }

    /// Gives the memory of free blocks back to the system until `bytes` are reached, or a little more; returns how many bytes.
    /// hugetlb pages are set aside for the pool and stay: given back, they might be somebody else's when they are needed again.
    pub(crate) fn trim_some(&self, bytes: usize) -> Result<usize, SystemError> {
        if self.sys.merging() == Merging::Separate {
            return Ok(0);
        }
        let _signals = SignalsBlocked::new();
        // What is given back is not to be got again at once.
        self.ahead.rest();
        // Whole huge pages, or the kernel would have to split them.
        let grain = (HUGE_PAGE / self.block_size.bytes()).max(1);
        let most = self.block_size.count(TRIMMED_AT_ONCE.min(bytes)).max(grain);
        let wanted = bytes.div_ceil(self.block_size.bytes());
        let (blocks, mut next, mut trimmed) = (self.frames.len(), 0, 0);
        while next < blocks && trimmed < wanted {
            // A run of free blocks that have memory, taken aside: nobody gets one meanwhile.
            let mut end = next;
            while end < blocks && end - next < most && self.take_aside(end..(end + grain).min(blocks)) {
                end = (end + grain).min(blocks);
            }
            if end == next {
                next += grain;
                continue;
            }
            let punched = self.sys.punch(self.block_size.len_of(next), self.block_size.len_of(end - next));
            for block in (next..end).map(|index| BlockId(index as u32)) {
                let content = if punched.is_ok() { Content::Fresh } else { self.frames.content(block) };
                self.frames.put_back(block, content);
            }
            punched?;
            trimmed += end - next;
            next = end;
        }
        Ok(self.block_size.len_of(trimmed))
    }

    /// Takes all of these blocks out of the free list, if all are free and one of them has memory.
    fn take_aside(&self, blocks: core::ops::Range<usize>) -> bool {
        let id = |index: usize| BlockId(index as u32);
        let taken = blocks.clone().take_while(|&index| self.frames.take_aside(id(index))).count();
        let all = blocks.start..blocks.start + taken;
        if taken == blocks.len() && all.clone().any(|index| self.frames.content(id(index)) != Content::Fresh) {
            return true;
        }
        for index in all {
            self.frames.put_back(id(index), self.frames.content(id(index)));
        }
        false
    }

    /// Gives the memory of a block back to the system, of which parts have been already; the caller alone holds it. It
    /// counts as never used again. False if the kernel refuses: then nobody may have it.
    pub(crate) fn give_memory_back(&self, block: BlockId) -> bool {
        let punched = self.sys.punch(self.offset(block), self.block_size.bytes()).is_ok();
        if punched {
            self.frames.set_content(block, Content::Fresh);
        }
        punched
    }
}
