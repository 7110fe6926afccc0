//! What is known of the private pages over the blocks of a region: one record a block, and the sets of pages that the
//! last snapshots were given, so that the next one copies only what was written since.
//!
//! ```text
//!   record   [ dense | by page | prepared | made | begun | outdated | current ]  [ pages in the set : 25 ]
//!              how the block is written     how far its set tells what is there
//! ```
//! Sets change in a region's turn, and nobody looks at them in between but the pool's thread, which is told how many
//! pages there are.
//!
//! They hold blocks of the pool, so they may not outlive their use:
//!
//! | a set | goes |
//! |---|---|
//! | whose block only the region holds, or shows no more | with the snapshot or fork that has left the region alone |
//! | that no snapshot has any more | when blocks are short (unheld.rs) |
//!
//! The next snapshot puts the pages of the former back into their block, and copies those of the latter anew.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use allocator_api2::unsize_box;

use super::frames::Frames;
use super::page_set::PageSet;
use super::unheld::{Captures, Keeper};
use crate::mem::{self, EngineArc, EngineBox, EngineVec, Own};
use crate::sync::{WordGuard, WordLock};
use crate::sys::Sys;
use crate::table::Locked;
use crate::units::{BASE_PAGE, BlockId, BlockSize, EntryIndex};

/// The block was write-protected when it was captured, and is still.
const CURRENT: u32 = 1 << 25;

/// Pages of the set were dropped since, or something else was shown.
const OUTDATED: u32 = 1 << 26;

/// A set of the block is being made.
const BEGUN: u32 = 1 << 27;

/// There is a set, perhaps without pages.
const MADE: u32 = 1 << 28;

/// Writes to the block do not fault until the next fork, snapshot or reset. It is not write-protected until then: a
/// system call that writes would fail meanwhile.
const PREPARED: u32 = 1 << 29;

/// A reset has put back the few pages of the block that were written.
const BY_PAGE: u32 = 1 << 30;

/// The block was written so densely that a copy of it costs less than copies of its pages (density.rs): as it was after
/// the last snapshot, it will be after the next. From then on the first write to it copies it as a whole.
const DENSE: u32 = 1 << 31;

/// How many pages the set has.
const PAGES: u32 = CURRENT - 1;

/// All that a record says of the set.
const SET: u32 = PAGES | CURRENT | OUTDATED | BEGUN | MADE;

/// A dense block is tried anew after so many snapshots: nobody sees how many of its pages are written.
const TRIED_AFTER_SNAPSHOTS: usize = 32;

/// Wanted are the sets that are of no use to the region.
const USELESS: u32 = 1;

/// Wanted are the sets that no snapshot has.
const UNHELD: u32 = 2;

/// What was captured of a block.
struct Block<S: Sys> {
    set: EngineArc<PageSet<S>>,
    /// The cut that it was captured for.
    cut: u64,
}

/// Nobody else takes a snapshot or a fork of the region, or resets it, until this is dropped.
pub(crate) struct Turn<'a> {
    number: usize,
    captured: &'a dyn Keeper,
    pool: (&'a Captures, &'a Frames),
    guard: Option<WordGuard<'a>>,
}

impl Turn<'_> {
    pub(crate) fn number(&self) -> usize {
        self.number
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let (captures, frames) = self.pool;
        drop(self.guard.take());
        // There may be new sets, and nobody could drop those that there were.
        captures.note_unheld();
        self.captured.settle(frames);
    }
}

/// What was captured of the blocks of a region.
pub(crate) struct Captured<S: Sys> {
    /// Held while a fork or snapshot of the region is taken, or the region is reset, so that two of them do not undo
    /// each other's write-backs. Its holder waits for no operation: threads inside of one may wait for this.
    pub(crate) freezing: WordLock,
    /// The kinds of sets that are to be dropped: the thread that has the turn does so when it gives the turn up.
    wanted: AtomicU32,
    /// How many have had the turn, or have dropped sets.
    turns: AtomicUsize,
    sets: Mutex<Sets<S>>,
    /// Whether there ever was room for any set.
    has_room: AtomicBool,
    /// A record a block; none where blocks are pages.
    records: EngineBox<[AtomicU32]>,
    /// Whether a block may be [`PREPARED`].
    are_any_prepared: AtomicBool,
    /// Whether it is known which private pages were written since they were captured, as far as that could be had at
    /// the last cut.
    are_tracked: AtomicBool,
    /// How many blocks with many private pages may still be copied for this cut.
    copies_left: AtomicUsize,
    /// How many snapshots of the region were taken.
    snapshots: AtomicUsize,
}

