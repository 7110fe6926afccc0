//! The private pages over a region's blocks: one record a block, and the sets of pages that snapshots share.
//!
//! ```text
//!   record   [ dense | by page | prepared | made | begun | outdated | current ]  [ pages in the set : 25 ]
//!              how the block is written     how far the set is valid
//! ```
//! A region may have private pages over a block that a snapshot shares. The snapshot then gets copies of these pages, a
//! *set* (page_set.rs). The region keeps the last set of each block, so that the next snapshot copies only pages that
//! were written since, and shares the others.
//!
//! Sets change only in a region's *turn*: the lock that a thread holds while it forks, snapshots or resets the region.
//! Between turns, other threads read and change only the records.
//!
//! Slots for pages take blocks of the pool, so a set is dropped when it has lost its use:
//!
//! | the set | is dropped |
//! |---|---|
//! | of a block that only the region holds, or no longer maps | when the last fork or snapshot with the block goes |
//! | that no snapshot has any more | when blocks are short (unheld.rs) |
//! | that a cut has captured, which waits for operations | when a write finds no block |
//! | of a snapshot that has lost the block below (snapshot/revoke.rs) | when blocks are short |
//!
//! After the first kind of drop, the next snapshot writes the pages back into their block. After the second kind, it
//! captures them anew.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::core::PoolCore;
use super::frames::Frames;
use super::holders::SetHolder;
use super::page_set::PageSet;
use super::unheld::{UNHELD, USELESS, WAITED_FOR};
use crate::mem::{self, EngineArc, EngineBox, EngineVec, Own};
use crate::sync::{Engaged, WordGuard, WordLock};
use crate::sys::Sys;
use crate::table::Locked;
use crate::units::{BASE_PAGE, BlockId, BlockSize, EntryIndex};

/// The block was write-protected when it was captured, and has stayed so.
const CURRENT: u32 = 1 << 25;

/// Since the capture, private pages of the block were dropped, or the region maps something else there.
const OUTDATED: u32 = 1 << 26;

/// A thread is making a set of the block.
const BEGUN: u32 = 1 << 27;

/// The block has a set, perhaps without pages.
const MADE: u32 = 1 << 28;

/// The program has prepared writes to the block: until the next fork, snapshot or reset they do not fault. The block
/// must not be write-protected until then, because a system call that writes to it would fail.
const PREPARED: u32 = 1 << 29;

/// A reset has put back the few pages of the block that were written.
const BY_PAGE: u32 = 1 << 30;

/// The block was written so densely after the last snapshot that a copy of the block costs less than copies of its
/// pages (density.rs), and will probably be so after the next. From then on the first write copies the whole block.
const DENSE: u32 = 1 << 31;

/// The bits of a record for the number of pages in the set.
const PAGES: u32 = CURRENT - 1;

/// All bits of a record that concern the set.
const SET: u32 = PAGES | CURRENT | OUTDATED | BEGUN | MADE;

/// After this many snapshots, a dense block is written by page again, as a trial: while it is copied as a whole, its
/// written pages cannot be counted.
const TRIED_AFTER_SNAPSHOTS: usize = 32;

/// The set that was captured of a block.
struct Block<S: Sys> {
    set: EngineArc<PageSet<S>>,
    /// The number of the cut that last used the set.
    cut: u64,
}

/// A region's turn. While a thread has it, no other thread takes a snapshot or fork of the region, or resets it.
pub(crate) struct Turn<'a, S: Sys> {
    /// Rises with each turn, and with each drop of sets.
    pub(crate) number: usize,
    captured: &'a Captured<S>,
    pool: &'a PoolCore<S>,
    guard: Option<WordGuard<'a>>,
    _engaged: Engaged,
}

impl<S: Sys> Drop for Turn<'_, S> {
    fn drop(&mut self) {
        drop(self.guard.take());
        self.captured.drop_sets(0, &self.pool.frames);
    }
}

