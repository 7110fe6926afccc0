//! Demotion: where memory is short, a block that was promoted too early goes back to pages. Children still hold the
//! block that it was copied from (state/former.rs), so what equals that takes no memory.
//!
//! ```text
//!   few pages differ? ─▶ have all wait ─▶ which differ? ─▶ show the former block through a private mapping, parked
//!                                     ─▶ write those that differ there ─▶ show that in place of the block ─▶ resume
//! ```
//! The block's memory goes back to the system. Who uses it meanwhile waits, for as long as it takes to compare 2 MiB.

use crate::mapping::addresses::Place;
use crate::mapping::change::Recount;
use crate::ranges::runs;
use crate::region::state::RegionCore;
use crate::sys::racing::{PageBytes, differs};
use crate::sys::{Access, Shows, Sys};
use crate::table::transition::Event;
use crate::table::{Entry, Locked, Origin, State};
use crate::units::{BASE_PAGE, BlockId, EntryIndex};

/// With more pages that differ than this share of a block, demotion gives back too little for the wait.
const MOST_DIFFERENT: (usize, usize) = (3, 4);

/// What has come of it.
enum Outcome {
    /// This block's memory is of no use any more. The caller has a reference to it.
    Demoted(BlockId),
    /// Somebody works on the entry, or nobody can be made to wait.
    NotNow,
    NotWorthIt,
}

impl<S: Sys> RegionCore<S> {
    /// Gives back what of a promoted block equals the one that it was copied from, which children hold. False if that
    /// cannot be done now, or is not worth it: then it is not tried again. The caller has blocked the program's
    /// signals.
    pub(crate) fn demote(&self, index: EntryIndex) -> bool {
        // The reference keeps the block as it is, whenever the last child ends.
        let (pool, Some(former)) = (self.pool(), self.former.take(index)) else { return false };
        let outcome = self.go_back_to(former, index);
        match outcome {
            Outcome::Demoted(own) => {
                self.density.keep_by_page(index);
                pool.give_memory_back(own);
                pool.release(own);
            }
            Outcome::NotNow => self.former.keep(pool, index, former),
            Outcome::NotWorthIt => _ = pool.release(former),
        }
        matches!(outcome, Outcome::Demoted(_))
    }

    /// Shows the former block in place of the entry's own, with the pages that differ. If it does, the entry has the
    /// caller's reference to it.
    fn go_back_to(&self, former: BlockId, index: EntryIndex) -> Outcome {
        let pool = self.pool();
        let Some(window) = self.table.try_lock(index) else { return Outcome::NotNow };
        let publishing = self.lock.shared();
        let (locked, only) = (Locked::windows(&window, &publishing), index.0..index.0 + 1);
        let Entry::Private(own) = self.table.get(index) else { return Outcome::NotNow };
        let pages = pool.block_size.bytes() / BASE_PAGE;
        let is_different = |page: usize| self.differs_from(former, own, page);
        // What has no memory would get some for a look at it.
        let are_full = [former, own].into_iter().all(|block| self.is_full(block));
        let (share, of) = MOST_DIFFERENT;
        if !are_full || (0..pages).filter(|&page| is_different(page)).count() > pages * share / of {
            return Outcome::NotWorthIt;
        }
        // No `Quiesced`: this is no CoW mapping yet, and what is parked is replaced.
        let since = pool.sys.now();
        if !self.holds(locked, &only) {
            return Outcome::NotNow;
        }
        let bytes = self.bytes_of(&only);
        let parked = self.addresses.part_at(Place::Parked, &bytes);
        let shows = Shows::CowMapping { start: former, access: Access::ReadWrite };
        let outcome = match self.remap(locked, Place::Parked, &only, shows) {
            Ok(remapped) => {
                for run in runs(0..pages, is_different) {
                    let (at, len) = (run.start * BASE_PAGE, run.len() * BASE_PAGE);
                    // SAFETY: a program's CoW mapping is writable from the first, and nobody knows of it yet. The block
                    // lies in the direct map, and whoever would write to it waits.
                    unsafe { pool.sys.overwrite(parked.part(at, len), pool.direct(own).add(at)) };
                }
                // Its memory goes back when nobody waits any more.
                pool.frames.add_reference(own);
                let shared = |_, _| Entry::Shared(former, Origin::Own);
                let Recount { before, .. } = self.store(locked, Event::Reset, only.clone(), shared);
                let writable = |_, old: Entry| old.in_state(State::CowMapped(Access::ReadWrite));
                let Recount { after, .. } = self.store(locked, Event::Write, only.clone(), writable);
                remapped.published(Recount { before, after });
                Outcome::Demoted(own)
            }
            Err(_) => Outcome::NotNow,
        };
        self.site().unpark(locked, &only);
        drop(publishing);
        self.site().resume(&only);
        self.counters.held_by_promotion.record(pool.sys.now().saturating_sub(since));
        outcome
    }

    /// Whether a page of an entry's own block, which the program may write to, differs from that of its former block.
    fn differs_from(&self, former: BlockId, own: BlockId, page: usize) -> bool {
        let at = page * BASE_PAGE;
        // SAFETY: within the direct map, and it has memory. The caller holds it, and the region does not show it, so
        // nobody writes to it: to show it takes the lock of the window, which is held here.
        let before = unsafe { &*self.pool().direct(former).add(at).cast::<PageBytes>() };
        // SAFETY: within the direct map, and aligned to pages.
        unsafe { differs(self.pool().direct(own).add(at), before) }
    }

    /// Whether all of a block has memory.
    fn is_full(&self, block: BlockId) -> bool {
        let start = self.pool().offset(block);
        let all = start..start + self.pool().block_size.bytes();
        self.pool().sys.next_memory(all.clone()) == Some(all)
    }
}