/// The most blocks that one cut copies for their many private pages. It captures the pages of all others: a region that
/// is written to all over has many such blocks at once.
const MAX_COPIES: usize = 4;

/// The sets, while they are looked at.
pub(crate) struct Sets<S: Sys> {
    blocks: EngineVec<Option<Block<S>>>,
    cut: u64,
    /// What a reset has put others in the place of.
    replaced: EngineVec<EngineArc<PageSet<S>>>,
}

impl<S: Sys> Captured<S> {
    /// Nothing, of `count` blocks.
    pub(crate) fn new(count: usize, size: BlockSize) -> Captured<S> {
        let count = if size.bytes() > BASE_PAGE { count } else { 0 };
        let sets = Sets { blocks: EngineVec::new_in(Own), cut: 0, replaced: EngineVec::new_in(Own) };
        Captured {
            freezing: WordLock::default(),
            wanted: AtomicU32::new(0),
            turns: AtomicUsize::new(0),
            sets: Mutex::new(sets),
            has_room: AtomicBool::new(false),
            records: mem::zeroed(count),
            are_any_prepared: AtomicBool::new(false),
            are_tracked: AtomicBool::new(false),
            copies_left: AtomicUsize::new(0),
            snapshots: AtomicUsize::new(0),
        }
    }