/// The records and sets of a region's blocks.
pub(crate) struct Captured<S: Sys> {
    /// The lock behind a [`Turn`]: a thread holds it while it forks, snapshots or resets the region, so that two such
    /// threads do not undo each other's write-backs. Its holder must not wait for the end of an operation, because
    /// threads inside operations may wait for this lock.
    pub(crate) freezing: WordLock,
    /// The kinds of sets that are to be dropped. The thread that has the turn drops them when it gives the turn up.
    wanted: AtomicU32,
    /// Counts turns, and drops of sets. A cut that has waited sees by it that it has to look again.
    turns: AtomicUsize,
    /// The cuts that wait for the end of operations and have no turn. The sets that they have made are in no snapshot
    /// yet.
    pub(crate) waiting_cuts: AtomicU32,
    sets: Mutex<Sets<S>>,
    /// Whether memory for sets has ever been allocated.
    has_room: AtomicBool,
    /// One record for each block; none if a block is a single page.
    records: EngineBox<[AtomicU32]>,
    /// Whether a block may be [`PREPARED`].
    are_any_prepared: AtomicBool,
    /// Whether the last cut could make the kernel track writes to all CoW mappings.
    are_tracked: AtomicBool,
    /// The number of snapshots that were taken of the region.
    snapshots: AtomicUsize,
}

/// The sets of a region, as their lock guards them.
pub(crate) struct Sets<S: Sys> {
    blocks: EngineVec<Option<Block<S>>>,
    cut: u64,
    /// Sets that a reset has replaced by others. [`Captured::drop_replaced`] drops them.
    replaced: EngineVec<EngineArc<PageSet<S>>>,
}

impl<S: Sys> Captured<S> {
    /// Empty records of `count` blocks, and no sets.
    pub(crate) fn new(count: usize, size: BlockSize) -> Captured<S> {
        let count = if size.bytes() > BASE_PAGE { count } else { 0 };
        let sets = Sets { blocks: EngineVec::new_in(Own), cut: 0, replaced: EngineVec::new_in(Own) };
        Captured {
            freezing: WordLock::default(),
            wanted: AtomicU32::new(0),
            waiting_cuts: AtomicU32::new(0),
            turns: AtomicUsize::new(0),
            sets: Mutex::new(sets),
            has_room: AtomicBool::new(false),
            records: mem::zeroed(count),
            are_any_prepared: AtomicBool::new(false),
            are_tracked: AtomicBool::new(false),
            snapshots: AtomicUsize::new(0),
        }
    }

