//! The parts of a region: its addresses, the table of the entries that say what the addresses show, its locks and
//! counts.
//!
//! ```text
//! addresses   base ──────────────────────────────────────────▶ base + len
//! table       | Zero | Private 8 | Private 9 | Shared 3 | Zero …
//! mapped      | zeros|     blocks 8–9, rw    | block 3,r| zeros …      one mapping (VMA) each
//! ```
//! Invariant while no lock is held: the kernel maps at each entry what the entry's state says (table/entry.rs). The
//! exceptions come from system calls that failed:
//!
//! * A `Shared` entry whose block this region alone holds may still be writable, after a failed write-protection.
//! * A `CowMapped` entry that says writable may be read-only (`Accounts::unsure`).
//! * Pages beside pinned ones may be read-only in a `Private` entry (private/quiesce.rs).

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

use super::accounts::Accounts;
use super::dirty_list::DirtyList;
use super::history::Habits;
use super::operations::HeldOperations;
use super::placement::PlacementHint;
use crate::mapping::addresses::{Addresses, Place};
use crate::mapping::change::{Recount, Refused, Remapped, Right, Site};
use crate::mapping::edges::Shown;
use crate::mem::EngineArc;
use crate::mem::pinned::{Known, PinnedBox};
use crate::pool::captured::{Captured, Turn};
use crate::pool::core::PoolCore;
use crate::pool::density;
use crate::pool::holders::SetHolder;
use crate::pool::lineage::Derived;
use crate::pool::unheld::USELESS;
use crate::stats::counters::Counters;
use crate::sync::{RegionLock, SharedGuard, SignalsBlocked, WordLock};
use crate::sys::{Access, Shows, Sys};
use crate::table::pins::Pins;
use crate::table::transition::{Event, Held, OnDrop, on_drop, on_protect_failed};
use crate::table::{Entry, Locked, State, Table, WindowsGuard};
use crate::types::error::RegionError;
use crate::types::observer::Observer;
use crate::types::options::{RegionOptions, Reserve, Writers};
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// The locks under which a call changes some entries. The program's signals are blocked meanwhile.
pub(in crate::region) struct HeldEntries<'a> {
    publishing: SharedGuard<'a>,
    windows: WindowsGuard<'a>,
    _signals: SignalsBlocked,
}

impl HeldEntries<'_> {
    /// The proof that the entries may be changed.
    pub(in crate::region) fn locked(&self) -> Locked<'_> {
        Locked::windows(&self.windows, &self.publishing)
    }
}

/// A region without its public API. The fault handler and the pool find it by address.
pub(crate) struct RegionCore<S: Sys> {
    pub(crate) addresses: Addresses<S>,
    pub(crate) table: Table,
    pub(crate) lock: RegionLock,
    /// Keeps the pool's thread and resets apart. The thread holds this lock while it maintains CoW mappings; a reset
    /// holds it because it may go without the locks of the windows.
    pub(in crate::region) maintenance: WordLock,
    pub(crate) accounts: Accounts,
    pub(crate) pins: Pins,
    pub(crate) habits: Habits,
    /// A thread that resets the region, or makes it from a snapshot, locks this in the region's turn.
    pub(in crate::region) dirty_list: Mutex<DirtyList>,
    pub(crate) captured: EngineArc<Captured<S>>,
    /// For a fork: the page sets that were captured of its parent.
    pub(in crate::region) captured_of_parent: OnceLock<EngineArc<Captured<S>>>,
    pub(crate) counters: EngineArc<Counters>,
    pub(crate) observer: OnceLock<Arc<dyn Observer>>,
    /// The operations of the program that cuts of the region wait for.
    pub(crate) operations: OnceLock<HeldOperations>,
    pub(in crate::region) placement: PlacementHint,
}

impl<S: Sys> RegionCore<S> {
    /// A region of `len` bytes that reads as zeros. `len` is a multiple of the block size.
    pub(crate) fn zeros(
        pool: &EngineArc<PoolCore<S>>,
        len: usize,
        options: RegionOptions,
    ) -> Result<PinnedBox<Self>, RegionError> {
        let addresses = Addresses::claim(pool, len, 1)?;
        let reserved = pool.reserve(options.reserve, pool.block_size.count(len))?;
        let region = Self::at(addresses, options, None);
        reserved.give_to(pool, &region.table, 0..region.table.len(), |_| true);
        Ok(region)
    }

