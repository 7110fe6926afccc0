//! The blocks of a region at one moment: what `fork()` and `snapshot()` are made of.
//!
//! ```text
//!            freeze                      share
//!  Space ─────────────▶ Frozen ─────────────────────────▶ Space (a fork)
//!                        │  ▲
//!                        │  └── duplicate
//!                        └── map, on first use ─▶ a snapshot's bytes
//! ```
//! Invariant: a `Frozen` holds one reference to each of its blocks, so none of them is ever written again while it lives:
//! a region writes only to blocks it holds alone. Its entries are `Zero`, `Borrowed` or, once taken away, `Revoked`; they
//! change under its lock.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cow::{Derived, RegionId};
use crate::error::{RegionError, SystemError};
use crate::fault::report;
use crate::fault::resolver::Unresolved;
use crate::fixed::{Fixed, Known};
use crate::options::{RegionOptions, Reserve};
use crate::own::Counted;
use crate::pool::core::{Home, PoolCore};
use crate::pool::holders::{Droppable, Dropped, Holder};
use crate::pool::room::Found;
use crate::space::{Addresses, Space, joined, runs};
use crate::sync::{RegionLock, SignalsBlocked};
use crate::sys::{Access, Left, MapFailure, Sys};
use crate::table::split::SplitPage;
use crate::table::{Booked, Entries, Entry};
use crate::units::{BlockId, EntryIndex};

/// The blocks of a region at one moment. The pool and the fault handler find it by address.
pub(crate) struct Frozen<S: Sys> {
    pool: Counted<PoolCore<S>>,
    entries: Entries,
    lock: RegionLock,
    revoked: AtomicUsize,
    /// The bytes at an address, made on first use.
    view: OnceLock<Addresses<S>>,
    origin: Derived,
    /// Keeps the range of the pool that the blocks lie in set aside, so that the next region settles elsewhere.
    home: OnceLock<Home<S>>,
}

