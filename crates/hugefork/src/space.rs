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
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::cow::{CowAccount, CowLimit, Derived};
use crate::error::{RegionError, SystemError};
use crate::fault::history::History;
use crate::fault::report;
use crate::fixed::{Fixed, Known};
use crate::observer::{Changing, Observer};
use crate::options::{RegionOptions, Reserve};
use crate::own::Counted;
use crate::pins::Pins;
use crate::pool::core::{Home, PoolCore};
use crate::stats::Counters;
use crate::sync::RegionLock;
use crate::sys::{Access, Left, MapFailure, Merging, Sys};
use crate::table::split::SplitPage;
use crate::table::{Booked, Entries, Entry, Table};
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// An address range in the arena, and how many mappings it is split into.
pub(crate) struct Addresses<S: Sys> {
    pub(crate) pool: Counted<PoolCore<S>>,
    pub(crate) base: usize,
    pub(crate) len: usize,
    /// Mappings as counted in the budget.
    mappings: AtomicUsize,
}

impl<S: Sys> Addresses<S> {
    /// A range of `len` bytes that reads as zeros; to be split into `mappings` mappings soon.
    pub(crate) fn reserve(pool: &Counted<PoolCore<S>>, len: usize, mappings: usize) -> Result<Self, RegionError> {
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
        let base = pool.sys.reserve(len, pool.block_size.bytes()).map_err(|error| match error.raw_os_error() {
            libc::ENOMEM => RegionError::OutOfAddresses { len },
            _ => RegionError::System(error),
        })?;
        budget.replace(0, mappings);
        Ok(Addresses { pool: pool.clone(), base, len, mappings: AtomicUsize::new(mappings) })
    }