    /// A new region at these addresses.
    pub(crate) fn at(mut addresses: Addresses<S>, options: RegionOptions, parent: Option<&Derived>) -> PinnedBox<Self> {
        let pool = addresses.pool.clone();
        let count = pool.block_size.count(addresses.len());
        if options.calls_wait && pool.sys.has_cow_mappings() && pool.block_size.bytes() > BASE_PAGE {
            addresses.claim_parking();
        }
        let region = PinnedBox::new(RegionCore {
            addresses,
            table: Table::new(count, pool.block_size),
            lock: RegionLock::default(),
            maintenance: WordLock::default(),
            accounts: Accounts::new(options, parent.cloned(), pool.block_size),
            pins: Pins::default(),
            habits: Habits::default(),
            dirty_list: Mutex::default(),
            captured: EngineArc::new(Captured::new(count, pool.block_size)),
            captured_of_parent: OnceLock::new(),
            counters: pool.registry.register(),
            observer: OnceLock::new(),
            operations: OnceLock::new(),
            placement: PlacementHint::new(&pool, count),
        });
        // SAFETY: the box keeps the region in place until it is withdrawn, which removes it from the list. The region
        // owns its sets until then.
        unsafe { pool.holders.add(&*region, parent, Some(&*region.captured)) };
        region
    }