impl<S: Sys> Space<S> {
    /// Freezes the region: the pause of a fork or snapshot. Takes time in proportion to the number of blocks, some
    /// nanoseconds each, and one write-protection. Pinned blocks are copied, and the parts of split blocks that were
    /// dropped get memory again.
    ///
    /// The cut is consistent. A write that lands before its page is protected is in the blocks that we keep. A thread
    /// whose write comes later waits in its fault until the lock is free, so nothing that it does afterwards can be in
    /// them either.
    pub(crate) fn freeze(&self) -> Result<Fixed<Frozen<S>>, RegionError> {
        loop {
            let frozen = Frozen::empty(self.pool(), self.table.len(), Derived::of(&self.cow));
            match self.fill(&frozen) {
                Ok(()) => {
                    if let Some(old) = self.move_home() {
                        let _ = frozen.home.set(old);
                    }
                    return Ok(frozen);
                }
                Err(RegionError::PoolFull { .. }) if self.make_room_for_copies() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Pinned blocks are copied: that takes blocks.
    fn make_room_for_copies(&self) -> bool {
        let _signals = SignalsBlocked::new();
        self.pool().drop_some_lazy() != Found::None
    }

    pub(crate) fn fill(&self, frozen: &Frozen<S>) -> Result<(), RegionError> {
        let pool = self.pool();
        let _signals = SignalsBlocked::new();
        // Who wants a block back that is in there already waits until all are.
        let filling = frozen.lock.exclusive();
        let started = pool.sys.now();
        let alone = self.lock.exclusive();
        let mut mappings = 1;
        let filled = self.fill_locked(frozen, &mut mappings);
        if filled.is_err() {
            // Under the region lock: others take a block with two holders for write-protected, and copy it.
            frozen.let_go();
        }
        if filled.is_err() || self.table.has_splits() || self.pins.are_used() {
            // What was counted on the way does not hold there.
            mappings = 1 + self.edges(0..self.table.len());
        }
        self.addresses.recount(self.addresses.mappings(), mappings);
        drop(alone);
        if let Err(reason) = filled {
            // Naming the pool allocates: not under a lock.
            drop(filling);
            return Err(self.error(reason));
        }
        let pause = pool.sys.now().saturating_sub(started);
        self.counters.snapshots.fetch_add(1, Ordering::Relaxed);
        self.counters.longest_pause.fetch_max(pause, Ordering::Relaxed);
        Ok(())
    }

    fn fill_locked(&self, frozen: &Frozen<S>, mappings: &mut usize) -> Result<(), Unresolved> {
        if self.revoked.load(Ordering::Relaxed) > 0 {
            return Err(Unresolved::Revoked);
        }
        let pool = self.pool();
        let (mut first, mut last) = (usize::MAX, 0);
        let mut before = None;
        for index in (0..self.table.len()).map(EntryIndex) {
            let mut entry = self.table.get(index);
            match entry {
                Entry::Private(block) => entry = Entry::Shared(block),
                Entry::Split(block) => self.fill_holes(index, block)?,
                _ => {}
            }
            if let Some(block) = entry.block() {
                (first, last) = (first.min(index.0), index.0);
                if !self.pins.has(index) {
                    pool.frames.add_reference(block);
                    frozen.entries.set(index, Entry::Borrowed(block));
                    self.table.set(index, entry);
                }
            }
            *mappings += usize::from(before.is_some_and(|before| !joined(before, entry, pool.sys.merging())));
            before = Some(entry);
        }
        if first > last {
            return Ok(());
        }
        // On failure the entries stay `Shared` and `frozen` gives its references back: the next writes find a single
        // reference and make their blocks writable again, whatever the kernel has left of the protection. That is also
        // why what was `Shared` already is protected once more: it costs nothing where nothing changes.
        self.without_pinned(first..last + 1, |run| self.protect_run(run))?;
        self.copy_pinned(frozen, first..last + 1)
    }

    /// Takes the right to write to `entries` away.
    fn protect_run(&self, entries: Range<usize>) -> Result<(), Unresolved> {
        let len = self.pool().block_size.len_of(entries.len());
        let protected = self.pool().sys.protect(self.address_of(entries.start), len, Access::Read);
        for index in entries.map(EntryIndex).filter(|_| self.table.has_splits()) {
            if let (Entry::Split(_), Some(split)) = (self.table.get(index), self.table.split(index)) {
                for page in (0..split.len()).filter(|&page| split.get(page) == SplitPage::Writable) {
                    split.set(page..page + 1, SplitPage::Readable);
                }
            }
        }
        protected.map_err(Unresolved::Unmappable)
    }

    /// Gives pinned blocks to `frozen` as copies, after all other blocks were protected. So if a write is in the cut, every write
    /// that happened before it is too, unless both went to pinned blocks.
    fn copy_pinned(&self, frozen: &Frozen<S>, entries: Range<usize>) -> Result<(), Unresolved> {
        if !self.pins.are_used() {
            return Ok(());
        }
        for index in entries.map(EntryIndex).filter(|index| self.pins.has(*index)) {
            if let Some(block) = self.table.get(index).block() {
                let copy = self.pool().copy_of(block, Booked::No)?;
                frozen.entries.set(index, Entry::Borrowed(copy));
                frozen.origin.keeps_alone();
            }
        }
        Ok(())
    }

    /// Gives the dropped pages of a split block memory again, so that others can hold it. Under the region lock, exclusively.
    fn fill_holes(&self, index: EntryIndex, block: BlockId) -> Result<(), Unresolved> {
        let Some(split) = self.table.split(index) else { return Ok(()) };
        split
            .runs_of(0..split.len(), SplitPage::Dropped)
            .try_for_each(|run| self.fill_hole(index, block, split, run, Access::Read))
    }
}

impl<S: Sys> Frozen<S> {
    /// Gives up all blocks. Under its lock, exclusively, before anybody maps them.
    fn let_go(&self) {
        for (index, entry) in self.entries.iter().enumerate() {
            if let Some(block) = entry.block() {
                self.entries.set(EntryIndex(index), Entry::Zero);
                self.origin.freed(usize::from(self.pool.release(block)));
            }
        }
    }

    /// Holds nothing yet.
    pub(crate) fn empty(pool: &Counted<PoolCore<S>>, count: usize, origin: Derived) -> Fixed<Frozen<S>> {
        let frozen = Fixed::new(Frozen {
            pool: pool.clone(),
            entries: Entries::new(count),
            lock: RegionLock::default(),
            revoked: AtomicUsize::new(0),
            view: OnceLock::new(),
            origin,
            home: OnceLock::new(),
        });
        pool.holders.add(&*frozen);
        frozen
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.pool.block_size.len_of(self.entries.len())
    }

    /// Whether any of the blocks was taken away.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire) > 0
    }

    /// Whether the block that holds byte `offset` was taken away. Waits for one who is just doing it.
    pub(crate) fn is_revoked_at(&self, offset: usize) -> bool {
        let _looking = self.lock.shared();
        self.entries.get(EntryIndex(self.pool.block_size.count(offset))) == Entry::Revoked
    }

    pub(crate) fn pool(&self) -> &Counted<PoolCore<S>> {
        &self.pool
    }

    fn check(&self) -> Result<(), RegionError> {
        if self.is_revoked() { Err(RegionError::Revoked) } else { Ok(()) }
    }

    /// Books a block for each that is here, for the copies that writers of the region will need.
    pub(crate) fn reserve(&self) -> Result<(), RegionError> {
        let _signals = SignalsBlocked::new();
        let present = self.entries.iter().filter(|entry| entry.block().is_some()).count();
        self.pool.book(present)?;
        let _alone = self.lock.exclusive();
        let mut unused = present;
        for index in (0..self.entries.len()).map(EntryIndex) {
            if self.entries.get(index).block().is_some() && self.entries.set_booked(index, Booked::Yes) {
                unused -= 1;
            }
        }
        self.pool.frames.unreserve(unused);
        self.check()
    }

    /// A region that shares these blocks, taking this holder's references over: it holds nothing afterwards.
    pub(crate) fn share(&self, options: RegionOptions) -> Result<Fixed<Space<S>>, RegionError> {
        self.check()?;
        let mappings = runs(&self.entries, self.pool.sys.merging()).count();
        let addresses = Addresses::reserve(&self.pool, self.len(), mappings)?;
        let mut booked = 0;
        if options.reserve == Reserve::Full {
            self.pool.book(self.entries.len())?;
            booked = self.entries.len();
        }
        let space = Space::at(addresses, options, Some(self.origin.clone()));
        if let Some(origin) = &space.origin {
            origin.catch_up(&self.origin);
        }
        for index in 0..booked {
            space.table.set_booked(EntryIndex(index), Booked::Yes);
        }
        let signals = SignalsBlocked::new();
        let alone = self.lock.exclusive();
        // The new region is a holder already: who wants a block back that is there waits until it is mapped.
        let unmapped = space.lock.exclusive();
        self.check()?;
        for index in (0..self.entries.len()).map(EntryIndex) {
            let entry = self.entries.get(index);
            if entry != Entry::Zero {
                space.table.set(index, entry);
                self.entries.set(index, Entry::Zero);
            }
        }
        // If that fails the new region goes, with the blocks, and with what may be mapped of them.
        let mapped = space.addresses.map_frozen(&space.table);
        drop(unmapped);
        drop(alone);
        drop(signals);
        mapped?;
        Ok(space)
    }

    /// A second holder of the same blocks.
    pub(crate) fn duplicate(&self) -> Result<Fixed<Frozen<S>>, RegionError> {
        let copy = Frozen::empty(&self.pool, self.entries.len(), self.origin.clone());
        copy.origin.catch_up(&self.origin);
        let _signals = SignalsBlocked::new();
        let filling = copy.lock.exclusive();
        let reading = self.lock.shared();
        self.check()?;
        for (index, entry) in self.entries.iter().enumerate() {
            if let Some(block) = entry.block() {
                self.pool.frames.add_reference(block);
                copy.entries.set(EntryIndex(index), entry);
            }
        }
        drop((reading, filling));
        Ok(copy)
    }

    /// Copies bytes out, through the direct map. `offset + to.len()` is at most [`Frozen::len`].
    pub(crate) fn read(&self, mut offset: usize, mut to: &mut [u8]) -> Result<(), RegionError> {
        let size = self.pool.block_size;
        while !to.is_empty() {
            let start = size.within(offset);
            let (now, rest) = to.split_at_mut(to.len().min(size.bytes() - start));
            let index = EntryIndex(size.count(offset));
            loop {
                match self.entries.get(index) {
                    Entry::Zero => {
                        now.fill(0);
                        break;
                    }
                    Entry::Borrowed(block) => {
                        // SAFETY: `start + now.len()` is within the block, which lies in the direct map.
                        unsafe { copy_out(self.pool.direct(block).add(start), now) };
                        // Taken away or exchanged for a copy meanwhile, it may have been written to since.
                        std::sync::atomic::fence(Ordering::Acquire);
                        if self.entries.get(index) == Entry::Borrowed(block) {
                            break;
                        }
                    }
                    Entry::Revoked => return Err(RegionError::Revoked),
                    Entry::Private(_) | Entry::Shared(_) | Entry::Lazy(_) | Entry::Split(_) => {
                        unreachable!("a snapshot's blocks are borrowed")
                    }
                }
            }
            offset += now.len();
            to = rest;
        }
        Ok(())
    }

    /// Makes the bytes visible at an address, the first time, and returns it. One caller at a time.
    ///
    /// `enter` is told the address before anybody else can learn of it: whoever reads there next may find that a block
    /// was taken away, and that fault must find its way here.
    pub(crate) fn map(&self, enter: impl FnOnce(usize)) -> Result<usize, RegionError> {
        if let Some(view) = self.view.get() {
            return Ok(view.base);
        }
        self.check()?;
        let mappings = runs(&self.entries, self.pool.sys.merging()).count();
        let addresses = Addresses::reserve(&self.pool, self.len(), mappings)?;
        let base = addresses.base;
        let _signals = SignalsBlocked::new();
        let alone = self.lock.exclusive();
        let mapped = self.check().and_then(|()| Ok(addresses.map_frozen(&self.entries)?));
        // Not dropped under the lock: that may allocate.
        let unused = match mapped {
            Ok(()) => {
                enter(base);
                self.view.set(addresses).err()
            }
            Err(_) => Some(addresses),
        };
        drop(alone);
        drop(unused);
        mapped.map(|()| base)
    }

    /// Where the bytes are visible, if they are.
    pub(crate) fn view(&self) -> Option<usize> {
        self.view.get().map(|view| view.base)
    }

    /// What is held, for tests that count references.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Mappings as counted, for tests.
    #[cfg(test)]
    pub(crate) fn mappings(&self) -> usize {
        self.view.get().map_or(0, Addresses::mappings)
    }
}

/// Copies bytes that may be changed meanwhile: the caller finds out afterwards and forgets them.
///
/// # Safety
/// `from` is valid for reads of `to.len()` bytes.
unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    const WORD: usize = size_of::<u64>();
    // Words by atomic loads where both ends allow, so that a race is no undefined behaviour; bytes elsewhere.
    let lead = from.align_offset(WORD).min(to.len());
    let (head, rest) = to.split_at_mut(lead);
    let byte = |at: usize| {
        // SAFETY: within `to.len()` bytes of `from`; an atomic byte needs no alignment.
        unsafe { std::sync::atomic::AtomicU8::from_ptr(from.add(at).cast_mut()) }.load(Ordering::Relaxed)
    };
    head.iter_mut().enumerate().for_each(|(at, to)| *to = byte(at));
    let mut words = rest.chunks_exact_mut(WORD);
    let mut at = lead;
    for to in &mut words {
        // SAFETY: as above, and aligned by `lead`.
        let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(from.add(at).cast_mut().cast()) };
        to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        at += WORD;
    }
    words.into_remainder().iter_mut().enumerate().for_each(|(by, to)| *to = byte(at + by));
}

