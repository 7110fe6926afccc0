//! Stores entries, and with each change all that depends on it: references, reservations, counts, and the account of
//! the blocks that forks and snapshots cost.
//!
//! Besides this file, only two places change the entries of a region that other threads know: a cut marks entries as
//! shared (cut/freeze.rs), and so does `share` before a `fork(2)` (program.rs). A new fork gets its entries in fork.rs.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::core::RegionCore;
use crate::mapping::change::Recount;
use crate::sys::{Access, Sys};
use crate::table::machine::allows;
use crate::table::transition::Event;
use crate::table::{Entry, Locked, Origin, Reserved};
use crate::types::error::RegionError;
use crate::types::options::Reserve;
use crate::units::{BlockId, EntryIndex};

/// The changes of the counts by one run of stored entries. They are added once for each run, because a run may have a
/// quarter of a million entries.
#[derive(Default)]
struct Sums {
    lazy: isize,
    revoked: isize,
    cow_mappings: isize,
    charged: isize,
    /// The number of blocks of the parent that only this region held, and that it has made its own or released.
    freed: usize,
    /// The number of reservations that turned out not to be needed.
    unreserved: usize,
}

impl Sums {
    /// Counts `count` entries like `new` in place of entries like `old`.
    fn count(&mut self, old: Entry, new: Entry, count: isize) {
        for (entry, by) in [(old, -count), (new, count)] {
            match entry {
                Entry::Lazy(_) => self.lazy += by,
                Entry::Revoked => self.revoked += by,
                Entry::CowMapped(_, Origin::Own, Access::ReadWrite) => {
                    self.cow_mappings += by;
                    self.charged += by;
                }
                Entry::CowMapped(_, Origin::Parent, _) | Entry::CowMapped(_, _, Access::Read) => {
                    self.cow_mappings += by
                }
                Entry::Zero | Entry::Private(_) | Entry::Shared(..) | Entry::Split(_) => {}
            }
        }
    }
}

impl<S: Sys> RegionCore<S> {
    /// Stores what `next` makes of each entry, releases the blocks that are replaced, and counts the mappings before
    /// and after.
    ///
    /// For a run of `Private` entries with consecutive blocks, `next` is called once, with the first entry. Its result
    /// is the new first entry; the others follow with consecutive blocks. For all other entries the range that `next`
    /// gets has one entry. `next` may change the pages of a split entry.
    pub(crate) fn store(
        &self,
        _locked: Locked<'_>,
        event: Event,
        entries: Range<usize>,
        mut next: impl FnMut(Range<usize>, Entry) -> Entry,
    ) -> Recount {
        let (shown, mut sums) = (self.shown(), Sums::default());
        let mut before = shown.edges_from(entries.start);
        let (mut after, mut index) = (before, entries.start);
        while index < entries.end {
            let old = self.table.get(EntryIndex(index));
            let count = if matches!(old, Entry::Private(_)) { self.table.alike(index..entries.end) } else { 1 };
            before.add(shown.face_of(EntryIndex(index), count, old));
            let new = next(index..index + count, old);
            debug_assert!(allows(event, old.state(), new.state()), "the table has no such way");
            self.store_alike(index..index + count, old, new, &mut sums);
            after.add(shown.face_of(EntryIndex(index), count, new));
            index += count;
        }
        self.add_up(&sums);
        Recount { before: shown.edges_to(before, entries.end), after: shown.edges_to(after, entries.end) }
    }

    /// Stores a run of entries that begins with `new`, in place of one that begins with `old`.
    fn store_alike(&self, entries: Range<usize>, old: Entry, new: Entry, sums: &mut Sums) {
        if old == new {
            return;
        }
        self.table.set_alike(entries.clone(), new);
        if new.is_writable_cow_mapping() {
            self.captured.may_change(entries.clone());
        }
        sums.count(old, new, entries.len().cast_signed());
        let keeps_blocks = old.block() == new.block();
        if keeps_blocks && old.block().is_some() && !old.is_owner() && new.is_owner() {
            // This region is the only holder of the block. From now on the block is its own, and costs the parent
            // nothing.
            sums.freed += 1;
        }
        if let Some(first) = old.block().filter(|_| !keeps_blocks) {
            // The next write to such an entry takes a block again, which the reservation of the region covers.
            let takes_one = matches!(new, Entry::Zero | Entry::Shared(_, Origin::Parent));
            for index in entries.clone() {
                self.leave(EntryIndex(index), old, first.offset(index - entries.start), takes_one, sums);
            }
        }
        if matches!(new, Entry::Private(_)) {
            // The reservations have been used, or are not needed if the entries keep their blocks.
            for index in entries {
                let was_reserved = self.table.set_reserved(EntryIndex(index), Reserved::No);
                sums.unreserved += usize::from(was_reserved && keeps_blocks && !seeded!("reservation-not-given-back"));
            }
        }
    }

    /// Releases the block of an entry like `old`. If the region has a reservation and the next write to the entry takes
    /// a block, a block stays reserved for that: the released one if this was its last holder, or else another, if the
    /// pool has one.
    fn leave(&self, index: EntryIndex, old: Entry, block: BlockId, takes_one: bool, sums: &mut Sums) {
        let pool = self.pool();
        if matches!(old, Entry::Split(_)) && !self.forget_pages(index, block) {
            pool.leak(1);
            return;
        }
        let wants_one = takes_one && self.accounts.reserve == Reserve::Full && !self.table.is_reserved(index);
        let was_last = pool.release_and(block, if wants_one { Reserved::Yes } else { Reserved::No });
        if wants_one && (was_last || pool.frames.reserve(1).is_some()) {
            self.table.set_reserved(index, Reserved::Yes);
        }
        if old.is_owner() && !was_last {
            self.accounts.cow.left();
        } else if !old.is_owner() && was_last {
            sums.freed += 1;
        }
    }

    fn add_up(&self, sums: &Sums) {
        let accounts = &self.accounts;
        for (count, more) in [
            (&accounts.lazy_blocks, sums.lazy),
            (&accounts.revoked, sums.revoked),
            (&accounts.cow_mappings, sums.cow_mappings),
            (&accounts.charged, sums.charged),
        ] {
            if more != 0 {
                // To add a wrapped negative number is to subtract.
                count.fetch_add(more.cast_unsigned(), Ordering::Relaxed);
            }
        }
        if sums.cow_mappings != 0 {
            self.pool().maintenance.count(sums.cow_mappings);
        }
        if let Some(parent) = &accounts.parent {
            parent.account.freed(sums.freed);
        }
        if sums.unreserved > 0 {
            self.pool().frames.unreserve(sums.unreserved);
        }
    }

    /// Reserves blocks again for entries whose next write takes one, and which lost their reservation because others
    /// held the block.
    pub(in crate::region) fn reserve_again(&self, entries: Range<usize>) -> Result<(), RegionError> {
        let takes_one = |entry: Entry| entry == Entry::Zero || entry.block().is_some() && !entry.is_owner();
        let has_none = |index: EntryIndex| {
            let entry = self.table.get(index);
            takes_one(entry) && !self.table.is_reserved(index)
        };
        if self.accounts.reserve == Reserve::None {
            return Ok(());
        }
        for index in entries.map(EntryIndex).filter(|&index| has_none(index)) {
            let one = self.pool().reserve(Reserve::Full, 1)?;
            let _held = self.lock_entry(index);
            one.give_to(self.pool(), &self.table, index.0..index.0 + 1, has_none);
        }
        Ok(())
    }
}