    /// Takes the turn of the region, unless another thread has it. Its holder changes no set.
    pub(crate) fn try_freezing(&self) -> Option<WordGuard<'_>> {
        let guard = self.freezing.try_lock()?;
        self.turns.fetch_add(1, Ordering::Relaxed);
        Some(guard)
    }

    /// Drops the sets that are wanted, unless somebody has the turn: false then.
    fn settle_for(&self, wanted: u32, frames: &Frames) -> bool {
        self.wanted.fetch_or(wanted, Ordering::SeqCst);
        // Either whoever gives the turn up sees what is wanted, or it is free here.
        fence(Ordering::SeqCst);
        while self.wanted.load(Ordering::SeqCst) != 0 {
            let Some(turn) = self.freezing.try_lock() else { return false };
            self.drop_wanted(self.wanted.swap(0, Ordering::SeqCst), frames);
            drop(turn);
            fence(Ordering::SeqCst);
        }
        true
    }

    /// In the region's turn.
    fn drop_wanted(&self, wanted: u32, frames: &Frames) {
        let is_useless = |index, set: &PageSet<S>| frames.references(set.base) <= 1 || self.is_outdated(index);
        let is_wanted = |index, set: &EngineArc<PageSet<S>>| {
            wanted & USELESS != 0 && is_useless(index, set) || wanted & UNHELD != 0 && set.owners() == 1
        };
        let (mut sets, mut are_any) = (self.lock(), false);
        for (index, of) in sets.blocks.iter_mut().enumerate() {
            if of.as_ref().is_some_and(|of| is_wanted(EntryIndex(index), &of.set)) {
                (*of, are_any) = (None, true);
                self.set_record(EntryIndex(index), SET, 0);
            }
        }
        if are_any {
            // A cut that waits for operations is to look anew.
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Sets<S>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The flags and the count of a block's record; 0 if it has none.
    fn record(&self, index: EntryIndex) -> u32 {
        self.records.get(index.0).map_or(0, |record| record.load(Ordering::Relaxed))
    }

    /// Changes these bits of a record. Returns what it was; 0 if there is none.
    fn set_record(&self, index: EntryIndex, bits: u32, to: u32) -> u32 {
        let Some(record) = self.records.get(index.0) else { return 0 };
        let changed = |was: u32| Some(was & !bits | to);
        record.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed).unwrap_or_default()
    }

    /// Changes these bits of the records of blocks that have some of `of`. Only loads where none has.
    fn clear(&self, entries: Range<usize>, of: u32, bits: u32, to: u32) {
        for index in entries.start..entries.end.min(self.records.len()) {
            if self.record(EntryIndex(index)) & of != 0 {
                self.set_record(EntryIndex(index), bits, to);
            }
        }
    }

    /// Whether the block was dense.
    pub(crate) fn is_dense(&self, index: EntryIndex) -> bool {
        self.record(index) & DENSE != 0
    }

    /// Notes that a block was dense, or was not.
    pub(crate) fn note_dense(&self, index: EntryIndex, is_dense: bool) {
        self.set_record(index, DENSE | BY_PAGE, if is_dense { DENSE } else { 0 });
    }

    /// Whether a block keeps its private pages, because resets put them back.
    pub(crate) fn is_by_page(&self, index: EntryIndex) -> bool {
        self.record(index) & BY_PAGE != 0
    }

    /// Notes that a reset has put back the few pages of a block that were written: they will be written again, which
    /// costs nothing while they are private.
    pub(crate) fn keep_by_page(&self, index: EntryIndex) {
        self.set_record(index, DENSE | BY_PAGE, BY_PAGE);
    }

    /// Forgets how these blocks were written.
    pub(crate) fn forget_density(&self, entries: Range<usize>) {
        self.clear(entries, DENSE | BY_PAGE, DENSE | BY_PAGE, 0);
    }

    /// A snapshot is taken: forgets how some blocks were written, each after [`TRIED_AFTER_SNAPSHOTS`] snapshots.
    pub(crate) fn forget_some_density(&self) {
        let first = self.snapshots.fetch_add(1, Ordering::Relaxed) % TRIED_AFTER_SNAPSHOTS;
        let some = (first..self.records.len()).step_by(TRIED_AFTER_SNAPSHOTS);
        some.for_each(|index| self.forget_density(index..index + 1));
    }

    /// Notes that writes to `entries` do not fault.
    pub(crate) fn prepare(&self, _locked: Locked<'_>, entries: Range<usize>) {
        self.are_any_prepared.store(true, Ordering::Relaxed);
        for index in entries.map(EntryIndex) {
            self.set_record(index, PREPARED, PREPARED);
        }
    }

    /// Whether writes to the block at `index` are prepared. Under its window's lock this stays so.
    pub(crate) fn is_prepared(&self, index: EntryIndex) -> bool {
        self.record(index) & PREPARED != 0
    }

    /// Ends that for all blocks.
    pub(crate) fn end_prepared(&self) {
        if self.are_any_prepared.swap(false, Ordering::Relaxed) {
            self.clear(0..self.records.len(), PREPARED, PREPARED, 0);
        }
    }

    /// Bytes that the records take.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.records)
    }

    /// How many pages of a block are in its set, which the next snapshot need not copy if they stay as they are.
    pub(crate) fn pages_of(&self, index: EntryIndex) -> usize {
        (self.record(index) & PAGES) as usize
    }

    /// Whether all private pages of a block that have a mark are as its set says: as there, or as in the block below if
    /// they are not there. All pages of the set are private.
    pub(crate) fn has_all_marked(&self, index: EntryIndex) -> bool {
        self.record(index) & (MADE | OUTDATED) == MADE
    }

    /// Notes that these blocks may be written to, or were. Only loads where nothing was captured.
    pub(crate) fn may_change(&self, entries: Range<usize>) {
        self.clear(entries, CURRENT, CURRENT, 0);
    }

    pub(crate) fn are_tracked(&self) -> bool {
        self.are_tracked.load(Ordering::Relaxed)
    }

    pub(crate) fn set_tracked(&self, are_tracked: bool) {
        self.are_tracked.store(are_tracked, Ordering::Relaxed);
    }

    /// Whether a block may be copied for this cut because it has many private pages.
    pub(crate) fn may_copy(&self) -> bool {
        self.copies_left.load(Ordering::Relaxed) > 0
    }

    /// Notes that one is copied.
    pub(crate) fn note_copy(&self) {
        let left = self.copies_left.load(Ordering::Relaxed);
        self.copies_left.store(left.saturating_sub(1), Ordering::Relaxed);
    }

    /// Has the pages of all further blocks captured, because writers wait.
    pub(crate) fn copy_no_more(&self) {
        self.copies_left.store(0, Ordering::Relaxed);
    }

    /// Whether there are any, or have been.
    pub(crate) fn are_any(&self) -> bool {
        self.lock().are_any()
    }

    /// Whether a block was write-protected when it was captured, and nobody was let write since. Under the lock of its
    /// window.
    pub(crate) fn is_current(&self, index: EntryIndex) -> bool {
        self.record(index) & CURRENT != 0
    }

    /// Has the last set of a block over `base`, to which nobody has written since, for this cut too. False if there is
    /// none. Under the lock of its window.
    pub(crate) fn keep_last(&self, index: EntryIndex, base: BlockId) -> bool {
        let mut sets = self.lock();
        let cut = sets.cut;
        let of = sets.blocks.get_mut(index.0).and_then(Option::as_mut);
        let of = of.filter(|of| of.set.base == base && !self.is_outdated(index));
        of.map(|of| of.cut = cut).is_some()
    }

    /// Notes that private pages of these blocks are dropped: their sets tell nothing of what will be private there.
    /// Under the locks of their windows, or the region lock. Only loads where nothing was captured.
    pub(crate) fn outdate(&self, entries: Range<usize>) {
        self.clear(entries, SET, CURRENT | OUTDATED, OUTDATED);
    }

    pub(crate) fn is_outdated(&self, index: EntryIndex) -> bool {
        self.record(index) & OUTDATED != 0
    }

    /// Begins a cut: nothing is captured for it. Sets are dropped that are outdated, or whose blocks are not those of
    /// `block_of` any more.
    pub(crate) fn begin_cut(&self, block_of: impl Fn(EntryIndex) -> Option<BlockId>) {
        self.copies_left.store(MAX_COPIES, Ordering::Relaxed);
        let mut sets = self.lock();
        sets.cut += 1;
        for (index, of) in sets.blocks.iter_mut().enumerate() {
            let index = EntryIndex(index);
            let is_old = |base| self.is_outdated(index) || block_of(index) != Some(base);
            if of.as_ref().is_some_and(|of| is_old(of.set.base)) {
                *of = None;
                self.set_record(index, SET, 0);
            }
        }
    }

    /// Nothing is captured of a block any more.
    pub(crate) fn forget(&self, index: EntryIndex) {
        let mut sets = self.lock();
        let set = sets.blocks.get_mut(index.0).and_then(Option::take);
        self.set_record(index, SET, 0);
        drop(sets);
        drop(set);
    }

    /// A set of the block is being made, which may be write-protected now. Under the lock of its window. True if the
    /// last set tells what was private when it was made.
    pub(crate) fn begin_block(&self, index: EntryIndex, is_protected: bool) -> bool {
        self.set_record(index, SET, BEGUN | if is_protected { CURRENT } else { 0 }) & OUTDATED == 0
    }

    /// The set of a block, for whatever cut it was made.
    pub(crate) fn last(&self, index: EntryIndex) -> Option<EngineArc<PageSet<S>>> {
        self.lock().blocks.get(index.0)?.as_ref().map(|of| of.set.clone())
    }

    /// Changes the last set of a block over `base` for this cut, or an empty one if there is none. Then it is made: if
    /// writes were allowed since [`Captured::begin_block`], it is not current, and if pages were dropped, it is
    /// outdated. If the change fails, nothing is captured of the block any more.
    pub(crate) fn change<E>(
        &self,
        index: EntryIndex,
        empty: impl FnOnce() -> PageSet<S>,
        base: Option<BlockId>,
        change: impl FnOnce(&mut EngineArc<PageSet<S>>) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let mut sets = self.lock();
        self.has_room.store(true, Ordering::Relaxed);
        sets.make_room(self.records.len());
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

    /// Makes room for [`Captured::replace`], once for each block. Allocates.
    pub(crate) fn make_room(&self) {
        let (mut sets, count) = (self.lock(), self.records.len());
        self.has_room.store(true, Ordering::Relaxed);
        sets.make_room(count);
        if sets.replaced.capacity() < count {
            sets.replaced = EngineVec::with_capacity_in(count, Own);
        }
    }

    /// The pages over a block are as in this set now, or it is not known what they are. Under the region lock; nothing
    /// is allocated or dropped.
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
}