impl<S: Sys> Holder for Frozen<S> {
    fn id(&self) -> Option<RegionId> {
        None
    }

    fn origin(&self) -> Option<&Derived> {
        Some(&self.origin)
    }

    fn oldest_lazy(&self, _what: Droppable) -> Option<u32> {
        None
    }

    fn drop_lazy(&self, _until: u32, _bytes: usize, _what: Droppable, _look: &mut usize) -> Dropped {
        Dropped::default()
    }

    fn recall_lazy(&self, _changes: u64) -> bool {
        false
    }

    fn revoke(&self, index: EntryIndex, block: BlockId) -> bool {
        let is_here = || index.0 < self.entries.len() && self.entries.get(index) == Entry::Borrowed(block);
        if !is_here() {
            return false;
        }
        let _alone = self.lock.exclusive();
        if !is_here() || self.entries.is_booked(index) {
            return false;
        }
        if let Some(view) = self.view.get()
            && (!self.pool.sys.budget().fits(2) || !self.hide(view.of(index.0), block))
        {
            return false;
        }
        self.revoked.fetch_add(1, Ordering::Release);
        let before = self.edges_at(index);
        self.entries.set(index, Entry::Revoked);
        if let Some(view) = self.view.get() {
            view.recount(before, self.edges_at(index));
        }
        // Seen as revoked before the writer can change what is in the block.
        std::sync::atomic::fence(Ordering::SeqCst);
        self.pool.release(block);
        true
    }