    /// Takes all locks of the region that calls and faults may hold.
    #[cfg(test)]
    pub(crate) fn lock_all(&self) -> impl Sized + '_ {
        let calls = (self.captured.freezing.lock(), self.dirty_list.lock(), self.maintenance.lock());
        (calls, self.table.lock_windows(0..self.table.windows()), self.lock.exclusive())
    }

    /// Takes the region's turn: while a thread has it, no other thread takes a snapshot or a fork of the region, or
    /// resets it. This does not wait for the program's operations.
    pub(in crate::region) fn take_turn(&self) -> Turn<'_, S> {
        self.captured.take_turn(self.pool())
    }

    /// As [`RegionCore::take_turn`], for a thread that only reads. `None` if another thread has the turn.
    pub(in crate::region) fn try_take_turn(&self) -> Option<Turn<'_, S>> {
        self.captured.try_take_turn(self.pool())
    }

    /// Makes all later cuts wait for `operations`, unless the region has operations already. Returns those that cuts
    /// wait for. On return, no cut is under way that waits for none.
    pub(crate) fn set_operations(&self, operations: &HeldOperations) -> &HeldOperations {
        self.operations.get().unwrap_or_else(|| {
            let _no_cut = self.take_turn();
            self.operations.get_or_init(|| operations.clone())
        })
    }

    /// Locks some entries, of which there must be any.
    pub(in crate::region) fn lock_entries(&self, entries: &Range<usize>) -> HeldEntries<'_> {
        let _signals = SignalsBlocked::new();
        let windows = self.table.lock_windows(self.windows_of(entries));
        HeldEntries { publishing: self.lock.shared(), windows, _signals }
    }

    /// Locks one entry.
    pub(in crate::region) fn lock_entry(&self, index: EntryIndex) -> HeldEntries<'_> {
        self.lock_entries(&(index.0..index.0 + 1))
    }

    pub(crate) fn pool(&self) -> &EngineArc<PoolCore<S>> {
        &self.addresses.pool
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Checks that `range` lies inside the region.
    pub(crate) fn check(&self, range: &Range<usize>) -> Result<(), RegionError> {
        RegionError::check_range(range, self.len())
    }

    /// The entries that `range` touches.
    pub(crate) fn touched(&self, range: &Range<usize>) -> Range<usize> {
        let size = self.pool().block_size;
        if range.is_empty() {
            return 0..0;
        }
        size.count(range.start)..size.count(range.end - 1) + 1
    }

    /// The bytes of some entries.
    pub(crate) fn bytes_of(&self, entries: &Range<usize>) -> Range<usize> {
        let size = self.pool().block_size;
        size.len_of(entries.start)..size.len_of(entries.end)
    }

    /// The windows of `entries`, which must not be empty.
    pub(in crate::region) fn windows_of(&self, entries: &Range<usize>) -> Range<usize> {
        let (first, last) = (EntryIndex(entries.start), EntryIndex(entries.end - 1));
        self.table.window(first)..self.table.window(last) + 1
    }

    /// The blocks that `range` touches, each with the part of it in the range, in bytes of the block.
    pub(in crate::region) fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (EntryIndex, Range<usize>)> {
        let size = self.pool().block_size;
        self.touched(&range).map(move |index| {
            let start = size.len_of(index);
            (EntryIndex(index), range.start.max(start) - start..range.end.min(start + size.bytes()) - start)
        })
    }

    /// The entries as the kernel's mappings show them.
    pub(crate) fn shown(&self) -> Shown<'_> {
        Shown::of_region(self.pool(), &self.table, self.accounts.writers)
    }

    /// The addresses and entries for a transaction that changes what the region shows.
    pub(in crate::region) fn site(&self) -> Site<'_, S> {
        self.site_at(Place::Own)
    }

    /// As [`RegionCore::site`], for contents that are in `place` at the moment.
    pub(in crate::region) fn site_at(&self, place: Place) -> Site<'_, S> {
        let observer = self.observer.get().map(|observer| &**observer);
        Site { addresses: &self.addresses, shown: self.shown(), observer, place }
    }

    /// Shows something else at `entries`, as [`Site::remap`]. That drops the private pages over them, so this also
    /// marks the sets captured of those pages as outdated.
    #[inline]
    pub(in crate::region) fn remap(
        &self,
        locked: Locked<'_>,
        place: Place,
        entries: &Range<usize>,
        shows: Shows<BlockId>,
    ) -> Result<Remapped<'_, S>, Refused> {
        self.captured.outdate(entries.clone());
        self.site_at(place).remap(locked, entries, shows)
    }

    /// Shows something else at `entries`, as [`Site::remap`], and stores the entries that `next` gives for theirs.
    pub(in crate::region) fn replace(
        &self,
        locked: Locked<'_>,
        entries: Range<usize>,
        shows: Shows<BlockId>,
        event: Event,
        next: impl FnMut(Range<usize>, Entry) -> Entry,
    ) -> Result<(), Refused> {
        let remapped = self.remap(locked, Place::Own, &entries, shows)?;
        remapped.published(self.store(locked, event, entries, next));
        Ok(())
    }

    /// Makes entries writable or read-only, and stores them in the states that `next` gives for theirs. If the call
    /// fails, stores them in states that are correct with and without the right to write.
    pub(in crate::region) fn reprotect(
        &self,
        locked: Locked<'_>,
        place: Place,
        entries: Range<usize>,
        access: Access,
        event: Event,
        next: impl Fn(State) -> State,
    ) -> Result<(), Refused> {
        let changed = self.site_at(place).reprotect(locked, self.bytes_of(&entries), access)?;
        let stored = match changed.right() {
            Right::Granted => self.store(locked, event, entries, |_, old| old.in_state(next(old.state()))),
            Right::Unknown => self.protect_failed(locked, entries),
        };
        changed.published(stored)
    }

    /// Stores that these entries may have the right to write or not, after a call that failed.
    fn protect_failed(&self, locked: Locked<'_>, entries: Range<usize>) -> Recount {
        self.accounts.unsure.store(true, Ordering::Relaxed);
        self.store(locked, Event::ProtectFailed, entries, |_, old| old.in_state(on_protect_failed(old.state())))
    }

    /// As `protect_failed`, for entries whose mappings were counted before.
    #[cold]
    pub(in crate::region) fn note_failed_protection(&self, locked: Locked<'_>, entries: Range<usize>) {
        let Recount { before, after } = self.protect_failed(locked, entries);
        self.addresses.recount(before, after);
    }

    /// Counts the mappings of all entries anew, after a pause or a reset that changed entries without counting.
    pub(in crate::region) fn count_mappings_anew(&self) {
        self.addresses.recount(self.addresses.mappings(), 1 + self.shown().edges(0..self.table.len()));
    }

    /// Whether other holders have the entry's block, too. While the caller holds the region lock, `Alone` stays true:
    /// only a holder can add another holder, and this region adds one only in a snapshot. `ByOthersToo` may become
    /// `Alone` at any time. For an entry without a block the value means nothing, and no transition depends on it.
    #[inline]
    pub(crate) fn held(&self, entry: Entry) -> Held {
        match entry {
            Entry::Private(_) => Held::Alone,
            Entry::Shared(block, _) | Entry::Lazy(block) | Entry::Split(block) | Entry::CowMapped(block, ..) => {
                if self.is_alone_with(block) { Held::Alone } else { Held::ByOthersToo }
            }
            Entry::Zero | Entry::Revoked => Held::ByOthersToo,
        }
    }

    /// Whether the entry at `index` is a CoW mapping of a block that others hold too.
    pub(in crate::region) fn shares_cow_mapping(&self, index: EntryIndex) -> bool {
        let entry = self.table.get(index);
        entry.is_cow_mapping() && self.held(entry) == Held::ByOthersToo
    }

    /// Whether the region has several snapshots and may share blocks with them. Such snapshots keep only the pages that
    /// differ, where they can.
    pub(in crate::region) fn has_history(&self) -> bool {
        self.may_share_pages() && self.accounts.cow.has_several()
    }

    /// Whether snapshots may have pages of their own over blocks that they share with the region. A reservation rules
    /// that out, too.
    pub(in crate::region) fn may_share_pages(&self) -> bool {
        self.may_capture() && self.accounts.reserve == Reserve::None
    }

    /// Whether private pages over shared blocks may be captured. A limit on copies, system calls that have to wait, and
    /// writers that never fault each rule that out.
    pub(in crate::region) fn may_capture(&self) -> bool {
        let accounts = &self.accounts;
        accounts.limit.is_none() && !accounts.calls_wait && accounts.writers == Writers::Fault
    }

    /// Notes whether the block at `index` is dense, given that `pages` of its pages were written.
    pub(in crate::region) fn note_density(&self, index: EntryIndex, pages: usize) {
        self.captured.note_dense(index, pages >= density::dense_pages(self.pool().block_size));
    }

    /// Whether this region is the only holder of `block`, which is in one of its entries.
    #[inline]
    pub(in crate::region) fn is_alone_with(&self, block: BlockId) -> bool {
        self.pool().frames.references(block) == 1 || seeded!("reuse-without-the-count")
    }

    /// Whether the block at byte `offset` was revoked. Waits while another thread is just revoking it.
    pub(crate) fn is_revoked_at(&self, offset: usize) -> bool {
        let index = EntryIndex(self.pool().block_size.count(offset));
        let _window = self.table.lock(index);
        self.table.get(index) == Entry::Revoked
    }

    /// Releases the block of an entry, once the region's addresses are unmapped. True if the block was the parent's and
    /// this region was its last holder.
    fn give_back(&self, index: EntryIndex) -> bool {
        let (pool, entry) = (self.pool(), self.table.get(index));
        let Some(block) = entry.block() else { return false };
        let may_reuse = match on_drop(entry.state(), self.pins.of(index)) {
            OnDrop::Nothing => return false,
            OnDrop::Release => true,
            OnDrop::ReleasePages => self.forget_pages(index, block),
            // The program forgot a pin guard, so a device or the kernel may still use the memory of this block.
            OnDrop::Leak => false,
        };
        if !may_reuse {
            pool.leak(1);
        }
        may_reuse && pool.release(block) && !entry.is_owner()
    }
}