    /// The address of an entry.
    pub(crate) fn of(&self, index: usize) -> usize {
        self.base + self.pool.block_size.len_of(index)
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

    /// Maps runs of neighbouring blocks for reading, each where its entry says.
    pub(crate) fn map_frozen(&self, entries: &Entries) -> Result<(), SystemError> {
        let size = self.pool.block_size;
        for run in runs(entries, self.pool.sys.merging()) {
            if let Some(first) = entries.get(EntryIndex(run.start)).block() {
                let len = size.len_of(run.len());
                let mapped = self.pool.sys.map(self.of(run.start), len, self.pool.offset(first), Access::Read);
                mapped.map_err(|failure| failure.error)?;
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

/// The maximal runs of entries that are one mapping each. None of them is split.
pub(crate) fn runs(entries: &Entries, merging: Merging) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut start = 0;
    std::iter::from_fn(move || {
        if start == entries.len() {
            return None;
        }
        let mut end = start + 1;
        let mut last = entries.get(EntryIndex(start));
        while end < entries.len() {
            let next = entries.get(EntryIndex(end));
            if !joined(last, next, merging) {
                break;
            }
            (last, end) = (next, end + 1);
        }
        Some(std::mem::replace(&mut start, end)..end)
    })
}

/// Whether two neighbouring entries, neither of them split, are part of one mapping.
pub(crate) fn joined(left: Entry, right: Entry, merging: Merging) -> bool {
    match (left, right) {
        (Entry::Zero, Entry::Zero) | (Entry::Revoked, Entry::Revoked) => true,
        (Entry::Private(a), Entry::Private(b)) => merging == Merging::Merge && a.offset(1) == b,
        (left, right) => match (left.readable(), right.readable()) {
            (Some(a), Some(b)) => merging == Merging::Merge && a.offset(1) == b,
            _ => false,
        },
    }
}

/// A region without its public face. The fault handler and the pool find it by address.
pub(crate) struct Space<S: Sys> {
    pub(crate) addresses: Addresses<S>,
    pub(crate) table: Table,
    pub(crate) lock: RegionLock,
    pub(crate) counters: Counted<Counters>,
    pub(crate) history: History,
    /// What the program says of its writes, an [`Advice`](crate::Advice).
    pub(crate) advice: AtomicU8,
    pub(crate) reserve: Reserve,
    pub(crate) limit: Option<CowLimit>,
    pub(crate) cow: Counted<CowAccount>,
    /// Of a fork: its share in the account of the region that it was made from.
    pub(crate) origin: Option<Derived>,
    pub(crate) pins: Pins,
    pub(crate) observer: OnceLock<Arc<dyn Observer>>,
    /// Entries that are `Lazy`.
    pub(crate) lazy_blocks: AtomicUsize,
    /// Pages that are `Lazy` in entries that are `Split`.
    pub(crate) lazy_pages: AtomicUsize,
    /// Entries that are `Revoked`.
    pub(crate) revoked: AtomicUsize,
    home: Mutex<Option<Home<S>>>,
    /// First block of `home`, where the fault handler can read it.
    home_first: AtomicU32,
}

impl<S: Sys> Space<S> {
    /// A region of `len` bytes, a multiple of the block size, that reads as zeros.
    pub(crate) fn zeros(
        pool: &Counted<PoolCore<S>>,
        len: usize,
        options: RegionOptions,
    ) -> Result<Fixed<Self>, RegionError> {
        let addresses = Addresses::reserve(pool, len, 1)?;
        let space = Self::at(addresses, options, None);
        if options.reserve == Reserve::Full {
            pool.book(space.table.len())?;
            (0..space.table.len()).for_each(|index| {
                space.table.set_booked(EntryIndex(index), Booked::Yes);
            });
        }
        Ok(space)
    }

    /// A region at these addresses, which nobody else knows yet.
    pub(crate) fn at(addresses: Addresses<S>, options: RegionOptions, origin: Option<Derived>) -> Fixed<Self> {
        let size = addresses.pool.block_size;
        let counters = addresses.pool.registry.register();
        let count = size.count(addresses.len);
        let limit = options.limit.map(|(bytes, on_limit)| CowLimit { blocks: bytes.div_ceil(size.bytes()), on_limit });
        let space = Fixed::new(Space {
            addresses,
            table: Table::new(count, size),
            lock: RegionLock::default(),
            counters,
            history: History::default(),
            advice: AtomicU8::new(0),
            reserve: options.reserve,
            limit,
            cow: Counted::default(),
            origin,
            pins: Pins::default(),
            observer: OnceLock::new(),
            lazy_blocks: AtomicUsize::new(0),
            lazy_pages: AtomicUsize::new(0),
            revoked: AtomicUsize::new(0),
            home: Mutex::new(None),
            home_first: AtomicU32::new(0),
        });
        space.move_home();
        space.pool().holders.add(&*space);
        space
    }

    pub(crate) fn pool(&self) -> &Counted<PoolCore<S>> {
        &self.addresses.pool
    }

    /// The address of an entry.
    pub(crate) fn address_of(&self, index: usize) -> usize {
        self.addresses.of(index)
    }

    /// The block that `index` would like: at the same place in the region's home as in the region.
    pub(crate) fn wish(&self, index: EntryIndex) -> BlockId {
        let wish = self.home_first.load(Ordering::Relaxed) as usize + index.0;
        BlockId((wish % self.pool().frames.len()) as u32)
    }

    /// Chooses a new home for blocks that are written from now on, and returns the old one, which stays set aside for as
    /// long as the caller keeps it. Without room for a new one the region stays where it is.
    pub(crate) fn move_home(&self) -> Option<Home<S>> {
        let new = PoolCore::claim_home(self.pool(), self.table.len())?;
        self.home_first.store(new.first().0, Ordering::Relaxed);
        self.home.lock().unwrap_or_else(PoisonError::into_inner).replace(new)
    }

    /// Tells the observer, if there is one, that other memory comes to stand behind some entries, until this is dropped.
    pub(crate) fn changing(&self, entries: Range<usize>) -> Changing<'_> {
        let size = self.pool().block_size;
        Changing::start(
            self.observer.get().map(|observer| &**observer),
            size.len_of(entries.start)..size.len_of(entries.end),
        )
    }

    /// Stores new entries from `start` on, lets go of the blocks they replace, and counts the mappings they make. Under
    /// the windows' locks and the region lock, the kernel's mapping being changed already. Neither the old entries nor the
    /// new ones are split.
    pub(crate) fn publish(&self, start: EntryIndex, count: usize, entry: impl Fn(usize) -> Entry) {
        let before = self.edges(start.0..start.0 + count);
        for by in 0..count {
            self.replace(EntryIndex(start.0 + by), entry(by));
        }
        self.addresses.recount(before, self.edges(start.0..start.0 + count));
    }

    /// Stores one entry and does the books, but for the mappings.
    pub(crate) fn replace(&self, index: EntryIndex, new: Entry) {
        let old = self.table.get(index);
        self.table.set(index, new);
        let note = |count: &AtomicUsize, is: fn(Entry) -> bool| match (is(old), is(new)) {
            (true, false) => _ = count.fetch_sub(1, Ordering::Relaxed),
            (false, true) => _ = count.fetch_add(1, Ordering::Relaxed),
            _ => {}
        };
        note(&self.lazy_blocks, |entry| matches!(entry, Entry::Lazy(_)));
        note(&self.revoked, |entry| entry == Entry::Revoked);
        if old.block() != new.block() {
            self.leave(index, old, new);
            return;
        }
        if let (Some(origin), Entry::Borrowed(_)) = (&self.origin, old)
            && new.is_owner()
        {
            // Nobody else holds it: it is this fork's own from now on, and no cost of the region that it came from.
            origin.freed(1);
        }
        if matches!(new, Entry::Private(_)) && self.table.set_booked(index, Booked::No) {
            // It has become the region's own without a block from the pool.
            self.pool().frames.unreserve(1);
        }
    }

    /// Lets go of what `old` held, `new` being in its place.
    fn leave(&self, index: EntryIndex, old: Entry, new: Entry) {
        let pool = self.pool();
        let wants_booking = new == Entry::Zero && self.reserve == Reserve::Full && !self.table.is_booked(index);
        if let Some(block) = old.block() {
            if !self.forget_pages(index, old, block) {
                pool.leak(1);
                return;
            }
            let keep = if wants_booking { Booked::Yes } else { Booked::No };
            let was_last = pool.release_and(block, keep);
            if was_last && wants_booking {
                self.table.set_booked(index, Booked::Yes);
            }
            match (&self.origin, old) {
                (Some(origin), Entry::Borrowed(_)) if was_last => origin.freed(1),
                (_, old) if old.is_owner() && !was_last => self.cow.left(),
                _ => {}
            }
        }
        if matches!(new, Entry::Private(_)) {
            // What was booked has been used.
            self.table.set_booked(index, Booked::No);
        } else if wants_booking && !self.table.is_booked(index) && pool.frames.reserve(1).is_some() {
            // Others hold the block that was here: another one is booked in its place, if there is one.
            self.table.set_booked(index, Booked::Yes);
        }
    }

    /// Before the block of a split entry goes: what was dropped of it counts as never used again. False if it must not be
    /// given to anybody.
    fn forget_pages(&self, index: EntryIndex, old: Entry, block: BlockId) -> bool {
        let (Entry::Split(_), Some(split)) = (old, self.table.split(index)) else { return true };
        self.lazy_pages.fetch_sub(split.count(SplitPage::Lazy), Ordering::Relaxed);
        split.count(SplitPage::Dropped) == 0 || self.pool().give_memory_back(block)
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
        for index in entries {
            if let Err(failure) = self.map_again(EntryIndex(index)) {
                report::lost(self.pool(), self.address_of(index), failure.error);
                std::process::abort();
            }
        }
    }

    fn map_again(&self, index: EntryIndex) -> Result<(), MapFailure> {
        let (pool, size, at) = (self.pool(), self.pool().block_size.bytes(), self.address_of(index.0));
        match self.table.get(index) {
            Entry::Zero => pool.sys.map_zeros(at, size),
            Entry::Revoked => pool.sys.hide(at, size),
            Entry::Shared(block) | Entry::Borrowed(block) | Entry::Lazy(block) => {
                pool.sys.map(at, size, pool.offset(block), Access::Read)
            }
            Entry::Private(block) => pool.sys.map(at, size, pool.offset(block), Access::ReadWrite),
            Entry::Split(block) => {
                let Some(split) = self.table.split(index) else { return Ok(()) };
                pool.sys.map(at, size, pool.offset(block), Access::Read)?;
                for run in split.runs_of(0..split.len(), SplitPage::Writable) {
                    let protected =
                        pool.sys.protect(at + run.start * BASE_PAGE, run.len() * BASE_PAGE, Access::ReadWrite);
                    protected.map_err(|error| MapFailure { error, left: Left::Unknown })?;
                }
                split
                    .runs_of(0..split.len(), SplitPage::Dropped)
                    .try_for_each(|run| pool.sys.map_zeros(at + run.start * BASE_PAGE, run.len() * BASE_PAGE))
            }
        }
    }

    /// Places in and at both ends of `entries` at which one mapping ends and the next begins.
    pub(crate) fn edges(&self, entries: Range<usize>) -> usize {
        let merging = self.pool().sys.merging();
        let last = self.table.len() - 1;
        let first = entries.start.max(1);
        let mut edges = 0;
        let mut left = self.table.get(EntryIndex(first - 1));
        for index in first..=entries.end.min(last) {
            let right = self.table.get(EntryIndex(index));
            edges += usize::from(!self.joined_at(index, left, right, merging));
            left = right;
        }
        if self.table.has_splits() {
            edges += entries.map(|index| self.inner_edges(EntryIndex(index))).sum::<usize>();
        }
        edges
    }

    /// Whether the entries before and at `index` meet without an edge.
    fn joined_at(&self, index: usize, left: Entry, right: Entry, merging: Merging) -> bool {
        match (left, right) {
            (Entry::Split(_), _) | (_, Entry::Split(_)) => {
                self.face(index - 1, left, End::Last).meets(self.face(index, right, End::First))
            }
            _ => joined(left, right, merging),
        }
    }

    /// What is mapped at one end of an entry. Only where memory merges: nothing else is split.
    fn face(&self, index: usize, entry: Entry, end: End) -> Face {
        let pages = self.pool().block_size.bytes() / BASE_PAGE;
        let by = if end == End::First { 0 } else { pages - 1 };
        let page = |block: BlockId| block.index() * pages + by;
        match entry {
            Entry::Zero => Face::Zeros,
            Entry::Revoked => Face::Hidden,
            Entry::Private(block) => Face::Memory { page: page(block), access: Access::ReadWrite },
            Entry::Shared(block) | Entry::Borrowed(block) | Entry::Lazy(block) => {
                Face::Memory { page: page(block), access: Access::Read }
            }
            Entry::Split(block) => match self.table.split(EntryIndex(index)).map(|split| split.get(by)) {
                Some(SplitPage::Dropped) => Face::Zeros,
                Some(SplitPage::Writable) => Face::Memory { page: page(block), access: Access::ReadWrite },
                _ => Face::Memory { page: page(block), access: Access::Read },
            },
        }
    }

    /// Edges within a split block.
    fn inner_edges(&self, index: EntryIndex) -> usize {
        let (Entry::Split(_), Some(split)) = (self.table.get(index), self.table.split(index)) else { return 0 };
        let mapped = |page| match split.get(page) {
            // Both are mapped readable.
            SplitPage::Lazy => SplitPage::Readable,
            other => other,
        };
        (1..split.len()).filter(|&page| mapped(page - 1) != mapped(page)).count()
    }

    /// Edges in and at both ends of `entries` once all of them are `new`: zeros or nothing, which are one mapping.
    pub(crate) fn edges_as(&self, entries: &Range<usize>, new: Entry) -> usize {
        let merging = self.pool().sys.merging();
        let is_edge = |at: usize, left: Entry, right: Entry| usize::from(!self.joined_at(at, left, right, merging));
        let mut edges = 0;
        if entries.start > 0 {
            edges += is_edge(entries.start, self.table.get(EntryIndex(entries.start - 1)), new);
        }
        if entries.end < self.table.len() {
            edges += is_edge(entries.end, new, self.table.get(EntryIndex(entries.end)));
        }
        edges
    }

    /// Whether this region alone holds the block of its entry. Under the region lock that stays so, or becomes so.
    pub(crate) fn is_alone_with(&self, block: BlockId) -> bool {
        self.pool().frames.references(block) == 1
    }
}

/// One end of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    First,
    Last,
}

/// What is mapped at one end of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Face {
    Zeros,
    Hidden,
    Memory { page: usize, access: Access },
}

impl Face {
    fn meets(self, right: Face) -> bool {
        match (self, right) {
            (Face::Memory { page: a, access: x }, Face::Memory { page: b, access: y }) => a + 1 == b && x == y,
            (left, right) => left == right,
        }
    }
}

impl<S: Sys> Known for Space<S> {
    fn withdraw(&self) {
        self.pool().holders.remove(self);
    }
}

impl<S: Sys> Drop for Space<S> {
    fn drop(&mut self) {
        let pool = self.pool().clone();
        let entries = (0..self.table.len()).map(EntryIndex);
        pool.frames.unreserve(entries.clone().filter(|index| self.table.is_booked(*index)).count());
        let held = entries.map(|index| (index, self.table.get(index)));
        if self.addresses.close().is_ok() {
            let mut freed = 0;
            for (index, entry) in held {
                let Some(block) = entry.block() else { continue };
                if self.pins.has(index) {
                    // A guard that was forgotten: whoever uses this block's memory may still do so.
                    pool.leak(1);
                } else if self.forget_pages(index, entry, block) {
                    freed += usize::from(pool.release(block) && matches!(entry, Entry::Borrowed(_)));
                } else {
                    pool.leak(1);
                }
            }
            if let Some(origin) = &self.origin {
                origin.freed(freed);
            }
        } else {
            // Still mapped, perhaps: nobody may have these blocks again.
            pool.leak(held.filter(|(_, entry)| entry.block().is_some()).count());
        }
        pool.registry.retire(&self.counters);
    }
}