impl<S: Sys> EngineArc<Captured<S>> {
    /// Lets whoever is short of blocks have those of sets that no snapshot has.
    pub(crate) fn share_with(&self, captures: &Captures) {
        captures.add(self.another());
    }

    /// Drops all sets: the region goes.
    pub(crate) fn withdraw_from(&self, captures: &Captures) {
        captures.remove(self);
        let _turn = self.freezing.lock();
        self.lock().blocks = EngineVec::new_in(Own);
        self.clear(0..self.records.len(), SET, SET, 0);
    }

    /// Keeps all others from taking a snapshot or a fork of the region, or resetting it. Waits for no operation.
    pub(crate) fn take_turn<'a>(&'a self, captures: &'a Captures, frames: &'a Frames) -> Turn<'a> {
        let guard = self.freezing.lock();
        let number = self.turns.fetch_add(1, Ordering::Relaxed);
        Turn { number, captured: self, pool: (captures, frames), guard: Some(guard) }
    }

    /// The same, unless another thread has it, for a thread that only reads. Such a turn does not count: a cut that
    /// waits for operations need not look again after it.
    pub(crate) fn try_take_turn<'a>(&'a self, captures: &'a Captures, frames: &'a Frames) -> Option<Turn<'a>> {
        let guard = self.freezing.try_lock()?;
        let number = self.turns.load(Ordering::Relaxed);
        Some(Turn { number, captured: self, pool: (captures, frames), guard: Some(guard) })
    }

    /// Drops the sets whose pages can go back into their blocks, since only the region holds those, and what is
    /// outdated. If somebody has the turn, he does so when he gives it up.
    pub(crate) fn drop_useless(&self, frames: &Frames) {
        if self.has_room() {
            self.settle_for(USELESS, frames);
        }
    }
}

