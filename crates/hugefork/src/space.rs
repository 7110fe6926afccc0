//! A region without its public face: an address range, the table of what is mapped there, and the books.
//!
//! ```text
//! addresses   base ──────────────────────────────────────────▶ base + len
//! table       | Zero | Private 8 | Private 9 | Shared 3 | Zero …
//! mapped      | zeros|     blocks 8–9, rw    | block 3,r| zeros …      one mapping (VMA) each
//! ```
//! Invariant, outside a lock: what the kernel maps at an entry is what its state says (table/entry.rs), except that after
//! a failed write-protection a `Shared` entry may still be writable, held by this region alone.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{RegionError, SystemError};
use crate::fault::history::History;
use crate::fault::report;
use crate::pool::core::{Home, PoolCore};
use crate::stats::Counters;
use crate::sync::RegionLock;
use crate::sys::{Access, Left, Merging, Sys};
use crate::table::{Entry, Table};
use crate::units::{BlockId, EntryIndex};

/// An address range in the arena, and how many mappings it is split into.
pub(crate) struct Addresses<S: Sys> {
    pub(crate) pool: Arc<PoolCore<S>>,
    pub(crate) base: usize,
    pub(crate) len: usize,
    /// Mappings as counted in the budget.
    mappings: AtomicUsize,
}

impl<S: Sys> Addresses<S> {
    /// A range of `len` bytes that reads as zeros; to be split into `mappings` mappings soon.
    pub(crate) fn reserve(pool: &Arc<PoolCore<S>>, len: usize, mappings: usize) -> Result<Self, RegionError> {
        let budget = pool.sys.budget();
        // Setting a range aside may split the arena around it.
        let needed = mappings + 2;
        // Counting the rest of the program's mappings takes milliseconds when there are many: only when it matters.
        if !budget.fits(needed + budget.limit() / 2) {
            pool.sys.refresh_budget();
        }
        if !budget.fits(needed) {
            return Err(RegionError::TooManyMappings { needed, used: budget.used(), limit: budget.limit() });
        }
        let base = pool.sys.reserve(len, pool.block_size.bytes()).map_err(|error| match error.errno {
            rustix::io::Errno::NOMEM => RegionError::OutOfAddresses { len },
            _ => RegionError::System(error),
        })?;
        budget.replace(0, mappings);
        Ok(Addresses { pool: Arc::clone(pool), base, len, mappings: AtomicUsize::new(mappings) })
    }

    pub(crate) fn mappings(&self) -> usize {
        self.mappings.load(Ordering::Relaxed)
    }

    /// Counts a change in a part of the range from `before` to `after` mappings.
    pub(crate) fn recount(&self, before: usize, after: usize) {
        self.pool.sys.budget().replace(before, after);
        // Two faults at neighbouring entries may count their common edge twice or not at all; freeze() counts afresh.
        let _ = self.mappings.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |mappings| {
            Some((mappings + after).saturating_sub(before))
        });
    }

    /// Maps runs of neighbouring blocks for reading, `blocks[i]` at block `i` of this range.
    pub(crate) fn map_frozen(&self, blocks: &[Option<BlockId>]) -> Result<(), SystemError> {
        let size = self.pool.block_size;
        for run in runs(blocks, self.pool.sys.merging()) {
            if let Some(first) = blocks[run.start] {
                let at = self.base + size.len_of(run.start);
                let len = size.len_of(run.len());
                self.pool.sys.map(at, len, self.pool.offset(first), Access::Read).map_err(|failure| failure.error)?;
            }
        }
        Ok(())
    }

    /// Unmaps everything. If that fails the addresses are lost and the caller must not reuse what was mapped there.
    pub(crate) fn close(&mut self) -> Result<(), SystemError> {
        if self.len == 0 {
            return Ok(());
        }
        self.pool.sys.budget().replace(self.mappings(), 0);
        let len = std::mem::take(&mut self.len);
        self.pool.sys.release(self.base, len)
    }
}

impl<S: Sys> Drop for Addresses<S> {
    fn drop(&mut self) {
        // Whoever mapped blocks here has closed it and looked at the result; what is left are ranges of zeros.
        let _ = self.close();
    }
}

/// The maximal runs of `blocks` that are one mapping each.
pub(crate) fn runs(blocks: &[Option<BlockId>], merging: Merging) -> impl Iterator<Item = Range<usize>> + '_ {
    let shared = |block: Option<BlockId>| block.map_or(Entry::Zero, Entry::Shared);
    let mut start = 0;
    std::iter::from_fn(move || {
        if start == blocks.len() {
            return None;
        }
        let mut end = start + 1;
        while end < blocks.len() && joined(shared(blocks[end - 1]), shared(blocks[end]), merging) {
            end += 1;
        }
        Some(std::mem::replace(&mut start, end)..end)
    })
}

/// Whether two neighbouring entries are part of one mapping.
pub(crate) fn joined(left: Entry, right: Entry, merging: Merging) -> bool {
    match (left, right) {
        (Entry::Zero, Entry::Zero) => true,
        (Entry::Private(a), Entry::Private(b)) | (Entry::Shared(a), Entry::Shared(b)) => {
            merging == Merging::Merge && a.offset(1) == b
        }
        _ => false,
    }
}