    /// Takes the lock of the turn, unless another thread has it. The holder changes no set, and drops none at the end.
    pub(crate) fn try_freezing(&self) -> Option<WordGuard<'_>> {
        let guard = self.freezing.try_lock()?;
        self.turns.fetch_add(1, Ordering::Relaxed);
        Some(guard)
    }

    /// Drops the sets of the `wanted` kinds. Those of no use are the sets whose pages can go back into their blocks,
    /// because only the region holds those blocks, and outdated sets. The caller has the turn.
    fn drop_wanted(&self, wanted: u32, frames: &Frames) {
        let mut sets = self.lock();
        let stay = wanted & WAITED_FOR == 0 && self.waiting_cuts.load(Ordering::Relaxed) > 0;
        let waits_for = stay.then_some(sets.cut);
        let is_useless = |index, of: &Block<S>| frames.references(of.set.base) <= 1 || self.is_outdated(index);
        let is_unheld = |of: &Block<S>| of.set.owners() == 1 && Some(of.cut) != waits_for;
        let is_wanted = |index, of: &Block<S>| {
            wanted & USELESS != 0 && is_useless(index, of) || wanted & UNHELD != 0 && is_unheld(of)
        };
        if self.drop_each(&mut sets, is_wanted) {
            // A cut that waits for the end of operations must look again.
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Drops each set that `is_wanted` accepts. Returns true if there were any.
    fn drop_each(&self, sets: &mut Sets<S>, is_wanted: impl Fn(EntryIndex, &Block<S>) -> bool) -> bool {
        let mut are_any = false;
        for (index, of) in sets.blocks.iter_mut().enumerate() {
            if of.as_ref().is_some_and(|of| is_wanted(EntryIndex(index), of)) {
                (*of, are_any) = (None, true);
                self.set_record(EntryIndex(index), SET, 0);
            }
        }
        are_any
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Sets<S>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the sets, and makes room for one of each block.
    fn lock_with_room(&self) -> MutexGuard<'_, Sets<S>> {
        let mut sets = self.lock();
        self.has_room.store(true, Ordering::Relaxed);
        if sets.blocks.is_empty() {
            sets.blocks.resize_with(self.records.len(), || None);
        }
        sets
    }

    /// The record of a block; 0 if it has none.
    fn record(&self, index: EntryIndex) -> u32 {
        self.records.get(index.0).map_or(0, |record| record.load(Ordering::Relaxed))
    }

    /// Sets the bits `bits` of a record to `to`. Returns the record from before; 0 if there is none.
    fn set_record(&self, index: EntryIndex, bits: u32, to: u32) -> u32 {
        let Some(record) = self.records.get(index.0) else { return 0 };
        let changed = |was: u32| Some(was & !bits | to);
        record.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed).unwrap_or_default()
    }

    /// Sets the bits `bits` to `to` in those records that have any bit of `of`. A record without these bits is only
    /// read.
    fn clear(&self, entries: Range<usize>, of: u32, bits: u32, to: u32) {
        for index in entries.start..entries.end.min(self.records.len()) {
            if self.record(EntryIndex(index)) & of != 0 {
                self.set_record(EntryIndex(index), bits, to);
            }
        }
    }

    /// Whether the block was written densely.
    pub(crate) fn is_dense(&self, index: EntryIndex) -> bool {
        self.record(index) & DENSE != 0
    }

    /// Notes whether a block was written densely.
    pub(crate) fn note_dense(&self, index: EntryIndex, is_dense: bool) {
        self.set_record(index, DENSE | BY_PAGE, if is_dense { DENSE } else { 0 });
    }

    /// Whether a block keeps its private pages, because resets put them back.
    pub(crate) fn is_by_page(&self, index: EntryIndex) -> bool {
        self.record(index) & BY_PAGE != 0
    }

    /// Notes that a reset has put back the few written pages of a block. The program will probably write to these pages
    /// again, which costs nothing while they are private.
    pub(crate) fn keep_by_page(&self, index: EntryIndex) {
        self.set_record(index, DENSE | BY_PAGE, BY_PAGE);
    }

    /// Forgets how these blocks were written.
    pub(crate) fn forget_density(&self, entries: Range<usize>) {
        self.clear(entries, DENSE | BY_PAGE, DENSE | BY_PAGE, 0);
    }

    /// Counts a snapshot, and forgets how some blocks were written: each block once in [`TRIED_AFTER_SNAPSHOTS`]
    /// snapshots.
    pub(crate) fn forget_some_density(&self) {
        let first = self.snapshots.fetch_add(1, Ordering::Relaxed) % TRIED_AFTER_SNAPSHOTS;
        let some = (first..self.records.len()).step_by(TRIED_AFTER_SNAPSHOTS);
        some.for_each(|index| self.forget_density(index..index + 1));
    }

    /// Notes that writes to `entries` are prepared, so that they do not fault.
    pub(crate) fn prepare(&self, _locked: Locked<'_>, entries: Range<usize>) {
        self.are_any_prepared.store(true, Ordering::Relaxed);
        for index in entries.map(EntryIndex) {
            self.set_record(index, PREPARED, PREPARED);
        }
    }

    /// Whether writes to the block at `index` are prepared. The answer does not change while the caller holds the lock
    /// of the block's window.
    pub(crate) fn is_prepared(&self, index: EntryIndex) -> bool {
        self.record(index) & PREPARED != 0
    }

    /// Notes that no writes are prepared any more.
    pub(crate) fn end_prepared(&self) {
        if self.are_any_prepared.swap(false, Ordering::Relaxed) {
            self.clear(0..self.records.len(), PREPARED, PREPARED, 0);
        }
    }

    /// The size of the records in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.records)
    }

    /// How many pages of a block are in its set. The next snapshot need not copy those of them that stay unchanged.
    pub(crate) fn pages_of(&self, index: EntryIndex) -> usize {
        (self.record(index) & PAGES) as usize
    }

    /// Whether the set gives the content of every marked private page of the block. (A mark is the kernel's note that
    /// the page was not written since a scan.) Such a page is as in the set or, if the set lacks it, as in the block
    /// below. All pages of the set are private.
    pub(crate) fn has_all_marked(&self, index: EntryIndex) -> bool {
        self.record(index) & (MADE | OUTDATED) == MADE
    }

    /// Notes that threads may write to these blocks, or have written. Records of blocks without a current set are only
    /// read.
    pub(crate) fn may_change(&self, entries: Range<usize>) {
        self.clear(entries, CURRENT, CURRENT, 0);
    }

    pub(crate) fn are_tracked(&self) -> bool {
        self.are_tracked.load(Ordering::Relaxed)
    }

    pub(crate) fn set_tracked(&self, are_tracked: bool) {
        self.are_tracked.store(are_tracked, Ordering::Relaxed);
    }

    /// Whether the region has had any set so far.
    pub(crate) fn are_any(&self) -> bool {
        !self.lock().blocks.is_empty()
    }

    /// Whether a block was write-protected when it was captured, and has not been made writable since. The caller holds
    /// the lock of its window.
    pub(crate) fn is_current(&self, index: EntryIndex) -> bool {
        self.record(index) & CURRENT != 0
    }

    /// Uses the last set of a block over `base` for this cut, too, if the set is not outdated. Nobody may have written
    /// to the block since the capture. Returns false if there is no such set. The caller holds the lock of its window.
    pub(crate) fn keep_last(&self, index: EntryIndex, base: BlockId) -> bool {
        let mut sets = self.lock();
        let cut = sets.cut;
        let of = sets.blocks.get_mut(index.0).and_then(Option::as_mut);
        let of = of.filter(|of| of.set.base == base && !self.is_outdated(index));
        of.map(|of| of.cut = cut).is_some()
    }

    /// Notes that private pages of these blocks are dropped, so that their sets say nothing about later private pages.
    /// The caller holds the locks of their windows, or the region lock. Records of blocks without a set are only read.
    pub(crate) fn outdate(&self, entries: Range<usize>) {
        if !seeded!("set-keeps-pages-that-were-dropped") {
            self.clear(entries, SET, CURRENT | OUTDATED, OUTDATED);
        }
    }

    pub(crate) fn is_outdated(&self, index: EntryIndex) -> bool {
        self.record(index) & OUTDATED != 0
    }

    /// Begins a cut, which has captured no block yet. Drops outdated sets, and sets over blocks that are not at their
    /// place any more, as `block_of` says.
    pub(crate) fn begin_cut(&self, block_of: impl Fn(EntryIndex) -> Option<BlockId>) {
        let mut sets = self.lock();
        sets.cut += 1;
        self.drop_each(&mut sets, |index, of| self.is_outdated(index) || block_of(index) != Some(of.set.base));
    }

    /// Forgets the set of a block.
    pub(crate) fn forget(&self, index: EntryIndex) {
        let mut sets = self.lock();
        let set = sets.blocks.get_mut(index.0).and_then(Option::take);
        self.set_record(index, SET, 0);
        drop(sets);
        drop(set);
    }

    /// Notes that the caller is making a set of the block, which is write-protected now if `is_protected`. Returns
    /// false if the last set is outdated. The caller holds the lock of the block's window.
    pub(crate) fn begin_block(&self, index: EntryIndex, is_protected: bool) -> bool {
        self.set_record(index, SET, BEGUN | if is_protected { CURRENT } else { 0 }) & OUTDATED == 0
    }

    /// The last set of a block, for whatever cut it was made.
    pub(crate) fn last(&self, index: EntryIndex) -> Option<EngineArc<PageSet<S>>> {
        self.lock().blocks.get(index.0)?.as_ref().map(|of| of.set.clone())
    }

    /// Makes the set of a block for this cut: `change` is applied to the last set over `base`, or to an empty one if
    /// there is none. The new set is not current if the block was made writable since [`Captured::begin_block`], and it
    /// is outdated if private pages were dropped since. If `change` fails or returns false, the block has no set any
    /// more.
    pub(crate) fn change<E>(
        &self,
        index: EntryIndex,
        empty: impl FnOnce() -> PageSet<S>,
        base: Option<BlockId>,
        change: impl FnOnce(&mut EngineArc<PageSet<S>>) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let mut sets = self.lock_with_room();
        let Sets { blocks, cut, .. } = &mut *sets;
        let last = blocks[index.0].take().filter(|of| Some(of.set.base) == base);
        let mut set = last.map_or_else(|| EngineArc::new(empty()), |of| of.set);
        let changed = change(&mut set);
        if matches!(changed, Ok(true)) {
            self.records[index.0].fetch_add((set.len() as u32 | MADE).wrapping_sub(BEGUN), Ordering::Relaxed);
            blocks[index.0] = Some(Block { set, cut: *cut });
        } else {
            self.set_record(index, SET, 0);
        }
        changed
    }

    /// Allocates the room that [`Captured::replace`] needs to replace each set once.
    pub(crate) fn make_room(&self) {
        let (mut sets, count) = (self.lock_with_room(), self.records.len());
        if sets.replaced.capacity() < count {
            sets.replaced = EngineVec::with_capacity_in(count, Own);
        }
    }

    /// Replaces the set of a block: its private pages are as in `set` now, or unknown if that is `None`. The caller
    /// holds the region lock, so this neither allocates nor drops anything.
    pub(crate) fn replace(&self, index: EntryIndex, set: Option<EngineArc<PageSet<S>>>) {
        let mut sets = self.lock();
        let Sets { blocks, cut, replaced } = &mut *sets;
        let Some(of) = blocks.get_mut(index.0) else { return };
        self.set_record(index, SET, set.as_ref().map_or(0, |set| set.len() as u32 | MADE));
        replaced.extend(std::mem::replace(of, set.map(|set| Block { set, cut: *cut })).map(|of| of.set));
    }

    /// Drops the sets that were replaced.
    pub(crate) fn drop_replaced(&self) {
        let mut sets = self.lock();
        if !sets.replaced.is_empty() {
            let replaced = std::mem::replace(&mut sets.replaced, EngineVec::new_in(Own));
            drop(sets);
            drop(replaced);
        }
    }

    /// Takes the region's turn, and waits for it if necessary. No other thread can then snapshot, fork or reset the
    /// region. Waits for no operation.
    pub(crate) fn take_turn<'a>(&'a self, pool: &'a PoolCore<S>) -> Turn<'a, S> {
        let engaged = Engaged::new();
        let guard = self.freezing.lock();
        let number = self.turns.fetch_add(1, Ordering::Relaxed);
        // Before this turn makes sets.
        pool.unheld.note();
        Turn { number, captured: self, pool, guard: Some(guard), _engaged: engaged }
    }

    /// As `take_turn`, for a thread that only reads, but fails if another thread has the turn. Such a turn
    /// is not counted: a cut that waits for operations need not look again after it.
    pub(crate) fn try_take_turn<'a>(&'a self, pool: &'a PoolCore<S>) -> Option<Turn<'a, S>> {
        let engaged = Engaged::new();
        let guard = self.freezing.try_lock()?;
        let number = self.turns.load(Ordering::Relaxed);
        pool.unheld.note();
        Some(Turn { number, captured: self, pool, guard: Some(guard), _engaged: engaged })
    }

    /// Drops all sets, because the region goes.
    pub(crate) fn withdraw(&self) {
        let _turn = self.freezing.lock();
        self.lock().blocks = EngineVec::new_in(Own);
        self.clear(0..self.records.len(), SET, SET, 0);
    }
}