    fn holds(&self, index: EntryIndex, block: BlockId) -> bool {
        index.0 < self.entries.len() && self.entries.get(index).block() == Some(block)
    }

    fn copy_from_booking(&self, index: EntryIndex, block: BlockId) -> bool {
        let is_due = || {
            index.0 < self.entries.len()
                && self.entries.get(index) == Entry::Borrowed(block)
                && self.entries.is_booked(index)
        };
        if !is_due() {
            return false;
        }
        let _alone = self.lock.exclusive();
        if !is_due() {
            return false;
        }
        if self.view.get().is_some() && !self.pool.sys.budget().fits(2) {
            return false;
        }
        let Ok(copy) = self.pool.copy_of(block, Booked::Yes) else { return false };
        if let Some(view) = self.view.get()
            && !self.show(view.of(index.0), copy, block)
        {
            self.pool.release_and(copy, Booked::Yes);
            return false;
        }
        let before = self.edges_at(index);
        self.entries.set(index, Entry::Borrowed(copy));
        self.entries.set_booked(index, Booked::No);
        if let Some(view) = self.view.get() {
            view.recount(before, self.edges_at(index));
        }
        self.origin.keeps_alone();
        // Seen as exchanged before the writer can change what is in the block.
        std::sync::atomic::fence(Ordering::SeqCst);
        self.pool.release(block);
        true
    }
}