/// A region without its public face.
pub(crate) struct Space<S: Sys> {
    pub(crate) addresses: Addresses<S>,
    pub(crate) table: Table,
    pub(crate) lock: RegionLock,
    pub(crate) counters: Arc<Counters>,
    pub(crate) history: History,
    /// What the program says of its writes, an [`Advice`](crate::Advice).
    pub(crate) advice: AtomicU8,
    home: Mutex<Option<Home<S>>>,
    /// First block of `home`, where the fault handler can read it.
    home_first: AtomicU32,
}

impl<S: Sys> Space<S> {
    /// A region of `len` bytes, a multiple of the block size, that reads as zeros.
    pub(crate) fn zeros(pool: &Arc<PoolCore<S>>, len: usize) -> Result<Self, RegionError> {
        let addresses = Addresses::reserve(pool, len, 1)?;
        Ok(Self::at(addresses, Table::new(pool.block_size.count(len), pool.block_size)))
    }

    /// A region whose entries share `blocks`; it takes over one reference to each.
    pub(crate) fn sharing(pool: &Arc<PoolCore<S>>, blocks: &[Option<BlockId>]) -> Result<Self, RegionError> {
        let mappings = runs(blocks, pool.sys.merging()).count();
        let addresses = Addresses::reserve(pool, pool.block_size.len_of(blocks.len()), mappings)?;
        addresses.map_frozen(blocks)?;
        let table = Table::new(blocks.len(), pool.block_size);
        for (index, block) in blocks.iter().enumerate() {
            if let Some(block) = block {
                table.set(EntryIndex(index), Entry::Shared(*block));
            }
        }
        Ok(Self::at(addresses, table))
    }

    fn at(addresses: Addresses<S>, table: Table) -> Self {
        let counters = addresses.pool.registry.register();
        let space = Space {
            addresses,
            table,
            lock: RegionLock::default(),
            counters,
            history: History::default(),
            advice: AtomicU8::new(0),
            home: Mutex::new(None),
            home_first: AtomicU32::new(0),
        };
        space.move_home();
        space
    }

    pub(crate) fn pool(&self) -> &Arc<PoolCore<S>> {
        &self.addresses.pool
    }

    /// The address of an entry.
    pub(crate) fn address_of(&self, index: usize) -> usize {
        self.addresses.base + self.pool().block_size.len_of(index)
    }

    /// The block that `index` would like: at the same place in the region's home as in the region.
    pub(crate) fn wish(&self, index: EntryIndex) -> BlockId {
        let wish = self.home_first.load(Ordering::Relaxed) as usize + index.0;
        BlockId((wish % self.pool().frames.len()) as u32)
    }

    /// Chooses a new home for blocks that are written from now on, and returns the old one, which stays set aside for as
    /// long as the caller keeps it. Without room for a new one the region stays where it is.
    pub(crate) fn move_home(&self) -> Option<Home<S>> {
        let new = self.pool().claim_home(self.table.len())?;
        self.home_first.store(new.first().0, Ordering::Relaxed);
        self.home.lock().unwrap_or_else(PoisonError::into_inner).replace(new)
    }

    /// Stores new entries from `start` on, lets go of the blocks they replace, and counts the mappings they make. Under
    /// the windows' locks and the region lock, the kernel's mapping being changed already.
    pub(crate) fn publish(&self, start: EntryIndex, count: usize, entry: impl Fn(usize) -> Entry) {
        let before = self.edges(start.0, start.0 + count);
        for by in 0..count {
            let index = EntryIndex(start.0 + by);
            let old = self.table.get(index).block();
            let new = entry(by);
            self.table.set(index, new);
            if let Some(block) = old.filter(|_| old != new.block()) {
                self.pool().release(block);
            }
        }
        self.addresses.recount(before, self.edges(start.0, start.0 + count));
    }

    /// After a mapping call that failed: maps again what the table says, unless all is as it was. Under the windows' locks
    /// and the region lock.
    ///
    /// If that fails too, what the program sees there is not its memory any more. There is no going on from that, and the
    /// process is aborted with a line that says so.
    pub(crate) fn restore(&self, entries: Range<usize>, left: Left) {
        if left == Left::AsItWas {
            return;
        }
        let (pool, size) = (self.pool(), self.pool().block_size.bytes());
        for index in entries {
            let at = self.address_of(index);
            let restored = match self.table.get(EntryIndex(index)) {
                Entry::Zero => pool.sys.map_zeros(at, size),
                Entry::Shared(block) => pool.sys.map(at, size, pool.offset(block), Access::Read),
                Entry::Private(block) => pool.sys.map(at, size, pool.offset(block), Access::ReadWrite),
            };
            if let Err(failure) = restored {
                report::lost(pool, at, failure.error);
                std::process::abort();
            }
        }
    }

    /// Places from `start` to `end` at which one mapping ends and the next begins.
    fn edges(&self, start: usize, end: usize) -> usize {
        let merging = self.pool().sys.merging();
        let is_edge = |index: &usize| {
            let left = self.table.get(EntryIndex(index - 1));
            !joined(left, self.table.get(EntryIndex(*index)), merging)
        };
        (start.max(1)..=end.min(self.table.len() - 1)).filter(is_edge).count()
    }
}

impl<S: Sys> Drop for Space<S> {
    fn drop(&mut self) {
        let blocks = (0..self.table.len()).filter_map(|index| self.table.get(EntryIndex(index)).block());
        let pool = Arc::clone(self.pool());
        if self.addresses.close().is_ok() {
            blocks.for_each(|block| pool.release(block));
        } else {
            // Still mapped, perhaps: nobody may have these blocks again.
            pool.leak(blocks.count());
        }
        pool.registry.retire(&self.counters);
    }
}