impl<S: Sys> Known for RegionCore<S> {
    fn withdraw(&self) {
        self.pool().holders.remove(self);
    }
}

impl<S: Sys> Drop for RegionCore<S> {
    fn drop(&mut self) {
        let pool = self.pool().clone();
        pool.frames.unreserve(self.table.reserved());
        let entries = (0..self.table.len()).map(EntryIndex);
        if self.addresses.close().is_ok() {
            let freed = entries.filter(|&index| self.give_back(index)).count();
            self.accounts.parent.iter().for_each(|parent| parent.account.freed(freed));
        } else {
            // The blocks may still be mapped, so no other holder may get them.
            pool.leak(entries.filter(|&index| self.table.get(index).block().is_some()).count());
        }
        // Snapshots of the region may outlive it, and keep `captured` alive.
        self.captured.withdraw();
        self.captured_of_parent.get().into_iter().for_each(|captured| _ = captured.drop_sets(USELESS, &pool.frames));
        pool.maintenance.count(-self.accounts.cow_mappings.load(Ordering::Relaxed).cast_signed());
        pool.maintenance.nudge();
        pool.registry.retire(&self.counters);
    }
}

#[cfg(any(test, fuzzing))]
impl<S: Sys> RegionCore<S> {
    /// The address of an entry.
    pub(crate) fn address_of(&self, index: usize) -> usize {
        self.addresses.base() + self.pool().block_size.len_of(index)
    }
}