impl<S: Sys> Frozen<S> {
    /// Edges of the view on both sides of an entry.
    fn edges_at(&self, index: EntryIndex) -> usize {
        let merging = self.pool.sys.merging();
        let is_edge =
            |at: &usize| !joined(self.entries.get(EntryIndex(at - 1)), self.entries.get(EntryIndex(*at)), merging);
        (index.0.max(1)..=(index.0 + 1).min(self.entries.len() - 1)).filter(is_edge).count()
    }

    /// Makes a block inaccessible in the view; true if it is.
    fn hide(&self, at: usize, block: BlockId) -> bool {
        let hidden = self.pool.sys.hide(at, self.pool.block_size.bytes());
        self.is_done_or_undone(hidden, at, block)
    }

    /// Shows `copy` in the view in place of `block`; true if it does.
    fn show(&self, at: usize, copy: BlockId, block: BlockId) -> bool {
        let (sys, len) = (&self.pool.sys, self.pool.block_size.bytes());
        let shown = sys.map(at, len, self.pool.offset(copy), Access::Read);
        self.is_done_or_undone(shown, at, block)
    }

    /// Whether a call that was to replace `block` in the view has; if not, it is there again.
    fn is_done_or_undone(&self, result: Result<(), MapFailure>, at: usize, block: BlockId) -> bool {
        let Err(failure) = result else { return true };
        let (sys, len) = (&self.pool.sys, self.pool.block_size.bytes());
        if failure.left == Left::Unknown && sys.map(at, len, self.pool.offset(block), Access::Read).is_err() {
            // Neither the bytes nor an error that says so would be found there.
            report::lost(&self.pool, at, failure.error);
            std::process::abort();
        }
        false
    }

    fn close_view(&mut self) -> Result<(), SystemError> {
        self.view.take().map_or(Ok(()), |mut view| view.close())
    }
}

impl<S: Sys> Known for Frozen<S> {
    fn withdraw(&self) {
        self.pool.holders.remove(self);
    }
}

impl<S: Sys> Drop for Frozen<S> {
    fn drop(&mut self) {
        let pool = self.pool.clone();
        let booked = (0..self.entries.len()).filter(|&index| self.entries.is_booked(EntryIndex(index))).count();
        pool.frames.unreserve(booked);
        if self.close_view().is_ok() {
            let freed = self.entries.iter().filter_map(Entry::block).filter(|&block| pool.release(block)).count();
            self.origin.freed(freed);
        } else {
            // Still visible, perhaps: nobody may have these blocks again.
            pool.leak(self.entries.iter().filter_map(Entry::block).count());
        }
    }
}
