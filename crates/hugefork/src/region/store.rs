//! What each change of an entry means besides the entry: references, reservations, counts, and the account of what
//! forks and snapshots cost. The entries of a region that others know of are stored only here, except the marks of a
//! snapshot (freeze.rs).

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::core::RegionCore;
use crate::mapping::change::Recount;
use crate::mapping::edges::{Edges, Shown};
use crate::sys::Sys;
use crate::table::transition::{Event, allows};
use crate::table::{Entry, Locked, Reserved};
use crate::terms::options::Reserve;
use crate::units::EntryIndex;

/// What a run of stored entries adds to the counts. It is added once for each run, because a run may have a quarter of
/// a million entries.
#[derive(Default)]
struct Sums {
    lazy: isize,
    revoked: isize,
    /// Blocks of the parent that only this region held, and that it has made its own or given up.
    freed: usize,
    /// Reservations that turned out not to be needed.
    unreserved: usize,
}

/// A run of entries that is being stored, from left to right.
struct Run<'a, S: Sys> {
    region: &'a RegionCore<S>,
    event: Event,
    shown: Shown<'a>,
    before: Edges,
    after: Edges,
    sums: Sums,
}

impl<S: Sys> RegionCore<S> {
    /// Stores what `next` makes of each entry, lets go of the blocks that are replaced, and counts the mappings before
    /// and after. `next` may change the pages of its entry.
    pub(crate) fn store(
        &self,
        _locked: Locked<'_>,
        event: Event,
        entries: Range<usize>,
        mut next: impl FnMut(EntryIndex, Entry) -> Entry,
    ) -> Recount {
        let shown = self.shown();
        let edges = shown.edges_from(entries.start);
        let mut run = Run { region: self, event, shown, before: edges, after: edges, sums: Sums::default() };
        let mut index = EntryIndex(entries.start);
        while index.0 < entries.end {
            let old = run.look(index);
            run.put(index, old, next(index, old));
            index.0 += 1;
        }
        run.end(entries.end)
    }
}

impl<S: Sys> Run<'_, S> {
    /// The next entry, as it was.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn look(&mut self, index: EntryIndex) -> Entry {
        let old = self.region.table.get(index);
        self.before.add(self.shown.face_of(index, old));
        old
    }

    /// The next entry, as it is now.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put(&mut self, index: EntryIndex, old: Entry, new: Entry) {
        debug_assert!(allows(self.event, old.state(), new.state()), "the table has no such way");
        if old != new {
            self.region.store_one(index, old, new, &mut self.sums);
        }
        self.after.add(self.shown.face_of(index, new));
    }

    fn end(&self, end: usize) -> Recount {
        self.region.add_up(&self.sums);
        Recount { before: self.shown.edges_to(self.before, end), after: self.shown.edges_to(self.after, end) }
    }
}

impl<S: Sys> RegionCore<S> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn store_one(&self, index: EntryIndex, old: Entry, new: Entry, sums: &mut Sums) {
        self.table.set(index, new);
        let is_lazy = |entry| isize::from(matches!(entry, Entry::Lazy(_)));
        let is_revoked = |entry| isize::from(entry == Entry::Revoked);
        sums.lazy += is_lazy(new) - is_lazy(old);
        sums.revoked += is_revoked(new) - is_revoked(old);
        let is_now_private = matches!(new, Entry::Private(_));
        if old.block() != new.block() {
            self.leave(index, old, new == Entry::Zero, sums);
            if is_now_private {
                // The reservation has been used.
                self.table.set_reserved(index, Reserved::No);
            }
            return;
        }
        if matches!(old, Entry::Borrowed(_)) && new.is_owner() {
            // Nobody else holds the block: it is this fork's own from now on, and costs the parent nothing.
            sums.freed += 1;
        }
        if is_now_private && self.table.set_reserved(index, Reserved::No) {
            // The block has become the region's own, so none was taken from the pool.
            sums.unreserved += 1;
        }
    }

    /// Lets go of what `old` held. An entry that was promised a block keeps one reserved when it becomes zero: its own
    /// block if nobody else holds that, or else another, if there is one.
    #[inline(never)]
    fn leave(&self, index: EntryIndex, old: Entry, is_now_zero: bool, sums: &mut Sums) {
        let (pool, Some(block)) = (self.pool(), old.block()) else { return };
        if matches!(old, Entry::Split(_)) && !self.forget_pages(index, block) {
            pool.leak(1);
            return;
        }
        let wants_one = is_now_zero && self.books.reserve == Reserve::Full && !self.table.is_reserved(index);
        let was_last = pool.release_and(block, if wants_one { Reserved::Yes } else { Reserved::No });
        if wants_one && (was_last || pool.frames.reserve(1).is_some()) {
            self.table.set_reserved(index, Reserved::Yes);
        }
        if old.is_owner() && !was_last {
            self.books.cow.left();
        } else if matches!(old, Entry::Borrowed(_)) && was_last {
            sums.freed += 1;
        }
    }

    fn add_up(&self, sums: &Sums) {
        let books = &self.books;
        for (count, more) in [(&books.lazy_blocks, sums.lazy), (&books.revoked, sums.revoked)] {
            if more != 0 {
                // To add a wrapped negative number is to subtract.
                count.fetch_add(more.cast_unsigned(), Ordering::Relaxed);
            }
        }
        if let Some(parent) = &books.parent {
            parent.freed(sums.freed);
        }
        if sums.unreserved > 0 {
            self.pool().frames.unreserve(sums.unreserved);
        }
    }
}