impl<S: Sys> Keeper for EngineArc<Captured<S>> {
    fn address(&self) -> usize {
        ptr::from_ref::<Captured<S>>(self).addr()
    }

    fn another(&self) -> EngineBox<dyn Keeper> {
        unsize_box!(EngineBox::new_in(self.clone(), Own))
    }

    fn has_room(&self) -> bool {
        self.has_room.load(Ordering::Relaxed)
    }

    fn drop_unheld(&self, frames: &Frames) -> bool {
        self.settle_for(UNHELD, frames)
    }

    fn drop_useless(&self, frames: &Frames) {
        EngineArc::<Captured<S>>::drop_useless(self, frames);
    }

    fn settle(&self, frames: &Frames) {
        self.settle_for(0, frames);
    }
}

impl<S: Sys> Sets<S> {
    fn make_room(&mut self, count: usize) {
        if self.blocks.is_empty() {
            self.blocks.resize_with(count, || None);
        }
    }

    /// Whether there are any.
    pub(crate) fn are_any(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// The set of a block that was captured for this cut.
    pub(crate) fn of_this_cut(&self, index: EntryIndex, base: BlockId) -> Option<EngineArc<PageSet<S>>> {
        let of = self.blocks.get(index.0)?.as_ref()?;
        (of.cut == self.cut && of.set.base == base).then(|| of.set.clone())
    }

    /// The set of a block, for whatever cut it was made.
    pub(crate) fn of_any_cut(&self, index: EntryIndex, base: BlockId) -> Option<EngineArc<PageSet<S>>> {
        let of = self.blocks.get(index.0)?.as_ref()?;
        (of.set.base == base).then(|| of.set.clone())
    }
}