impl<S: Sys> SetHolder for Captured<S> {
    /// Adds `wanted` to the kinds of sets to drop, and drops them.
    fn drop_sets(&self, wanted: u32, frames: &Frames) -> bool {
        // A thread that has the turn may be making the first sets.
        if !self.freezing.is_taken() && !self.has_room.load(Ordering::Relaxed) {
            return true;
        }
        self.wanted.fetch_or(wanted, Ordering::SeqCst);
        // With this fence, either the thread that ends its turn sees the new kinds, or this thread finds the turn free.
        fence(Ordering::SeqCst);
        while self.wanted.load(Ordering::SeqCst) != 0 {
            let Some(turn) = self.freezing.try_lock() else { return false };
            self.drop_wanted(self.wanted.swap(0, Ordering::SeqCst), frames);
            drop(turn);
            fence(Ordering::SeqCst);
        }
        // Another thread may have found these kinds wanted, and be dropping them.
        let waits = wanted & WAITED_FOR == 0 && self.waiting_cuts.load(Ordering::Relaxed) > 0;
        !self.freezing.is_taken() && !waits
    }
}

impl<S: Sys> Sets<S> {
    /// The set of a block over `base`, if it was captured for this cut.
    pub(crate) fn of_this_cut(&self, index: EntryIndex, base: BlockId) -> Option<EngineArc<PageSet<S>>> {
        let of = self.blocks.get(index.0)?.as_ref()?;
        (of.cut == self.cut && of.set.base == base).then(|| of.set.clone())
    }

    /// The last set of a block over `base`, for whatever cut it was made.
    pub(crate) fn of_any_cut(&self, index: EntryIndex, base: BlockId) -> Option<EngineArc<PageSet<S>>> {
        let of = self.blocks.get(index.0)?.as_ref()?;
        (of.set.base == base).then(|| of.set.clone())
    }
}
